// The functions of libc in which a thread can wait, each with the clock around it: clock, call, clock.
//
// `modules.rs` puts the addresses of these wrappers into the slots by which the modules of the process call libc; what a wait means
// is said in `mod.rs`. Here is only what a call costs. It is C because such a call may not return: a longjmp, a cancellation or
// the end of a thread may leave it, so a wrapper's frame has nothing that would have to be undone, and because only C can have
// initial-exec thread-locals, whose first touch allocates nothing.
//
// A wrapper may run in a signal handler of the program's, or with any lock held: it allocates nothing, takes no lock and keeps errno.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>

// `State` in wait_state.rs, in its order.
enum state { CPU, IO, LOCK, GIL, SLEEP, CHILD, NAME, AWAIT, BUSY, GVL, RUN_QUEUE };

// `Block` in block.rs: what a thread knows of its waits.
struct block {
    uint64_t total;
    const volatile uint64_t *expiries, *handled;
    const void *pending_until;
    uint64_t since, since_cpu;
    uint64_t rest[39];
};

// `Call` in mod.rs: one that took long enough to be a wait.
struct call {
    uint32_t function;
    uint16_t state, polls;
    uint64_t took, ended, expiries, handled, cpu, argument;
    const void *mutex, *caller, *frame;
};

static __thread struct block own __attribute__((tls_model("initial-exec")));

static int on;
static uint64_t shortest;
static void (*waited)(struct block *, const struct call *);
static void (*unlocked)(struct block *);
static void (*module_opened)(void);

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

