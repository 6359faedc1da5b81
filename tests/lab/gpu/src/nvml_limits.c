/* Memory limits of cgroups, as drivers from R615 on have them. Kept in the node's state, which lab-gpu writes. */
#define _GNU_SOURCE
#include "nvml_internal.h"

#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#if CUDA >= 13040
extern char **environ;

static int keep(const struct device *d, u64 name, u64 soft, u64 hard)
{
    char key[128], value[64];
    snprintf(key, sizeof key, "gpus.%d.limits.%llx", d->gpu, name);
    snprintf(value, sizeof value, "%llu,%llu", soft, hard);
    char *set[] = {"lab-gpu", "set", key, value, NULL};
    pid_t child;
    int status;
    return posix_spawn(&child, "/usr/local/sbin/lab-gpu", NULL, NULL, set, environ) || waitpid(child, &status, 0) < 0 || status;
}

/* The real one takes a cgroup's folder; only cgroup v2 has this file in each. */
static int is_cgroup(const char *path)
{
    char file[4096];
    snprintf(file, sizeof file, "%s/cgroup.controllers", path);
    return !access(file, F_OK);
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, const nvmlSetMemoryLimits_v1_t *limits)
{
    OPEN(enter_gpu, d);
    NEED(limits && limits->nameSpace && is_cgroup(limits->nameSpace) && limits->softLimit <= limits->hardLimit);
    if (geteuid())
        return NVML_ERROR_NO_PERMISSION;
    for (int n = 0; n < 2; n++)
        if (keep(d, (n ? cgroup_key : cgroup_number)(limits->nameSpace), limits->softLimit, limits->hardLimit))
            return NVML_ERROR_UNKNOWN;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, nvmlGetMemoryLimits_v1_t *limits)
{
    OPEN(enter_gpu, d);
    NEED(limits && limits->nameSpace && is_cgroup(limits->nameSpace));
    cgroup_limits(&s, d->gpu, cgroup_key(limits->nameSpace), &limits->softLimit, &limits->hardLimit);
    limits->currentUsed = 0;
    return NVML_SUCCESS;
}
#endif
