/* Loading and unloading of the nvidia modules, as far as anybody outside the kernel can see it. */
#define _GNU_SOURCE
#include "node.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { MAJOR_NVIDIA = 195, MAJOR_UVM = 508, MAJOR_CAPS = 509, GI_MAX = 15, CI_MAX = 8 };

static const struct {
    const char *module, *needs;
} MODULES[] = {
    {"nvidia", NULL}, {"nvidia_uvm", "nvidia"}, {"nvidia_modeset", "nvidia"}, {"nvidia_drm", "nvidia_modeset"},
    {"nvidia_peermem", "nvidia"},
};
enum { MODULE_COUNT = sizeof MODULES / sizeof *MODULES };

static int module_index(const char *name)
{
    char plain[64];
    snprintf(plain, sizeof plain, "%s", name);
    for (char *c = plain; *c; c++)
        if (*c == '-')
            *c = '_';
    for (int i = 0; i < MODULE_COUNT; i++)
        if (!strcmp(MODULES[i].module, plain))
            return i;
    return -1;
}

/* Debian's own driver has files of other names; its modprobe.d says which: "install nvidia-drm …; modprobe -i NAME …". */
static void renamed(char *name, size_t size)
{
    char *lines = read_text("/etc/modprobe.d/nvidia.conf"), *start = text("install %s ", name);
    for (char *line = lines ? strtok(lines, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        char *file = strncmp(line, start, strlen(start)) ? NULL : strstr(line, "modprobe -i ");
        if (file)
            snprintf(name, size, "%.*s", (int)strcspn(file + 12, " "), file + 12);
    }
    free(lines);
    free(start);
}

char *module_file(const char *name)
{
    static const char *const folders[] = {"updates/dkms", "updates", "extra", "kernel/drivers/video"};
    struct utsname kernel;
    uname(&kernel);
    char plain[64];
    snprintf(plain, sizeof plain, "%s", name);
    for (char *c = plain; *c; c++)
        if (*c == '_')
            *c = '-';
    renamed(plain, sizeof plain);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = text("/lib/modules/%s/%s/%s.ko", kernel.release, folders[i], plain);
        if (!access(path, R_OK))
            return path;
        free(path);
    }
    return NULL;
}

/* A field of the file's .modinfo section ("" when it is missing). */
static char *modinfo(const char *path, const char *field)
{
    char *found = strdup(""), *content = calloc(1, 1 << 20);
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(content, 1, (1 << 20) - 1, file) : 0, length = strlen(field);
    if (file)
        fclose(file);
    for (size_t i = 0; i + length + 1 < size; i++)
        if ((!i || !content[i - 1]) && !strncmp(content + i, field, length) && content[i + length] == '=')
            return strdup(content + i + length + 1);
    free(content);
    return found;
}

int loaded(const struct state *s, const char *module)
{
    const char *list = state_get(s, "driver.modules");
    char *padded = text(" %s ", list ? list : "");
    int found = strstr(padded, text(" %s ", module)) != NULL;
    free(padded);
    return found;
}

static int users(const struct state *s, const char *module)
{
    int count = 0;
    for (int i = 0; i < MODULE_COUNT; i++)
        if (MODULES[i].needs && !strcmp(MODULES[i].needs, module) && loaded(s, MODULES[i].module))
            count++;
    return count;
}

/* Processes of the node, those in its containers too, that hold the driver's device nodes open. */
static int holders(void)
{
    int count = 0;
    char target[64];
    DIR *proc = opendir("/proc");
    for (struct dirent *process; proc && (process = readdir(proc));) {
        if (!isdigit((unsigned char)*process->d_name))
            continue;
        char *path = text("/proc/%s/fd", process->d_name);
        DIR *files = opendir(path);
        for (struct dirent *file; files && (file = readdir(files));) {
            ssize_t n = readlinkat(dirfd(files), file->d_name, target, sizeof target - 1);
            target[n > 0 ? n : 0] = 0;
            if (!strncmp(target, "/dev/nvidia", strlen("/dev/nvidia"))) {
                count++;
                break;
            }
        }
        if (files)
            closedir(files);
        free(path);
    }
    if (proc)
        closedir(proc);
    return count;
}

