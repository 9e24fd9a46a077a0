// A thread without the interpreter's lock that then wants it, and one that keeps it.
#define _POSIX_C_SOURCE 200809L
#include <time.h>

static void rest(long ns)
{
    struct timespec length = {ns / 1000000000, ns % 1000000000};
    nanosleep(&length, 0);
}

// To be called without the lock: when it was wanted, by CLOCK_MONOTONIC.
long long wanted_after(long ns)
{
    struct timespec now;
    rest(ns);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// To be called with it.
void keep_for(long ns)
{
    rest(ns);
}
