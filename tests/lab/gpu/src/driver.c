#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef VERSION
#error "VERSION: the driver version, as a string; CUDA: what it supports, e.g. 13000"
#endif

const char *at(const char *path)
{
    static __thread char full[512];
    const char *root = getenv("LAB_GPUS");
    snprintf(full, sizeof full, "%s%s", root ? root : "", path);
    return full;
}

int driver_state(struct state *s)
{
    return state_read(s, at(STATE_FILE)) && state_read(s, "/lib/firmware/nvidia/" VERSION "/gsp_lab.bin");
}

int may_open(const char *path)
{
    int fd = open(at(path), O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

int hold(const char *path)
{
    return open(at(path), O_PATH | O_CLOEXEC); /* needs no driver behind the node */
}

int hold_gpu(const struct state *s, int gpu)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%lld", state_int(s, -1, "gpus.%d.minor", gpu));
    return hold(path);
}

int gpu_visible(const struct state *s, int gpu)
{
    char path[64];
    long long minor = state_int(s, -1, "gpus.%d.minor", gpu);
    snprintf(path, sizeof path, "/dev/nvidia%lld", minor);
    return minor >= 0 && may_open(path);
}

int mig_visible(const struct state *s, int gpu, int mig)
{
    char path[64];
    long long minor = state_int(s, 0, "gpus.%d.minor", gpu);
    long long gi = state_int(s, 0, "gpus.%d.mig.devices.%d.gi", gpu, mig);
    long long ci = state_int(s, 0, "gpus.%d.mig.devices.%d.ci", gpu, mig);
    long long node = 3 + (minor * 15 + gi) * 9; /* the numbering of /proc/driver/nvidia-caps/mig-minors */
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%lld", node);
    if (!may_open(path))
        return 0;
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%lld", node + 1 + ci);
    return may_open(path);
}

/* A name for the state, whose keys are short: FNV-1a. */
unsigned long long cgroup_key(const char *cgroup)
{
    unsigned long long hash = 0xcbf29ce484222325;
    for (; *cgroup; cgroup++)
        hash = (hash ^ (unsigned char)*cgroup) * 0x100000001b3;
    return hash;
}

unsigned long long cgroup_number(const char *cgroup)
{
    struct stat folder;
    return stat(cgroup, &folder) ? 0 : folder.st_ino;
}

void cgroup_limits(const struct state *s, int gpu, unsigned long long name, unsigned long long *soft, unsigned long long *hard)
{
    const char *value = state_get(s, "gpus.%d.limits.%llx", gpu, name);
    *soft = 0;
    *hard = ~0ULL;
    if (value)
        sscanf(value, "%llu,%llu", soft, hard);
}
