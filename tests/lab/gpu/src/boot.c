/* What a machine has before any driver is loaded: its PCI bus, its modules, its boot id. */
#define _GNU_SOURCE
#include "json.h"
#include "node.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void bind(const char *source, const char *target)
{
    if (mount(source, target, NULL, MS_BIND, NULL))
        fail("cannot bind %s over %s: %s", source, target, strerror(errno));
}

void bind_driver(const char *bdf, const char *driver)
{
    char *old = bound_driver(bdf);
    if (*old)
        unlink(text(PCI_DRIVERS "/%s/%s", old, bdf));
    free(old);
    unlink(text(PCI_DEVICES "/%s/driver", bdf));
    if (!*driver)
        return;
    put_link(text("../../../../bus/pci/drivers/%s", driver), PCI_DEVICES "/%s/driver", bdf);
    put_link(text("../../../../devices/pci0000:00/%s", bdf), PCI_DRIVERS "/%s/%s", driver, bdf);
}

char *bound_driver(const char *bdf)
{
    char target[256] = "";
    ssize_t n = readlink(text(PCI_DEVICES "/%s/driver", bdf), target, sizeof target - 1);
    if (n <= 0)
        return strdup("");
    target[n] = 0;
    return strdup(strrchr(target, '/') + 1);
}

static unsigned hex(const char *value)
{
    return value ? (unsigned)strtoul(value, NULL, 16) : 0;
}

static void pci_device(const char *bdf, unsigned vendor, unsigned device, unsigned subvendor, unsigned subdevice,
                       unsigned class, long long numa)
{
    unsigned char config[64] = {(unsigned char)vendor, (unsigned char)(vendor >> 8), (unsigned char)device,
                                (unsigned char)(device >> 8)};
    config[4] = 0x46, config[6] = 0x10, config[8] = 0xa1;
    config[10] = (unsigned char)(class >> 8), config[11] = (unsigned char)(class >> 16);
    config[44] = (unsigned char)subvendor, config[45] = (unsigned char)(subvendor >> 8);
    config[46] = (unsigned char)subdevice, config[47] = (unsigned char)(subdevice >> 8);
    put_file(text("0x%04x\n", vendor), PCI_DEVICES "/%s/vendor", bdf);
    put_file(text("0x%04x\n", device), PCI_DEVICES "/%s/device", bdf);
    put_file(text("0x%04x\n", subvendor), PCI_DEVICES "/%s/subsystem_vendor", bdf);
    put_file(text("0x%04x\n", subdevice), PCI_DEVICES "/%s/subsystem_device", bdf);
    put_file(text("0x%06x\n", class), PCI_DEVICES "/%s/class", bdf);
    put_file("0xa1\n", PCI_DEVICES "/%s/revision", bdf);
    put_file(text("%lld\n", numa), PCI_DEVICES "/%s/numa_node", bdf);
    put_file("1\n", PCI_DEVICES "/%s/enable", bdf);
    put_file("0\n", PCI_DEVICES "/%s/irq", bdf);
    put_file("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", PCI_DEVICES "/%s/resource", bdf);
    put_file(text("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X\n", vendor, device, subvendor, subdevice,
                  class >> 16 & 0xff, class >> 8 & 0xff, class & 0xff),
             PCI_DEVICES "/%s/modalias", bdf);
    FILE *file = fopen(text(PCI_DEVICES "/%s/config", bdf), "w");
    if (!file || fwrite(config, sizeof config, 1, file) != 1)
        fail("cannot write the PCI config of %s", bdf);
    fclose(file);
}

