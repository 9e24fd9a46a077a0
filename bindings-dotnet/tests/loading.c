/* Two libraries. Compiled with SLOW: one whose constructor, and with it ld.so's lock, waits for a file. Without: what forks. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SLOW
__attribute__((constructor)) static void wait_for_the_file(void) {
    struct stat file;
    char began[4096];
    const char *path = getenv("LOADING_DONE");
    snprintf(began, sizeof began, "%s.began", path);
    fclose(fopen(began, "w"));
    for (int time = 0; stat(path, &file) != 0; time++) {
        if (time == 20000) {
            fputs("nobody wrote the file: something waits for ld.so\n", stderr);
            _exit(3);
        }
        usleep(1000);
    }
}
#else
int loading_fork(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, &status, 0);
    return status;
}
#endif
