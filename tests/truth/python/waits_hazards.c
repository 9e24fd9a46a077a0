// What C code does that a wrapper around libc's functions must bear. Each function returns 0, or the number of the check that failed.
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) do { if (!(condition)) return __LINE__; } while (0)

static int sleeps(int milliseconds) { return poll(NULL, 0, milliseconds); }

// A pointer that a table has, relocated when the module is loaded.
int (*const volatile through_table)(struct pollfd *, nfds_t, int) = poll;
int waits_through_a_table(void) { return through_table(NULL, 0, 20) == 0 ? 0 : __LINE__; }

int errno_is_kept(void)
{
    char byte;
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct timeval limit = {0, 20000};
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    errno = 0;
    CHECK(recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN);
    CHECK(recv(pair[0], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(read(-1, &byte, 1) == -1 && errno == EBADF);
    errno = ENOENT;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    CHECK(pthread_mutex_lock(&mutex) == 0 && errno == ENOENT && pthread_mutex_unlock(&mutex) == 0 && errno == ENOENT);
    close(pair[0]), close(pair[1]);
    return 0;
}

static sigjmp_buf back;
static void jumps(int signal) { (void)signal, siglongjmp(back, 1); }
static void waits(int signal) { (void)signal, sleeps(10); }
static void nothing(int signal) { (void)signal; }

static int with_alarm(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, before;
    CHECK(sigaction(SIGALRM, &action, &before) == 0);
    struct itimerval timer = {.it_value = {0, 20000}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    int line = 0;
    if (handler == jumps) {
        if (sigsetjmp(back, 1) == 0) sleeps(2000), line = __LINE__;
    } else {
        struct timespec time = {2, 0};
        if (handler == nothing && !(nanosleep(&time, NULL) == -1 && errno == EINTR)) line = __LINE__;
        if (handler == waits && !(sleeps(2000) == -1 && errno == EINTR)) line = __LINE__;
    }
    sigaction(SIGALRM, &before, NULL);
    return line;
}

int jumps_out(void)
{
    for (int i = 0; i < 3; i++) {
        int line = with_alarm(jumps, 0);
        if (line) return line;
    }
    return 0;
}
int is_interrupted(void) { return with_alarm(nothing, 0); }
int waits_in_a_handler(void) { return with_alarm(waits, 0); }

static void *forever(void *pair)
{
    char byte;
    recv(*(int *)pair, &byte, 1, 0);
    return NULL;
}
int is_cancelled(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, forever, pair) == 0);
        if (i % 2) sleeps(2);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    close(pair[0]), close(pair[1]);
    return 0;
}

int vforks(void)
{
    for (int i = 0; i < 20; i++) {
        pid_t child = vfork();
        if (child == 0) {
            sleeps(5);
            _exit(7);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    return 0;
}

static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static long counted;
static void *counts(void *end)
{
    for (long i = 0; i < *(long *)end; i++) {
        pthread_mutex_lock(&shared);
        counted++;
        pthread_mutex_unlock(&shared);
    }
    return NULL;
}
int many_short_waits(void)
{
    long each = 200000;
    pthread_t threads[4];
    counted = 0;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, counts, &each) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return counted == 4 * each ? 0 : __LINE__;
}

int by_system_call(void)
{
    int word = 0;
    struct timespec time = {0, 20000000};
    errno = 0;
    CHECK(syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, &time, NULL, 0) == -1 && errno == ETIMEDOUT);
    CHECK(syscall(SYS_getpid) == getpid());
    return 0;
}

// A table that its module protects once it is relocated, and one in a page of code.
struct table { int (*poll)(struct pollfd *, nfds_t, int); char rest[2 * 4096 - 8]; } __attribute__((aligned(4096)));
static struct table protected_table = {poll};
__attribute__((constructor)) static void protect(void) { mprotect(&protected_table, sizeof protected_table, PROT_READ); }
__asm__(".section .rodata\n.globl table_in_code\n.hidden table_in_code\n.balign 8\ntable_in_code: .quad poll\n.previous\n");
extern int (*const table_in_code)(struct pollfd *, nfds_t, int);
int waits_through_protected_tables(void)
{
    CHECK(protected_table.poll(NULL, 0, 20) == 0);
    CHECK(table_in_code(NULL, 0, 20) == 0);
    return 0;
}

// Jumps out of whatever runs when the timer expires: a wait, or what is done when it is over.
static volatile sig_atomic_t may_jump;
static void jumps_if_it_may(int signal)
{
    (void)signal;
    if (may_jump) may_jump = 0, siglongjmp(back, 1);
}
int jumps_out_of_samples(void)
{
    struct sigaction action = {.sa_handler = jumps_if_it_may}, before;
    CHECK(sigaction(SIGALRM, &action, &before) == 0);
    struct itimerval timer = {{0, 150}, {0, 150}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    volatile int turns = 0;
    while (turns++ < 3000) {
        if (sigsetjmp(back, 1)) continue;
        may_jump = 1;
        for (int i = 0; i < 20; i++) {
            struct timespec time = {0, 3000 + 100 * i};
            nanosleep(&time, NULL);
        }
        may_jump = 0;
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0);
    return 0;
}

static atomic_int is_there;
static void ends(int signal) { (void)signal, pthread_exit(NULL); }
static void *looks_about(void *path)
{
    struct stat found;
    for (is_there = 1;;) stat(path, &found);
    return NULL;
}
// The handler comes within a call of some thirty microseconds, or within what follows one.
int is_ended_by_its_handler(void)
{
    char path[4096] = "/";
    for (int i = 0; i < 1500; i++) strcat(path, "./");
    struct sigaction action = {.sa_handler = ends}, before;
    CHECK(sigaction(SIGUSR2, &action, &before) == 0);
    for (int i = 0; i < 2000; i++) {
        pthread_t thread;
        is_there = 0;
        CHECK(pthread_create(&thread, NULL, looks_about, path) == 0);
        while (!is_there) sched_yield();
        for (volatile int turn = 0; turn < i * 37 % 20000; turn++) {}
        CHECK(pthread_kill(thread, SIGUSR2) == 0 && pthread_join(thread, NULL) == 0);
    }
    CHECK(sigaction(SIGUSR2, &before, NULL) == 0);
    return 0;
}

static sem_t is_free;
static void *posts_and_waits(void *turns)
{
    while (1) sem_post(&is_free), sem_wait(&is_free), ++*(volatile int *)turns;
    return NULL;
}
int is_cancelled_where_it_is_free(void)
{
    pthread_t thread;
    volatile int turns = 0;
    void *result;
    struct timespec no_time = {0, -1};
    CHECK(sem_init(&is_free, 0, 1) == 0);
    CHECK(sem_timedwait(&is_free, &no_time) == -1 && errno == EINVAL);
#if __GLIBC_PREREQ(2, 30)
    struct timespec time = {0, 0};
    CHECK(sem_clockwait(&is_free, CLOCK_PROCESS_CPUTIME_ID, &time) == -1 && errno == EINVAL);
    CHECK(sem_clockwait(&is_free, CLOCK_MONOTONIC, &time) == 0 && sem_post(&is_free) == 0);
#endif
    CHECK(pthread_create(&thread, NULL, posts_and_waits, (void *)&turns) == 0);
    while (turns == 0) sched_yield();
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    return 0;
}

// Whoever forks finds ld.so's list of modules held by another thread, as where that one is just closing a module. libc calls what was
// registered first last, so that nothing else holds a fork up meanwhile.
static sem_t is_held, may_go;
static pthread_t holder;
static int holds(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)info, (void)size, (void)unused;
    sem_post(&is_held);
    while (sem_wait(&may_go) != 0) {}
    return 1;
}
static void *holds_modules(void *unused)
{
    dl_iterate_phdr(holds, unused);
    return NULL;
}
static void hold_modules(void)
{
    if (pthread_create(&holder, NULL, holds_modules, NULL) != 0) abort();
    while (sem_wait(&is_held) != 0) {}
}
static void let_modules_go(void)
{
    sem_post(&may_go);
    pthread_join(holder, NULL);
}
int hold_modules_at_forks(void)
{
    CHECK(sem_init(&is_held, 0, 0) == 0 && sem_init(&may_go, 0, 0) == 0);
    CHECK(pthread_atfork(hold_modules, let_modules_go, NULL) == 0);
    return 0;
}
