/* What both user-space libraries ask "the kernel": its state, and what this process may open. */
#ifndef LAB_DRIVER_H
#define LAB_DRIVER_H
#include "state.h"

#define EXPORT __attribute__((visibility("default")))
enum { GPUS = 64, MIGS = 16 };

/* The path below the folder LAB_GPUS, where a program's environment has one: it needs no host then. Until the next call. */
const char *at(const char *path);
/* The node's state; in a container, where /run is another one, from the mount that every container has:
 * the toolkit mounts all files gsp*.bin of the driver's version. */
int driver_state(struct state *s);
/* Whether this process may open a device node. One without a driver behind it says ENXIO: that is allowed. */
int may_open(const char *path);
/* Holds a device node open for the rest of the world to see (/proc/PID/fd); close() ends it. */
int hold(const char *path);
int hold_gpu(const struct state *s, int gpu);
/* Whether it may open the GPU (configuration number), and both capability nodes of a MIG device. */
int gpu_visible(const struct state *s, int gpu);
int mig_visible(const struct state *s, int gpu, int mig);
/* Names of a cgroup, by its folder below /sys/fs/cgroup: of its path, and of the folder itself, as a cgroup namespace shows it, too. */
unsigned long long cgroup_key(const char *cgroup);
unsigned long long cgroup_number(const char *cgroup);
/* Memory limits in bytes of a cgroup, by one of its names; 0 and all ones where it has none. */
void cgroup_limits(const struct state *s, int gpu, unsigned long long name, unsigned long long *soft, unsigned long long *hard);
#endif
