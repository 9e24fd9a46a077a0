// A module that comes and goes while its functions wait. Each returns 0, or the number of the line that failed.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) do { if (!(condition)) return __LINE__; } while (0)

static int sleeps(long nanoseconds)
{
    struct timespec time = {0, nanoseconds};
    return nanosleep(&time, NULL);
}

int module_sleeps(void) { return sleeps(50000), 0; }

// A pointer that a table has, relocated when the module is loaded.
int (*const volatile through_table)(struct pollfd *, nfds_t, int) = poll;
int module_polls(void) { return through_table(NULL, 0, 1), 0; }

int module_waits(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if ((time.tv_nsec += 50000) >= 1000000000) time.tv_nsec -= 1000000000, time.tv_sec++;
    CHECK(pthread_mutex_lock(&mutex) == 0);
    pthread_cond_timedwait(&never, &mutex, &time);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
    return 0;
}

int module_calls_back(int (*callback)(void))
{
    sleeps(20000);
    int returned = callback();
    sleeps(20000);
    return returned;
}

// A thread that Python knows nothing of is cancelled where it waits.
static void *waits_forever(void *nothing)
{
    while (1) sleeps(900000000);
    return nothing;
}
int module_cancels(void)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, waits_forever, NULL) == 0);
    sleeps(100000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    return 0;
}

// Jumps out of a wait by a signal of the thread's own timer. No other signal ends one meanwhile, so no sample is jumped out of, which
// would be taken and have no fate.
static __thread sigjmp_buf back;
static void jumps(int signal) { (void)signal, siglongjmp(back, 1); }
int module_jumps(int number)
{
    struct sigaction action = {.sa_handler = jumps};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number};
    struct itimerspec soon = {.it_value = {0, 100000}};
    timer_t timer;
    sigset_t others, before;
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(sigfillset(&others) == 0 && sigdelset(&others, number) == 0 && pthread_sigmask(SIG_SETMASK, &others, &before) == 0);
    if (sigsetjmp(back, 1) == 0) {
        CHECK(sigaction(number, &action, NULL) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
        while (1) sleeps(900000000);
    }
    CHECK(timer_delete(timer) == 0 && pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return 0;
}

// While the loader closes it.
__attribute__((destructor)) static void waits_at_the_end(void) { sleeps(20000); }
