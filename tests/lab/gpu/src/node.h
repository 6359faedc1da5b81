/* What lab-gpu.c, kernel.c and boot.c share: the node's state for writing, files, the kernel log. */
#ifndef LAB_NODE_H
#define LAB_NODE_H
#include "state.h"

#include <sys/types.h>

#define PROC_DEVICES STATE_DIR "/proc-devices"
#define KERNEL_LOG STATE_DIR "/kernel.log"
#define SYS_MODULE STATE_DIR "/sys-module"
#define PCI_DEVICES STATE_DIR "/pci-devices"
#define PCI_DRIVERS STATE_DIR "/pci-drivers"

/* A change of the state: take() locks and reads, set()/unset() change, put() writes in place and unlocks. */
void state_take(struct state *s);
void state_set(struct state *s, const char *value, const char *key, ...) __attribute__((format(printf, 3, 4)));
void state_unset(struct state *s, const char *prefix);
void state_put(struct state *s);

/* Makes parent folders; NULL text makes a folder. Failure ends the program with a message. */
void put_file(const char *text, const char *path, ...) __attribute__((format(printf, 2, 3)));
void put_link(const char *target, const char *path, ...) __attribute__((format(printf, 2, 3)));
void put_node(const char *path, unsigned major, unsigned minor, mode_t mode);
void remove_tree(const char *path, ...) __attribute__((format(printf, 1, 2)));
char *read_text(const char *path);
char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
/* One line of the node's stand-in kernel log, which the node's `dmesg` shows. */
void kernel_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

int boot(const char *config);
int load_module(const char *name);
int unload_module(const char *name);
/* MIG: the table of capability minors, and a node for each instance that the state has. */
void show_capabilities(const struct state *s);
int loaded(const struct state *s, const char *module);
/* The driver that owns a PCI device ("" for none), as sysfs shows it. */
void bind_driver(const char *bdf, const char *driver);
char *bound_driver(const char *bdf);
/* Path of a module's file for the running kernel, or NULL. */
char *module_file(const char *name);
#endif
