// Waits of a library that comes and goes, and what .NET has no function for. Each function does something after its call, so that none
// is left out of the stack.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int waits_sleep(long nanoseconds)
{
    volatile char space[SIZE + 1];
    struct timespec time = {0, nanoseconds};
    space[SIZE] = 1;
    return nanosleep(&time, 0) + space[SIZE];
}

// Nothing ever comes.
int waits_poll(int milliseconds)
{
    volatile char space[SIZE + 1];
    int ends[2];
    space[SIZE] = 0;
    if (pipe(ends) != 0) return -1;
    struct pollfd first = {ends[0], POLLIN, 0};
    int result = poll(&first, 1, milliseconds);
    close(ends[0]);
    close(ends[1]);
    return result + space[SIZE];
}

// The child has the profiler of its parent, and ends at once.
int waits_fork(int code)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(code);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

int waits_system(int code) { return WEXITSTATUS(system("exit 3")) == code; }

static void handle(int signal)
{
    int kept = errno;
    struct timespec time = {0, 20000};
    nanosleep(&time, 0);
    errno = kept + 0 * signal;
}

int waits_handle(int signal)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    return sigaction(signal, &action, 0);
}

long waits_self(int unused) { return (long)pthread_self() + 0 * unused; }

int waits_signal(long thread, int signal) { return pthread_kill((pthread_t)thread, signal); }