static void show_users(const struct state *s)
{
    for (int i = 0; i < MODULE_COUNT; i++)
        if (loaded(s, MODULES[i].module))
            put_file(text("%d\n", users(s, MODULES[i].module)), SYS_MODULE "/%s/refcnt", MODULES[i].module);
}

static void show_module(const struct state *s, const char *module, const char *version, int open_flavour)
{
    put_file("live\n", SYS_MODULE "/%s/initstate", module);
    put_file(text("%s\n", version), SYS_MODULE "/%s/version", module);
    put_file(open_flavour ? "OE\n" : "POE\n", SYS_MODULE "/%s/taint", module);
    show_users(s);
}

static void devices_list(void)
{
    char *now = read_text(PROC_DEVICES), *block = now ? strstr(now, "\nBlock devices:") : NULL;
    if (!block || strstr(now, "nvidia-caps"))
        return;
    *block++ = 0;
    put_file(text("%s%3d nvidia\n%3d nvidia-modeset\n%3d nvidiactl\n%3d nvidia-uvm\n%3d nvidia-caps\n\n%s", now,
                  MAJOR_NVIDIA, MAJOR_NVIDIA, MAJOR_NVIDIA, MAJOR_UVM, MAJOR_CAPS, block),
             PROC_DEVICES);
}

static void capability(const char *name, int minor)
{
    put_file(text("DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: 1\n", minor),
             "/proc/driver/nvidia/capabilities/%s", name);
    put_node(text("/dev/nvidia-caps/nvidia-cap%d", minor), MAJOR_CAPS, (unsigned)minor, 0444);
}

static int gi_minor(int gpu, int gi)
{
    return 3 + (gpu * GI_MAX + gi) * (1 + CI_MAX);
}

void show_capabilities(const struct state *s)
{
    remove_tree("/proc/driver/nvidia/capabilities");
    remove_tree("/dev/nvidia-caps");
    char *table;
    size_t size;
    FILE *out = open_memstream(&table, &size);
    fprintf(out, "config 1\nmonitor 2\n");
    capability("mig/config", 1);
    capability("mig/monitor", 2);
    for (int g = 0; g < state_int(s, 0, "gpus.count"); g++) {
        int minor = (int)state_int(s, -1, "gpus.%d.minor", g);
        if (minor < 0)
            continue;
        for (int gi = 0; gi < GI_MAX; gi++) {
            fprintf(out, "gpu%d/gi%d/access %d\n", minor, gi, gi_minor(minor, gi));
            for (int ci = 0; ci < CI_MAX; ci++)
                fprintf(out, "gpu%d/gi%d/ci%d/access %d\n", minor, gi, ci, gi_minor(minor, gi) + 1 + ci);
        }
        for (int m = 0; m < state_int(s, 0, "gpus.%d.mig.devices.count", g); m++) {
            int gi = (int)state_int(s, 0, "gpus.%d.mig.devices.%d.gi", g, m);
            int ci = (int)state_int(s, 0, "gpus.%d.mig.devices.%d.ci", g, m);
            capability(text("gpu%d/mig/gi%d/access", minor, gi), gi_minor(minor, gi));
            capability(text("gpu%d/mig/gi%d/ci%d/access", minor, gi, ci), gi_minor(minor, gi) + 1 + ci);
        }
    }
    fclose(out);
    put_file(table, "/proc/driver/nvidia-caps/mig-minors");
}

static void show_gpu(const struct state *s, int gpu, int minor, const char *version, int open_flavour)
{
    const char *bdf = state_get(s, "gpus.%d.pci", gpu);
    put_file(text("Model: \t\t %s\nIRQ:   \t\t 0\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\n"
                  "DMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\n"
                  "GPU Firmware: \t %s\nGPU Excluded:\t No\n",
                  state_get(s, "gpus.%d.name", gpu), state_get(s, "gpus.%d.uuid", gpu),
                  state_get(s, "gpus.%d.vbios", gpu), bdf, minor, open_flavour ? version : "N/A"),
             "/proc/driver/nvidia/gpus/%s/information", bdf);
    put_node(text("/dev/nvidia%d", minor), MAJOR_NVIDIA, (unsigned)minor, 0666);
    bind_driver(bdf, "nvidia");
}

