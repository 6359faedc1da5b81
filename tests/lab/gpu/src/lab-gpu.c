/* lab-gpu: the lab node's stand-in for what a kernel does about NVIDIA GPUs.
 *
 *   lab-gpu boot                    at each start of the node, before everything that looks
 *   lab-gpu load|unload MODULE      called by modprobe
 *   lab-gpu xid GPU NUMBER [GI CI]  the driver reports an Xid of the GPU (number as in /etc/lab-gpus.json), or of
 *                                   one of its MIG instances
 *   lab-gpu set KEY VALUE           change the state, e.g. `set gpus.0.lost 1`
 *   lab-gpu unset KEY               forget a key and everything below it
 *   lab-gpu show                    print the state
 */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static int lock = -1;

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "lab-gpu: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

char *text(const char *format, ...)
{
    char *result;
    va_list args;
    va_start(args, format);
    if (vasprintf(&result, format, args) < 0)
        fail("out of memory");
    va_end(args);
    return result;
}

char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return NULL;
    char *content = calloc(1, 1 << 20);
    size_t n = fread(content, 1, (1 << 20) - 1, file);
    content[n] = 0;
    fclose(file);
    return content;
}

static void make_parents(const char *path)
{
    char *copy = strdup(path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            fail("cannot make %s: %s", copy, strerror(errno));
        *slash = '/';
    }
    free(copy);
}

void put_file(const char *content, const char *format, ...)
{
    char path[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    make_parents(path);
    if (!content) {
        if (mkdir(path, 0755) && errno != EEXIST)
            fail("cannot make %s: %s", path, strerror(errno));
        return;
    }
    FILE *file = fopen(path, "w");
    if (!file)
        fail("cannot write %s: %s", path, strerror(errno));
    fputs(content, file);
    fclose(file);
}

void put_link(const char *target, const char *format, ...)
{
    char path[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    make_parents(path);
    unlink(path);
    if (symlink(target, path))
        fail("cannot link %s: %s", path, strerror(errno));
}

void put_node(const char *path, unsigned device_major, unsigned device_minor, mode_t mode)
{
    make_parents(path);
    unlink(path);
    if (mknod(path, S_IFCHR | mode, makedev(device_major, device_minor)))
        fail("cannot make %s: %s", path, strerror(errno));
    chmod(path, mode);
}

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *info)
{
    (void)status, (void)flag, (void)info;
    return remove(path);
}

void remove_tree(const char *format, ...)
{
    char path[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void kernel_log(const char *format, ...)
{
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    FILE *file = fopen(KERNEL_LOG, "a");
    if (!file)
        return;
    fprintf(file, "[%5ld.%06ld] ", (long)up.tv_sec, up.tv_nsec / 1000);
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fputc('\n', file);
    fclose(file);
}

void state_take(struct state *s)
{
    lock = open(STATE_DIR "/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX))
        fail("cannot lock the state: %s (has `lab-gpu boot` run?)", strerror(errno));
    if (state_read(s, STATE_FILE))
        fail("cannot read %s: %s", STATE_FILE, strerror(errno));
}

void state_set(struct state *s, const char *value, const char *format, ...)
{
    char key[256];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->key[i], key)) {
            s->value[i] = strdup(value);
            return;
        }
    if (s->count == STATE_LINES)
        fail("the state is full");
    s->key[s->count] = strdup(key);
    s->value[s->count++] = strdup(value);
}

void state_unset(struct state *s, const char *prefix)
{
    size_t length = strlen(prefix);
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        const char *key = s->key[i];
        if (strncmp(key, prefix, length) || (key[length] && key[length] != '.')) {
            s->key[kept] = key;
            s->value[kept++] = s->value[i];
        }
    }
    s->count = kept;
}

void state_put(struct state *s)
{
    char *content;
    size_t size;
    unsigned long generation = (unsigned long)state_int(s, 0, "lab-gpus") + 1;
    FILE *out = open_memstream(&content, &size);
    fprintf(out, "lab-gpus %lu\n", generation);
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->key[i], "lab-gpus") && strcmp(s->key[i], "end"))
            fprintf(out, "%s %s\n", s->key[i], s->value[i]);
    fprintf(out, "end %lu\n", generation);
    fclose(out);
    int fd = open(STATE_FILE, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || pwrite(fd, content, size, 0) != (ssize_t)size || ftruncate(fd, (off_t)size))
        fail("cannot write %s: %s", STATE_FILE, strerror(errno));
    close(fd);
    free(content);
    close(lock);
}

static const char *xid_text(const char *number)
{
    switch (atoi(number)) {
    case 13: return "Graphics Exception: ESR 0x504730=0x2000e";
    case 31: return "Ch 00000008, intr 00000000. MMU Fault";
    case 48: return "DBE (double bit error) ECC Error";
    case 63: return "Row Remapper: New row marked for remapping, reset gpu to activate.";
    case 79: return "GPU has fallen off the bus.";
    case 94: return "Contained: SM (0x1). RST: No, D-RST: No";
    case 95: return "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No";
    default: return "reported by the lab";
    }
}

static void xid(const char *gpu, const char *number, const char *instance)
{
    struct state s;
    state_take(&s);
    const char *pci = state_get(&s, "gpus.%s.pci", gpu);
    if (!pci)
        fail("no GPU %s in this node", gpu);
    long long next = state_int(&s, 1, "events.next");
    state_set(&s, text("%s %s%s", gpu, number, instance), "events.%lld", next);
    state_set(&s, text("%lld", next + 1), "events.next");
    if (next > 64)
        state_unset(&s, text("events.%lld", next - 64));
    kernel_log("NVRM: Xid (PCI:%.10s): %s, pid='<unknown>', name=<unknown>, %s", pci, number, xid_text(number));
    state_put(&s);
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    struct state s;
    umask(022);
    if (!strcmp(command, "boot") && argc == 2)
        return boot("/etc/lab-gpus.json");
    if (!strcmp(command, "load") && argc == 3)
        return load_module(argv[2]);
    if (!strcmp(command, "unload") && argc == 3)
        return unload_module(argv[2]);
    if (!strcmp(command, "xid") && (argc == 4 || argc == 6)) {
        xid(argv[2], argv[3], argc == 6 ? text(" %s %s", argv[4], argv[5]) : "");
        return 0;
    }
    if (!strcmp(command, "set") && argc == 4) {
        state_take(&s);
        state_set(&s, argv[3], "%s", argv[2]);
        if (strstr(argv[2], ".mig.") && state_get(&s, "driver.version"))
            show_capabilities(&s);
        state_put(&s);
        return 0;
    }
    if (!strcmp(command, "unset") && argc == 3) {
        state_take(&s);
        state_unset(&s, argv[2]);
        state_put(&s);
        return 0;
    }
    if (!strcmp(command, "show") && argc == 2) {
        char *content = read_text(STATE_FILE);
        if (!content)
            fail("no state: `lab-gpu boot` has not run");
        fputs(content, stdout);
        return 0;
    }
    fprintf(stderr, "usage: lab-gpu boot | load MODULE | unload MODULE | xid GPU NUMBER [GI CI] | set KEY VALUE | unset KEY | show\n");
    return 2;
}