// Name, result, parameters, arguments, state, what tells one wait from another, whether it can wait at all; of those that may copy much
// (L) how many bytes. Pointers that are only passed on have no type, so that no header's idea of them matters.
#define TABLE(X, L) \
    L(read, ssize_t, (int a, void *b, size_t c), (a, b, c), IO, a, 1, c) \
    X(readv, ssize_t, (int a, const void *b, int c), (a, b, c), IO, a, 1) \
    L(pread64, ssize_t, (int a, void *b, size_t c, off_t d), (a, b, c, d), IO, a, 1, c) \
    X(preadv64, ssize_t, (int a, const void *b, int c, off_t d), (a, b, c, d), IO, a, 1) \
    L(write, ssize_t, (int a, const void *b, size_t c), (a, b, c), IO, a, 1, c) \
    X(writev, ssize_t, (int a, const void *b, int c), (a, b, c), IO, a, 1) \
    L(pwrite64, ssize_t, (int a, const void *b, size_t c, off_t d), (a, b, c, d), IO, a, 1, c) \
    X(pwritev64, ssize_t, (int a, const void *b, int c, off_t d), (a, b, c, d), IO, a, 1) \
    L(sendfile64, ssize_t, (int a, int b, void *c, size_t d), (a, b, c, d), IO, a, 1, d) \
    L(splice, ssize_t, (int a, void *b, int c, void *d, size_t e, unsigned f), (a, b, c, d, e, f), IO, a, 1, e) \
    L(copy_file_range, ssize_t, (int a, void *b, int c, void *d, size_t e, unsigned f), (a, b, c, d, e, f), IO, a, 1, e) \
    L(recv, ssize_t, (int a, void *b, size_t c, int d), (a, b, c, d), IO, a, !(d & MSG_DONTWAIT), c) \
    L(recvfrom, ssize_t, (int a, void *b, size_t c, int d, void *e, void *f), (a, b, c, d, e, f), IO, a, !(d & MSG_DONTWAIT), c) \
    X(recvmsg, ssize_t, (int a, void *b, int c), (a, b, c), IO, a, !(c & MSG_DONTWAIT)) \
    X(recvmmsg, int, (int a, void *b, unsigned c, int d, void *e), (a, b, c, d, e), IO, a, !(d & MSG_DONTWAIT)) \
    L(send, ssize_t, (int a, const void *b, size_t c, int d), (a, b, c, d), IO, a, !(d & MSG_DONTWAIT), c) \
    L(sendto, ssize_t, (int a, const void *b, size_t c, int d, const void *e, socklen_t f), (a, b, c, d, e, f), IO, a, \
      !(d & MSG_DONTWAIT), c) \
    X(sendmsg, ssize_t, (int a, const void *b, int c), (a, b, c), IO, a, !(c & MSG_DONTWAIT)) \
    X(sendmmsg, int, (int a, void *b, unsigned c, int d), (a, b, c, d), IO, a, !(d & MSG_DONTWAIT)) \
    X(accept, int, (int a, void *b, void *c), (a, b, c), IO, a, 1) \
    X(accept4, int, (int a, void *b, void *c, int d), (a, b, c, d), IO, a, 1) \
    X(connect, int, (int a, const void *b, socklen_t c), (a, b, c), IO, a, 1) \
    X(poll, int, (void *a, unsigned long b, int c), (a, b, c), b ? IO : SLEEP, b, c != 0) \
    X(ppoll, int, (void *a, unsigned long b, const void *c, const void *d), (a, b, c, d), b ? IO : SLEEP, b, 1) \
    X(select, int, (int a, void *b, void *c, void *d, void *e), (a, b, c, d, e), a ? IO : SLEEP, a, 1) \
    X(pselect, int, (int a, void *b, void *c, void *d, const void *e, const void *f), (a, b, c, d, e, f), a ? IO : SLEEP, a, 1) \
    X(epoll_wait, int, (int a, void *b, int c, int d), (a, b, c, d), IO, a, d != 0) \
    X(epoll_pwait, int, (int a, void *b, int c, int d, const void *e), (a, b, c, d, e), IO, a, d != 0) \
    X(epoll_pwait2, int, (int a, void *b, int c, const void *d, const void *e), (a, b, c, d, e), IO, a, 1) \
    X(fsync, int, (int a), (a), IO, a, 1) \
    X(fdatasync, int, (int a), (a), IO, a, 1) \
    X(syncfs, int, (int a), (a), IO, a, 1) \
    X(open64, int, (const char *a, int b, mode_t c), (a, b, c), IO, 0, 1) \
    X(openat64, int, (int a, const char *b, int c, mode_t d), (a, b, c, d), IO, 0, 1) \
    X(__open_2, int, (const char *a, int b), (a, b), IO, 0, 1) \
    X(__open64_2, int, (const char *a, int b), (a, b), IO, 0, 1) \
    X(__openat_2, int, (int a, const char *b, int c), (a, b, c), IO, 0, 1) \
    X(__openat64_2, int, (int a, const char *b, int c), (a, b, c), IO, 0, 1) \
    X(fopen64, void *, (const char *a, const char *b), (a, b), IO, 0, 1) \
    X(fclose, int, (void *a), (a), IO, 0, 1) \
    X(close, int, (int a), (a), IO, 0, 1) \
    X(opendir, void *, (const char *a), (a), IO, 0, 1) \
    X(readdir64, void *, (void *a), (a), IO, 0, 1) \
    X(stat64, int, (const char *a, void *b), (a, b), IO, 0, 1) \
    X(lstat64, int, (const char *a, void *b), (a, b), IO, 0, 1) \
    X(fstatat64, int, (int a, const char *b, void *c, int d), (a, b, c, d), IO, 0, 1) \
    X(__xstat64, int, (int a, const char *b, void *c), (a, b, c), IO, 0, 1) \
    X(__lxstat64, int, (int a, const char *b, void *c), (a, b, c), IO, 0, 1) \
    X(__fxstatat64, int, (int a, int b, const char *c, void *d, int e), (a, b, c, d, e), IO, 0, 1) \
    X(statx, int, (int a, const char *b, int c, unsigned d, void *e), (a, b, c, d, e), IO, 0, 1) \
    X(access, int, (const char *a, int b), (a, b), IO, 0, 1) \
    X(unlink, int, (const char *a), (a), IO, 0, 1) \
    X(remove, int, (const char *a), (a), IO, 0, 1) \
    X(unlinkat, int, (int a, const char *b, int c), (a, b, c), IO, 0, 1) \
    X(rename, int, (const char *a, const char *b), (a, b), IO, 0, 1) \
    X(renameat, int, (int a, const char *b, int c, const char *d), (a, b, c, d), IO, 0, 1) \
    X(renameat2, int, (int a, const char *b, int c, const char *d, unsigned e), (a, b, c, d, e), IO, 0, 1) \
    X(mkdir, int, (const char *a, mode_t b), (a, b), IO, 0, 1) \
    X(rmdir, int, (const char *a), (a), IO, 0, 1) \
    X(link, int, (const char *a, const char *b), (a, b), IO, 0, 1) \
    X(symlink, int, (const char *a, const char *b), (a, b), IO, 0, 1) \
    X(truncate64, int, (const char *a, off_t b), (a, b), IO, 0, 1) \
    X(ftruncate64, int, (int a, off_t b), (a, b), IO, a, 1) \
    X(fallocate64, int, (int a, int b, off_t c, off_t d), (a, b, c, d), IO, a, 1) \
    X(posix_fallocate, int, (int a, off_t b, off_t c), (a, b, c), IO, a, 1) \
    X(posix_fallocate64, int, (int a, off_t b, off_t c), (a, b, c), IO, a, 1) \
    X(sync_file_range, int, (int a, off_t b, off_t c, unsigned d), (a, b, c, d), IO, a, 1) \
    X(msync, int, (void *a, size_t b, int c), (a, b, c), IO, 0, 1) \
    L(fread, size_t, (void *a, size_t b, size_t c, void *d), (a, b, c, d), IO, 0, 1, b * c) \
    X(fgets, char *, (char *a, int b, void *c), (a, b, c), IO, 0, 1) \
    X(getline, ssize_t, (void *a, void *b, void *c), (a, b, c), IO, 0, 1) \
    X(getdelim, ssize_t, (void *a, void *b, int c, void *d), (a, b, c, d), IO, 0, 1) \
    X(fflush, int, (void *a), (a), IO, 0, 1) \
    X(flock, int, (int a, int b), (a, b), LOCK, 0, !(b & 4 /* LOCK_NB */)) \
    X(lockf64, int, (int a, int b, off_t c), (a, b, c), LOCK, 0, b == 1 /* F_LOCK */) \
    X(fcntl64, int, (int a, int b, long c), (a, b, c), LOCK, 0, b == F_SETLKW || b == 38 /* F_OFD_SETLKW */) \
    X(nanosleep, int, (const void *a, void *b), (a, b), SLEEP, 0, 1) \
    X(clock_nanosleep, int, (clockid_t a, int b, const void *c, void *d), (a, b, c, d), SLEEP, 0, 1) \
    X(usleep, int, (useconds_t a), (a), SLEEP, 0, 1) \
    X(sleep, unsigned, (unsigned a), (a), SLEEP, 0, 1) \
    X(pause, int, (void), (), SLEEP, 0, 1) \
    X(sched_yield, int, (void), (), RUN_QUEUE, 0, 1) \
    X(sigwait, int, (const void *a, void *b), (a, b), SLEEP, 0, 1) \
    X(sigwaitinfo, int, (const void *a, void *b), (a, b), SLEEP, 0, 1) \
    X(sigtimedwait, int, (const void *a, void *b, const void *c), (a, b, c), SLEEP, 0, 1) \
    X(sigsuspend, int, (const void *a), (a), SLEEP, 0, 1) \
    X(pthread_join, int, (pthread_t a, void *b), (a, b), LOCK, 0, 1) \
    X(pthread_timedjoin_np, int, (pthread_t a, void *b, const void *c), (a, b, c), LOCK, 0, 1) \
    X(pthread_clockjoin_np, int, (pthread_t a, void *b, clockid_t c, const void *d), (a, b, c, d), LOCK, 0, 1) \
    X(semop, int, (int a, void *b, size_t c), (a, b, c), LOCK, 0, 1) \
    X(semtimedop, int, (int a, void *b, size_t c, const void *d), (a, b, c, d), LOCK, 0, 1) \
    X(msgrcv, ssize_t, (int a, void *b, size_t c, long d, int e), (a, b, c, d, e), IO, 0, 1) \
    X(msgsnd, int, (int a, const void *b, size_t c, int d), (a, b, c, d), IO, 0, 1) \
    X(waitpid, pid_t, (pid_t a, void *b, int c), (a, b, c), CHILD, 0, !(c & WNOHANG)) \
    X(wait, pid_t, (void *a), (a), CHILD, 0, 1) \
    X(wait3, pid_t, (void *a, int b, void *c), (a, b, c), CHILD, 0, !(b & WNOHANG)) \
    X(wait4, pid_t, (pid_t a, void *b, int c, void *d), (a, b, c, d), CHILD, 0, !(c & WNOHANG)) \
    X(waitid, int, (int a, unsigned b, void *c, int d), (a, b, c, d), CHILD, 0, !(d & WNOHANG)) \
    X(system, int, (const char *a), (a), CHILD, 0, 1) \
    X(pclose, int, (void *a), (a), CHILD, 0, 1) \
    X(getaddrinfo, int, (const char *a, const char *b, const void *c, void *d), (a, b, c, d), NAME, 0, 1) \
    X(getnameinfo, int, (const void *a, socklen_t b, char *c, socklen_t d, char *e, socklen_t f, int g), (a, b, c, d, e, f, g), NAME, 0, 1) \
    X(gethostbyname, void *, (const char *a), (a), NAME, 0, 1) \
    X(gethostbyname_r, int, (const char *a, void *b, char *c, size_t d, void *e, int *f), (a, b, c, d, e, f), NAME, 0, 1) \
    X(gethostbyname2_r, int, (const char *a, int b, void *c, char *d, size_t e, void *f, int *g), (a, b, c, d, e, f, g), NAME, 0, 1) \
    X(gethostbyaddr_r, int, (const void *a, socklen_t b, int c, void *d, char *e, size_t f, void *g, int *h), (a, b, c, d, e, f, g, h), \
      NAME, 0, 1) \
    X(getpwnam_r, int, (const char *a, void *b, char *c, size_t d, void *e), (a, b, c, d, e), NAME, 0, 1) \
    X(getpwuid_r, int, (uid_t a, void *b, char *c, size_t d, void *e), (a, b, c, d, e), NAME, 0, 1) \
    X(getgrnam_r, int, (const char *a, void *b, char *c, size_t d, void *e), (a, b, c, d, e), NAME, 0, 1) \
    X(getgrgid_r, int, (gid_t a, void *b, char *c, size_t d, void *e), (a, b, c, d, e), NAME, 0, 1)