static int supported(const struct state *s, int gpu, const char *version, int open_flavour)
{
    const char *bdf = state_get(s, "gpus.%d.pci", gpu), *device = state_get(s, "gpus.%d.device", gpu);
    long long branch = atoi(version), last = state_int(s, 0, "gpus.%d.branch_max", gpu);
    if (open_flavour ? !state_int(s, 0, "gpus.%d.open", gpu) : !state_int(s, 1, "gpus.%d.proprietary", gpu)) {
        kernel_log("NVRM: The NVIDIA GPU %s (PCI ID: 10de:%s)", bdf, device);
        kernel_log(open_flavour ? "NVRM: installed in this system is not supported by open"
                                : "NVRM: installed in this system requires use of the NVIDIA open kernel modules.");
        if (open_flavour) {
            kernel_log("NVRM: nvidia.ko because it does not include the required GPU");
            kernel_log("NVRM: System Processor (GSP).");
        }
    } else if (branch < state_int(s, 0, "gpus.%d.branch_min", gpu) || (last && branch > last)) {
        kernel_log("NVRM: The NVIDIA GPU %s (PCI ID: 10de:%s)", bdf, device);
        kernel_log("NVRM: installed in this system is not supported by the");
        kernel_log("NVRM: NVIDIA %s driver release.", version);
    } else {
        return 1;
    }
    kernel_log("nvidia: probe of %s failed with error -1", bdf);
    return 0;
}

/* The probe of the nvidia module: the GPUs that it takes, in bus order. 0 when it takes none. */
static int probe(struct state *s, const char *version, int open_flavour)
{
    int minor = 0, foreign = 0, failed = 0;
    for (int i = 0; i < state_int(s, 0, "gpus.count"); i++) {
        char *owner = bound_driver(state_get(s, "gpus.%d.pci", i));
        state_unset(s, text("gpus.%d.minor", i));
        if (*owner)
            foreign++;
        else if (!supported(s, i, version, open_flavour))
            failed++;
        else {
            state_set(s, text("%d", minor), "gpus.%d.minor", i);
            show_gpu(s, i, minor++, version, open_flavour);
        }
    }
    if (foreign)
        kernel_log("NVRM: The NVIDIA probe routine was not called for %d device(s).", foreign);
    if (failed)
        kernel_log("NVRM: The NVIDIA probe routine failed for %d device(s).", failed);
    if (!minor)
        kernel_log(foreign + failed ? "NVRM: None of the NVIDIA devices were initialized." : "NVRM: No NVIDIA GPU found.");
    return minor;
}

static void show_driver(const char *version, int open_flavour)
{
    char *line = open_flavour ? text("NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (lab@lab)  ", version)
                              : text("NVIDIA UNIX x86_64 Kernel Module  %s  ", version);
    put_file(text("NVRM version: %sSat Nov 21 00:00:00 UTC 2026\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n",
                  line),
             "/proc/driver/nvidia/version");
    /* ModifyDeviceFiles 0: else the toolkit mounts over a container's own /proc/driver/nvidia/params, which is not there */
    put_file("EnableMSI: 1\nModifyDeviceFiles: 0\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
             "InitializeSystemMemoryAllocations: 1\nRmProfilingAdminOnly: 1\n",
             "/proc/driver/nvidia/params");
    put_file("Binary: \"\"\n", "/proc/driver/nvidia/registry");
    put_node("/dev/nvidiactl", MAJOR_NVIDIA, 255, 0666);
    devices_list();
    kernel_log("NVRM: loading %sSat Nov 21 00:00:00 UTC 2026", line);
}

/* udev's part: the rules that come with the driver load the other modules when a GPU is bound to nvidia. */
static void run_udev_rules(void)
{
    static const char *const more[] = {"nvidia_modeset", "nvidia_drm", "nvidia_uvm"};
    if (!access("/usr/lib/udev/rules.d/60-nvidia.rules", R_OK))
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            load_module(more[i]);
}

