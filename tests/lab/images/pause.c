/* Holds the namespaces of a pod: sleeps, reaps what is left to it, ends when told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) ; }

int main(void) {
    struct sigaction ending = {.sa_handler = end};
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
    if (sigaction(SIGINT, &ending, 0) || sigaction(SIGTERM, &ending, 0) || sigaction(SIGCHLD, &reaping, 0))
        return 1;
    for (;;)
        pause();
}