// What is tried first, or is more than a call between two clocks. The functions after `dlsym` have no wrapper: they are called.
#define SPECIAL(X) \
    X(pthread_cond_wait) X(pthread_cond_timedwait) X(pthread_cond_clockwait) X(sem_wait) X(sem_timedwait) X(sem_clockwait) \
    X(pthread_mutex_lock) X(pthread_mutex_timedlock) X(pthread_rwlock_rdlock) X(pthread_rwlock_wrlock) X(syscall) \
    X(pthread_mutex_unlock) X(dlsym)
#define CALLED(X) X(pthread_mutex_trylock) X(pthread_rwlock_tryrdlock) X(pthread_rwlock_trywrlock) X(sem_trywait) \
    X(clock_gettime)

#define ID(name, ...) ID_##name,
enum { TABLE(ID, ID) SPECIAL(ID) WRAPPED, BEFORE_CALLED = WRAPPED - 1, CALLED(ID) FUNCTIONS };

// Where libc's functions are. A slot of our own would not do: in an executable that is not position-independent it may have the
// address of that executable's stub, which leads back to us.
static void *real[FUNCTIONS];

// Those that wait for several things at once. Known when this is compiled, like all that is asked of a name here.
#define POLLS(id) \
    ((id) == ID_poll || (id) == ID_ppoll || (id) == ID_select || (id) == ID_pselect || (id) == ID_epoll_wait || \
     (id) == ID_epoll_pwait || (id) == ID_epoll_pwait2)