int load_module(const char *name)
{
    struct state s;
    struct utsname kernel;
    int index = module_index(name);
    if (index < 0)
        fail("%s is not a module of the NVIDIA driver", name);
    const char *module = MODULES[index].module;
    char *file = module_file(module);
    uname(&kernel);
    if (!file) {
        fprintf(stderr, "modprobe: FATAL: Module %s not found in directory /lib/modules/%s\n", name, kernel.release);
        return 1;
    }
    if (MODULES[index].needs && load_module(MODULES[index].needs))
        return 1;
    char *version = modinfo(file, "version"), *magic = modinfo(file, "vermagic");
    int open_flavour = !strcmp(modinfo(file, "license"), "Dual MIT/GPL");
    state_take(&s);
    if (loaded(&s, module)) {
        state_put(&s);
        return 0;
    }
    if (strncmp(magic, kernel.release, strlen(kernel.release))) {
        kernel_log("%s: version magic '%s' should be '%s SMP preempt mod_unload '", module, magic, kernel.release);
        fprintf(stderr, "modprobe: ERROR: could not insert '%s': Exec format error\n", name);
        return 1;
    }
    const char *driver = state_get(&s, "driver.version");
    if (index && driver && strcmp(driver, version)) {
        kernel_log("%s: disagrees about version of symbol nvidia_get_rm_ops", module);
        fprintf(stderr, "modprobe: ERROR: could not insert '%s': Invalid argument\n", name);
        return 1;
    }
    if (!index) {
        if (!probe(&s, version, open_flavour)) {
            fprintf(stderr, "modprobe: ERROR: could not insert 'nvidia': No such device\n");
            return 1;
        }
        show_driver(version, open_flavour);
        state_set(&s, version, "driver.version");
        state_set(&s, open_flavour ? "open" : "proprietary", "driver.flavour");
        show_capabilities(&s);
    } else if (!strcmp(module, "nvidia_uvm")) {
        put_node("/dev/nvidia-uvm", MAJOR_UVM, 0, 0666);
        put_node("/dev/nvidia-uvm-tools", MAJOR_UVM, 1, 0666);
    } else if (!strcmp(module, "nvidia_modeset")) {
        put_node("/dev/nvidia-modeset", MAJOR_NVIDIA, 254, 0666);
    }
    const char *list = state_get(&s, "driver.modules");
    state_set(&s, text("%s%s%s", list ? list : "", list && *list ? " " : "", module), "driver.modules");
    show_module(&s, module, version, open_flavour);
    state_put(&s);
    if (!index)
        run_udev_rules();
    return 0;
}

static void remove_nodes(const char *prefix)
{
    DIR *folder = opendir("/dev");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (!strncmp(entry->d_name, prefix, strlen(prefix)))
            remove_tree("/dev/%s", entry->d_name);
    if (folder)
        closedir(folder);
}

int unload_module(const char *name)
{
    struct state s;
    int index = module_index(name);
    if (index < 0)
        fail("%s is not a module of the NVIDIA driver", name);
    const char *module = MODULES[index].module;
    state_take(&s);
    if (!loaded(&s, module))
        return 0; /* as modprobe without --first-time */
    if (users(&s, module) || (index == 0 && holders())) {
        fprintf(stderr, "modprobe: FATAL: Module %s is in use.\n", name);
        return 1;
    }
    char *left = strdup("");
    for (int i = 0; i < MODULE_COUNT; i++)
        if (i != index && loaded(&s, MODULES[i].module))
            left = text("%s%s%s", left, *left ? " " : "", MODULES[i].module);
    state_set(&s, left, "driver.modules");
    remove_tree(SYS_MODULE "/%s", module);
    if (!index) {
        state_unset(&s, "driver.version");
        state_unset(&s, "driver.flavour");
        for (int i = 0; i < state_int(&s, 0, "gpus.count"); i++) {
            if (state_get(&s, "gpus.%d.minor", i))
                bind_driver(state_get(&s, "gpus.%d.pci", i), "");
            state_unset(&s, text("gpus.%d.minor", i));
        }
        remove_tree("/proc/driver/nvidia");
        remove_tree("/proc/driver/nvidia-caps");
        remove_nodes("nvidia");
    } else if (!strcmp(module, "nvidia_uvm")) {
        remove_nodes("nvidia-uvm");
    } else if (!strcmp(module, "nvidia_modeset")) {
        remove_nodes("nvidia-modeset");
    }
    show_users(&s);
    state_put(&s);
    return 0;
}
