// What a pod's sandbox runs: nothing, until it is ended.
#include <signal.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;)
        pause();
}