#define CALL(name, type, parameters, arguments) (((type(*) parameters)real[ID_##name])arguments)

// libc's own: one that is preloaded may wait for a file, and would come back to us without an end.
static inline uint64_t now_of(clockid_t clock)
{
    struct timespec time;
    CALL(clock_gettime, int, (clockid_t a, void *b), (clock, &time));
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
static inline uint64_t now(void) { return now_of(CLOCK_MONOTONIC); }

// Who copies more bytes burns CPU time that the thread's timer may not tell: its clock is read, which costs less than 1 % of that. What
// event loops offer to each `recv` is no more (asyncio 256 KiB, uvloop 256,000), and little of it is used.
#define MANY_BYTES (256 * 1024)

static __attribute__((cold, noinline)) void report(const struct call *call)
{
    int kept = errno;
    waited(&own, call);
    errno = kept;
}

// Waits within waits count once: what the thread's total grew by meanwhile is subtracted.
#define MEASURED(name, type, state, argument, mutex, expression) MEASURED_OF(0, name, type, state, argument, mutex, expression)
#define MEASURED_OF(bytes, name, type, state, argument, mutex, expression) \
    uint64_t before = own.total; \
    const volatile uint64_t *counter = own.expiries; \
    uint64_t expiries = counter ? *counter : 0, handled = counter ? *own.handled : 0; \
    uint64_t cpu = unlikely((bytes) > MANY_BYTES) ? now_of(CLOCK_THREAD_CPUTIME_ID) : 0, start = own.since = now(); \
    own.since_cpu = cpu; \
    type result = expression; \
    uint64_t ended = now(), took = ended - start, inner = own.total - before; \
    if (unlikely(took >= shortest) && took > inner) { \
        if (unlikely(cpu)) cpu = now_of(CLOCK_THREAD_CPUTIME_ID) - cpu; \
        const volatile uint64_t *known = counter == own.expiries ? counter : 0; \
        report(&(struct call){ID_##name, state, POLLS(ID_##name), took - inner, ended, known ? *known - expiries : 0, \
                              known ? *own.handled - handled : 0, cpu, (uint64_t)(argument), mutex, __builtin_return_address(0), \
                              __builtin_frame_address(0)}); \
    } \
    own.since = own.since_cpu = 0; \
    return result;

#define WRAPPER(name, type, parameters, arguments, state, argument, can_wait) \
    static type wrapped_##name parameters \
    { \
        if (unlikely(!on) || !(can_wait)) return CALL(name, type, parameters, arguments); \
        MEASURED(name, type, state, argument, 0, CALL(name, type, parameters, arguments)) \
    }
#define COPYING(name, type, parameters, arguments, state, argument, can_wait, bytes) \
    static type wrapped_##name parameters \
    { \
        if (unlikely(!on) || !(can_wait)) return CALL(name, type, parameters, arguments); \
        MEASURED_OF((uint64_t)(bytes), name, type, state, argument, 0, CALL(name, type, parameters, arguments)) \
    }
TABLE(WRAPPER, COPYING)

#define CONDITION(name, parameters, arguments) \
    static int wrapped_##name parameters \
    { \
        if (unlikely(!on)) return CALL(name, int, parameters, arguments); \
        MEASURED(name, int, LOCK, a, b, CALL(name, int, parameters, arguments)) \
    }
CONDITION(pthread_cond_wait, (void *a, void *b), (a, b))
CONDITION(pthread_cond_timedwait, (void *a, void *b, const void *c), (a, b, c))
CONDITION(pthread_cond_clockwait, (void *a, void *b, clockid_t c, const void *d), (a, b, c, d))

// A lock that is free costs no clock.
#define TRIED(name, try, parameters, arguments) \
    static int wrapped_##name parameters \
    { \
        int tried = CALL(try, int, (void *a), (a)); \
        if (likely(tried != EBUSY)) return tried; \
        if (unlikely(!on)) return CALL(name, int, parameters, arguments); \
        MEASURED(name, int, LOCK, a, a, CALL(name, int, parameters, arguments)) \
    }
TRIED(pthread_mutex_lock, pthread_mutex_trylock, (void *a), (a))
TRIED(pthread_mutex_timedlock, pthread_mutex_trylock, (void *a, const void *b), (a, b))
TRIED(pthread_rwlock_rdlock, pthread_rwlock_tryrdlock, (void *a), (a))
TRIED(pthread_rwlock_wrlock, pthread_rwlock_trywrlock, (void *a), (a))

// A try that fails sets errno; what follows sets it too, or succeeds. A wait is a point of cancellation and a try is none, and a time
// that is none is an error of the wait, whether or not it is free.
#define IS_TIME(time) (((const struct timespec *)(time))->tv_nsec >= 0 && ((const struct timespec *)(time))->tv_nsec < 1000000000)
#define SEMAPHORE(name, parameters, arguments, can_try) \
    static int wrapped_##name parameters \
    { \
        int kept = errno; \
        pthread_testcancel(); \
        if (likely(can_try) && likely(CALL(sem_trywait, int, (void *a), (a)) == 0)) return 0; \
        errno = kept; \
        if (unlikely(!on)) return CALL(name, int, parameters, arguments); \
        MEASURED(name, int, LOCK, a, 0, CALL(name, int, parameters, arguments)) \
    }
SEMAPHORE(sem_wait, (void *a), (a), 1)
SEMAPHORE(sem_timedwait, (void *a, const void *b), (a, b), IS_TIME(b))
SEMAPHORE(sem_clockwait, (void *a, clockid_t b, const void *c), (a, b, c),
          IS_TIME(c) && (b == CLOCK_REALTIME || b == CLOCK_MONOTONIC))

// Variadic in C; here its arguments come as those of any function.
#define SYSCALL CALL(syscall, long, (long n, long a, long b, long c, long d, long e, long f), (n, a, b, c, d, e, f))
static long wrapped_syscall(long n, long a, long b, long c, long d, long e, long f)
{
    int operation = (int)b & FUTEX_CMD_MASK;
    int is_futex = n == SYS_futex && (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET || operation == FUTEX_LOCK_PI);
    if (likely(on) && (is_futex || (n == 426 /* io_uring_enter */ && c > 0))) {
        MEASURED(syscall, long, is_futex ? LOCK : IO, a, 0, SYSCALL)
    }
    return SYSCALL;
}

// A wait for the interpreter's lock ends with that lock's mutex held, which others want: its sample is taken when this thread
// unlocks it, which it does before it runs any code of the program. So is that of a wait at whose end the stack could not be read.
static int wrapped_pthread_mutex_unlock(void *mutex)
{
    // Nobody but this thread keeps its waits, so nothing comes in between.
    if (likely(own.pending_until != mutex) || !mutex) return CALL(pthread_mutex_unlock, int, (void *a), (mutex));
    int result = CALL(pthread_mutex_unlock, int, (void *a), (mutex)), kept = errno;
    unlocked(&own);
    errno = kept;
    return result;
}

// Who just opened a module asks for its functions next. dlsym looks at its caller, so it is jumped to.
__attribute__((used, visibility("hidden"))) void *spanprof_waits_dlsym;
__attribute__((used, visibility("hidden"))) void spanprof_waits_look(void)
{
    if (!on) return;
    int error = errno;
    module_opened();
    errno = error;
}
__attribute__((visibility("hidden"))) void spanprof_waits_dlsym_wrapper(void);
__asm__(".text\n.hidden spanprof_waits_dlsym_wrapper\n.globl spanprof_waits_dlsym_wrapper\n"
        ".type spanprof_waits_dlsym_wrapper,@function\nspanprof_waits_dlsym_wrapper:\n.cfi_startproc\n"
        "push %rdi\n.cfi_adjust_cfa_offset 8\npush %rsi\n.cfi_adjust_cfa_offset 8\nsub $8,%rsp\n.cfi_adjust_cfa_offset 8\n"
        "call spanprof_waits_look\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\npop %rsi\n.cfi_adjust_cfa_offset -8\n"
        "pop %rdi\n.cfi_adjust_cfa_offset -8\njmp *spanprof_waits_dlsym(%rip)\n.cfi_endproc\n"
        ".size spanprof_waits_dlsym_wrapper,.-spanprof_waits_dlsym_wrapper\n");
#define wrapped_dlsym spanprof_waits_dlsym_wrapper

#define NAMED(name, ...) #name,
const char *const spanprof_waits_names[] = {TABLE(NAMED, NAMED) SPECIAL(NAMED) CALLED(NAMED)};
#define ADDRESS(name, ...) (void *)wrapped_##name,
void *const spanprof_waits_wrappers[] = {TABLE(ADDRESS, ADDRESS) SPECIAL(ADDRESS)};
const int spanprof_waits_wrapped = WRAPPED, spanprof_waits_functions = FUNCTIONS;

// Once a process, before any slot is changed.
void spanprof_waits_prepare(void *const *functions, uint64_t shortest_ns, void (*on_wait)(struct block *, const struct call *),
                            void (*on_unlock)(struct block *), void (*on_module)(void))
{
    for (int i = 0; i < FUNCTIONS; i++) real[i] = functions[i];
    spanprof_waits_dlsym = real[ID_dlsym];
    shortest = shortest_ns, waited = on_wait, unlocked = on_unlock, module_opened = on_module;
}

void spanprof_waits_switch(int to) { __atomic_store_n(&on, to, __ATOMIC_RELEASE); }

struct block *spanprof_waits_own(void) { return &own; }