static void pci_bus(const struct state *s)
{
    put_file(NULL, PCI_DEVICES);
    put_file(NULL, PCI_DRIVERS);
    for (int i = 0; i < state_int(s, 0, "gpus.count"); i++) {
        const char *sub = state_get(s, "gpus.%d.subsystem", i);
        pci_device(state_get(s, "gpus.%d.pci", i), 0x10de, hex(state_get(s, "gpus.%d.device", i)), hex(sub),
                   hex(sub ? strchr(sub, ':') + 1 : NULL), hex(state_get(s, "gpus.%d.class", i)),
                   state_int(s, -1, "gpus.%d.numa", i));
    }
    for (int i = 0; i < state_int(s, 0, "pci.count"); i++) {
        const char *bdf = state_get(s, "pci.%d.pci", i), *driver = state_get(s, "pci.%d.driver", i);
        pci_device(bdf, hex(state_get(s, "pci.%d.vendor", i)), hex(state_get(s, "pci.%d.device", i)), 0, 0,
                   hex(state_get(s, "pci.%d.class", i)), state_int(s, -1, "pci.%d.numa", i));
        if (driver)
            bind_driver(bdf, driver);
    }
}

/* /sys/module with the machine's own entries behind links, and room for ours. */
static void modules(void)
{
    static const char real[] = STATE_DIR "/sys-module.machine";
    put_file(NULL, real);
    put_file(NULL, SYS_MODULE);
    bind("/sys/module", real);
    DIR *folder = opendir(real);
    if (!folder)
        fail("cannot read /sys/module: %s", strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));)
        if (*entry->d_name != '.')
            put_link(text("%s/%s", real, entry->d_name), SYS_MODULE "/%s", entry->d_name);
    closedir(folder);
}

static int blacklisted(const char *module)
{
    char command[256];
    snprintf(command, sizeof command,
             "cat /etc/modprobe.d/*.conf /run/modprobe.d/*.conf /lib/modprobe.d/*.conf 2>/dev/null"
             " | grep -qE '^[[:space:]]*blacklist[[:space:]]+%s[[:space:]]*$'",
             module);
    int status = system(command);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What udev does on a machine: the drivers whose aliases match. */
static void autoload(struct state *s)
{
    if (!state_int(s, 0, "gpus.count"))
        return;
    if (state_int(s, 0, "nouveau") && !blacklisted("nouveau")) {
        put_file("live\n", SYS_MODULE "/nouveau/initstate");
        put_file("1\n", SYS_MODULE "/nouveau/refcnt");
        for (int i = 0; i < state_int(s, 0, "gpus.count"); i++)
            bind_driver(state_get(s, "gpus.%d.pci", i), "nouveau");
        kernel_log("nouveau: detected an NVIDIA GPU");
    }
    if (module_file("nvidia") && !blacklisted("nvidia"))
        load_module("nvidia");
}

int boot(const char *config)
{
    struct state s;
    struct stat done;
    size_t mistake, size;
    char *flat;
    if (!stat(STATE_FILE, &done))
        fail("already booted: %s exists", STATE_FILE);
    char *json = read_text(config);
    if (!json)
        fail("cannot read %s: %s", config, strerror(errno));
    FILE *out = open_memstream(&flat, &size);
    fprintf(out, "lab-gpus 0\n");
    if (json_flatten(json, out, &mistake))
        fail("%s is not JSON at byte %zu", config, mistake);
    fprintf(out, "end 0\n");
    fclose(out);
    put_file("", KERNEL_LOG);
    put_file(flat, STATE_FILE);

    state_take(&s);
    pci_bus(&s);
    modules();
    bind(PCI_DEVICES, "/sys/bus/pci/devices");
    bind(PCI_DRIVERS, "/sys/bus/pci/drivers");
    bind(SYS_MODULE, "/sys/module");
    if (mount("tmpfs", "/proc/driver", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"))
        fail("cannot mount over /proc/driver: %s", strerror(errno));
    put_file(read_text("/proc/devices"), PROC_DEVICES);
    bind(PROC_DEVICES, "/proc/devices");
    put_file(read_text("/proc/sys/kernel/random/uuid"), STATE_DIR "/boot_id");
    bind(STATE_DIR "/boot_id", "/proc/sys/kernel/random/boot_id");
    state_set(&s, "", "driver.modules");
    state_put(&s);
    autoload(&s);
    return 0;
}
