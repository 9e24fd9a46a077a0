// Calls of libc, as many as are asked for: ones that could wait, ones that cannot, and a mutex that nobody else wants.
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

static int pair[2];

int prepare(void)
{
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || fcntl(pair[0], F_SETFL, O_NONBLOCK);
}

void could_wait(long times)
{
    char byte;
    while (times--) recv(pair[0], &byte, 1, 0);
}

void cannot_wait(long times)
{
    char byte;
    while (times--) recv(pair[0], &byte, 1, MSG_DONTWAIT);
}

void mutex(long times)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    while (times--) pthread_mutex_lock(&mutex), pthread_mutex_unlock(&mutex);
}
