/* Waits for a condition as the first libc of this processor had it: a word, where later ones have six. Bound as it is used first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

__asm__(".symver pthread_cond_wait,pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_timedwait,pthread_cond_timedwait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_signal,pthread_cond_signal@GLIBC_2.2.5");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { void *condition, *beyond[5]; } old;
static int waits, comes;

static void *sets(void *to)
{
    pthread_mutex_lock(&mutex);
    *(int *)to = 1;
    pthread_cond_signal((void *)&old);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* 0: each wait ended as it was told to, and what lies beyond the condition is as it was. */
int waits_as_it_did(void)
{
    pthread_t thread;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    for (int turn = 0; turn < 2; turn++) {
        int *flag = turn ? &comes : &waits, failed = 0;
        pthread_mutex_lock(&mutex);
        if (pthread_create(&thread, NULL, sets, flag)) return __LINE__;
        while (!*flag && !failed)
            failed = turn ? pthread_cond_wait((void *)&old, &mutex) : pthread_cond_timedwait((void *)&old, &mutex, &until);
        pthread_mutex_unlock(&mutex);
        pthread_join(thread, NULL);
        if (failed) return __LINE__;
    }
    for (int word = 0; word < 5; word++)
        if (old.beyond[word]) return __LINE__;
    return 0;
}
