/* nvidia-modprobe, setuid root: any user who needs the driver gets its modules loaded. -u: nvidia-uvm too,
 * -m: nvidia-modeset. Other options name device nodes, which come with the modules here. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int load(const char *module)
{
    int status = 1;
    pid_t child = fork();
    if (!child) {
        char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        if (setuid(0))
            _exit(1);
        execle("/sbin/modprobe", "modprobe", "-q", module, (char *)NULL, environment);
        _exit(1);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    int failed = load("nvidia");
    for (int i = 1; i < argc && !failed; i++) {
        if (!strcmp(argv[i], "-u") || !strcmp(argv[i], "--unified-memory"))
            failed = load("nvidia-uvm");
        if (!strcmp(argv[i], "-m") || !strcmp(argv[i], "--modeset"))
            failed = load("nvidia-modeset");
    }
    return failed;
}
