/* nvidia-persistenced: loads the driver, then only is there, with a socket and a pid file, until SIGTERM. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#define FOLDER "/var/run/nvidia-persistenced"

static int start(void)
{
    struct sockaddr_un address = {AF_UNIX, FOLDER "/socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    mkdir(FOLDER, 0755);
    unlink(address.sun_path);
    return bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1) || chmod(address.sun_path, 0666);
}

/* Whether the loaded module is of this program's version. */
static int fits(void)
{
    char version[64] = "";
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (!file)
        return 0;
    int read = fscanf(file, "%63s", version);
    fclose(file);
    return read == 1 && !strcmp(version, VERSION);
}

int main(int argc, char **argv)
{
    const struct passwd *user = NULL;
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--user"))
            user = getpwnam(argv[i + 1]);
    char *const load[] = {"nvidia-modprobe", NULL};
    pid_t child = fork();
    if (!child) {
        execv("/usr/bin/nvidia-modprobe", load);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    if (access("/dev/nvidiactl", F_OK) || !fits() || start()) {
        syslog(LOG_ERR, "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist.");
        fprintf(stderr, "nvidia-persistenced failed to initialize. Check syslog for more details.\n");
        return 1;
    }
    if (daemon(0, 0))
        return 1;
    glob_t nodes = {0};
    glob("/dev/nvidia[0-9c]*", 0, NULL, &nodes);
    for (size_t i = 0; i < nodes.gl_pathc; i++)
        open(nodes.gl_pathv[i], O_PATH); /* held, for the rest of the world to see */
    FILE *file = fopen(FOLDER "/nvidia-persistenced.pid", "w");
    if (file) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
    if (user && (setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid)))
        return 1;
    sigset_t wanted;
    int caught;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    sigwait(&wanted, &caught);
    unlink(FOLDER "/socket");
    return 0;
}
