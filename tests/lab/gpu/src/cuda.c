/* Stand-in libcuda: the driver API that small programs need, with kernels that really compute.
 *
 * Device memory is host memory behind addresses that the host cannot follow. A module is PTX text, which ptx.c runs; what it does
 * not know is CUDA_ERROR_INVALID_PTX. Errors of a launch stick to the context, as on a GPU. Events show the time that the model
 * would have taken: what its memory, its cores and its link can do.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "ptx.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct ptx_kernel *CUfunction;
typedef struct event *CUevent;
typedef struct { char bytes[16]; } CUuuid;

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

static const struct {
    CUresult code;
    const char *name, *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

struct gpu {
    int gpu, mig;
    uint64_t total, used;
};
struct context {
    CUdevice device;
    CUresult error;
    struct context *below;
    int held; /* the GPU's device node */
    double clock; /* seconds that the GPU has worked */
};
struct module {
    CUcontext context;
    struct ptx_kernel *kernels;
};
struct event {
    double at;
};
struct allocation {
    CUdeviceptr address;
    size_t size;
    char *memory;
    CUdevice device;
    struct allocation *next;
};

static int initialized, count;
static struct gpu gpus[GPUS];
static struct context primary[GPUS];
static int primary_users[GPUS];
static __thread CUcontext current;
static struct allocation *allocations;
static CUdeviceptr next_address = 0x7f2000000000;

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) {
            *name = ERRORS[i].name;
            return CUDA_SUCCESS;
        }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) {
            *text = ERRORS[i].text;
            return CUDA_SUCCESS;
        }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA;
    return CUDA_SUCCESS;
}

/* The name of this process's cgroup of v2; in a namespace of its own, as v2's containers are, the tree begins with it. */
static unsigned long long own_cgroup(void)
{
    char line[4096] = "", folder[4200];
    unsigned long long name = cgroup_number("/sys/fs/cgroup");
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::/", 4) && line[4] != '\n') {
            line[strcspn(line, "\n")] = 0;
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", line + 3);
            name = cgroup_key(folder);
        }
    if (file)
        fclose(file);
    return name;
}

/* A limit of this process's cgroup is the GPU's size for it. */
static void add(const struct state *s, int gpu, int mig)
{
    const char *size = mig < 0 ? state_get(s, "gpus.%d.memory_mib", gpu)
                               : state_get(s, "gpus.%d.mig.devices.%d.memory_mib", gpu, mig);
    unsigned long long total = strtoull(size ? size : "0", NULL, 0) << 20, soft, limit;
    cgroup_limits(s, gpu, own_cgroup(), &soft, &limit);
    gpus[count++] = (struct gpu){gpu, mig, mig < 0 && limit < total ? limit : total, 0};
}

/* CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first one that is none. */
static void choose(const struct state *s)
{
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    struct gpu all[GPUS];
    int have = count;
    if (!wish)
        return;
    memcpy(all, gpus, sizeof all);
    count = 0;
    char *list = strdup(wish), *rest = list, *word;
    while ((word = strsep(&rest, ","))) {
        char *end;
        long index = strtol(word, &end, 10);
        if (!*word || *end) {
            index = -1;
            for (int i = 0; i < have && *word; i++) {
                const char *uuid = all[i].mig < 0 ? state_get(s, "gpus.%d.uuid", all[i].gpu)
                                                  : state_get(s, "gpus.%d.mig.devices.%d.uuid", all[i].gpu, all[i].mig);
                if (uuid && !strncmp(uuid, word, strlen(word)))
                    index = i;
            }
        }
        if (index < 0 || index >= have)
            break;
        gpus[count++] = all[index];
    }
    free(list);
}

EXPORT CUresult cuInit(unsigned flags)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (initialized)
        return CUDA_SUCCESS;
    if (access(at("/dev/nvidiactl"), F_OK) || driver_state(&s) || !state_get(&s, "driver.version"))
        return CUDA_ERROR_NO_DEVICE;
    if (strcmp(state_get(&s, "driver.version"), VERSION))
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (!may_open("/dev/nvidiactl") || !may_open("/dev/nvidia-uvm"))
        return CUDA_ERROR_UNKNOWN;
    count = 0;
    for (int i = 0; i < state_int(&s, 0, "gpus.count") && count < GPUS; i++) {
        if (!gpu_visible(&s, i))
            continue;
        long long fabric = state_int(&s, 0, "gpus.%d.fabric", i);
        if (fabric == 1 || fabric == 2)
            return CUDA_ERROR_SYSTEM_NOT_READY;
        if (!state_int(&s, 0, "gpus.%d.mig.enabled", i))
            add(&s, i, -1);
        /* CUDA takes one MIG device, the first that the process may use, or one that it names */
        const char *named = getenv("CUDA_VISIBLE_DEVICES");
        for (int m = 0; m < state_int(&s, 0, "gpus.%d.mig.devices.count", i); m++)
            if (state_int(&s, 0, "gpus.%d.mig.enabled", i) && mig_visible(&s, i, m)) {
                add(&s, i, m);
                if (!named || !strstr(named, "MIG-"))
                    break;
            }
    }
    choose(&s);
    if (!count)
        return CUDA_ERROR_NO_DEVICE;
    hold("/dev/nvidiactl");
    hold("/dev/nvidia-uvm");
    initialized = 1;
    return CUDA_SUCCESS;
}

#define READY() \
    if (!initialized) \
        return CUDA_ERROR_NOT_INITIALIZED
#define VALUE(condition) \
    if (!(condition)) \
        return CUDA_ERROR_INVALID_VALUE
#define DEVICE(device) \
    READY(); \
    if ((device) < 0 || (device) >= count) \
        return CUDA_ERROR_INVALID_DEVICE
#define STATE() \
    struct state s __attribute__((cleanup(state_free))) = {0}; \
    if (driver_state(&s)) \
        return CUDA_ERROR_UNKNOWN

EXPORT CUresult cuDeviceGetCount(int *into)
{
    READY();
    VALUE(into);
    *into = count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE(ordinal);
    VALUE(device);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    DEVICE(device);
    STATE();
    VALUE(name && length > 0);
    const char *model = state_get(&s, "gpus.%d.name", gpus[device].gpu);
    if (gpus[device].mig < 0)
        snprintf(name, (size_t)length, "%s", model);
    else
        snprintf(name, (size_t)length, "%s MIG %s", model,
                 state_get(&s, "gpus.%d.mig.devices.%d.profile", gpus[device].gpu, gpus[device].mig));
    return CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *into, CUdevice device, int instance)
{
    DEVICE(device);
    STATE();
    VALUE(into);
    const struct gpu *g = &gpus[device];
    const char *text = instance && g->mig >= 0 ? state_get(&s, "gpus.%d.mig.devices.%d.uuid", g->gpu, g->mig)
                                               : state_get(&s, "gpus.%d.uuid", g->gpu);
    text = text ? text + 4 : "";
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        into->bytes[i] = (char)byte;
        text += 2;
    }
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(CUuuid *into, CUdevice device) { return uuid(into, device, 0); }
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *into, CUdevice device) { return uuid(into, device, 1); }

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    DEVICE(device);
    VALUE(bytes);
    *bytes = gpus[device].total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    DEVICE(device);
    STATE();
    VALUE(id && length > 12);
    snprintf(id, (size_t)length, "%s", state_get(&s, "gpus.%d.pci", gpus[device].gpu));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    DEVICE(device);
    STATE();
    VALUE(value && attribute > 0 && attribute < 160);
    int gpu = gpus[device].gpu, major = 0, minor = 0;
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(state_get(&s, "gpus.%d.cc", gpu), "%d.%d", &major, &minor);
    sscanf(state_get(&s, "gpus.%d.pci", gpu), "%x:%x:%x", &domain, &bus, &slot);
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;             /* threads per block; block x, y */
    case 4: *value = 64; break;                               /* block z */
    case 5: *value = INT_MAX; break;                          /* grid x */
    case 6: case 7: *value = 65535; break;                    /* grid y, z */
    case 8: *value = 49152; break;                            /* shared memory per block */
    case 10: *value = 32; break;                              /* warp */
    case 13: *value = (int)state_int(&s, 0, "gpus.%d.clock_mhz", gpu) * 1000; break;
    case 16: *value = (int)state_int(&s, 0, "gpus.%d.multiprocessors", gpu); break;
    case 20: *value = (int)state_int(&s, 0, "gpus.%d.compute_mode", gpu); break;
    case 32: *value = (int)state_int(&s, 0, "gpus.%d.ecc", gpu); break;
    case 33: *value = (int)bus; break;
    case 34: *value = (int)slot; break;
    case 39: *value = 2048; break;                            /* threads per multiprocessor */
    case 41: *value = 1; break;                               /* unified addressing */
    case 50: *value = (int)domain; break;
    case 75: *value = major; break;
    case 76: *value = minor; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = cuDeviceGetAttribute(major, 75, device);
    return result ? result : cuDeviceGetAttribute(minor, 76, device);
}

/* Contexts */

static int hold_device(CUdevice device)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    return driver_state(&s) ? -1 : hold_gpu(&s, gpus[device].gpu);
}

static CUresult usable(CUdevice device)
{
    DEVICE(device);
    STATE();
    while (state_int(&s, 0, "gpus.%d.cuda_hang", gpus[device].gpu)) {
        state_free(&s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        if (driver_state(&s))
            return CUDA_ERROR_UNKNOWN;
    }
    return state_int(&s, 0, "gpus.%d.lost", gpus[device].gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CUresult result = usable(device);
    (void)flags;
    if (result)
        return result;
    VALUE(context);
    *context = calloc(1, sizeof **context);
    **context = (struct context){device, CUDA_SUCCESS, current, hold_device(device), 0};
    current = *context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    READY();
    VALUE(context && (context < primary || context >= primary + GPUS));
    if (current == context)
        current = context->below;
    close(context->held);
    free(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = usable(device);
    if (result)
        return result;
    VALUE(context);
    if (!primary_users[device]++)
        primary[device] = (struct context){device, CUDA_SUCCESS, NULL, hold_device(device), 0};
    *context = &primary[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    DEVICE(device);
    if (!primary_users[device])
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--primary_users[device])
        close(primary[device].held);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    READY();
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    READY();
    VALUE(context);
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    READY();
    VALUE(context);
    context->below = current;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    READY();
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = current;
    current = current->below;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    READY();
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return CUDA_SUCCESS;
}

/* What every call in a context starts with: its sticky error, and a GPU that is gone. */
static CUresult in_context(void)
{
    READY();
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!current->error && usable(current->device))
        current->error = CUDA_ERROR_LAUNCH_FAILED;
    return current->error;
}
#define CONTEXT() \
    CUresult in = in_context(); \
    if (in) \
        return in

EXPORT CUresult cuCtxSynchronize(void)
{
    CONTEXT();
    return CUDA_SUCCESS;
}

/* Memory */

static struct allocation *holding(CUdeviceptr address, size_t size)
{
    for (struct allocation *a = allocations; a; a = a->next)
        if (address >= a->address && address - a->address <= a->size && size <= a->size - (address - a->address))
            return a;
    return NULL;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    CONTEXT();
    VALUE(address && size);
    struct gpu *g = &gpus[current->device];
    struct allocation *a = malloc(sizeof *a);
    STATE();
    uint64_t hidden = (uint64_t)state_int(&s, 0, "gpus.%d.hidden_limit_mib", g->gpu) << 20; /* as MPS has them */
    if (size > g->total - g->used || (hidden && g->used + size > hidden) || !(a->memory = malloc(size))) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->address = next_address;
    a->size = size;
    a->device = current->device;
    a->next = allocations;
    next_address += (size + 0x3fffff) & ~(CUdeviceptr)0x1fffff; /* a hole after each: overruns are found */
    g->used += size;
    allocations = a;
    *address = a->address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    CONTEXT();
    for (struct allocation **at = &allocations; *at; at = &(*at)->next)
        if ((*at)->address == address) {
            struct allocation *a = *at;
            *at = a->next;
            gpus[a->device].used -= a->size;
            free(a->memory);
            free(a);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CONTEXT();
    VALUE(available && total);
    *total = gpus[current->device].total;
    *available = *total - gpus[current->device].used;
    return CUDA_SUCCESS;
}

/* What the GPU's model can do, in units a second; 0: not known. A fact of the state, such as gpus.0.memory_gbps, overrides it. */
enum { MEMORY, COMPUTE, LINK };
static double speed(const struct state *s, const struct gpu *g, int what)
{
    static const char *const FACTS[] = {"memory_gbps", "tflops", "pcie_gbps"};
    static const double LANE[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563}; /* GB/s, by generation */
    static const double REACHED = 0.9; /* of what is on paper */
    const char *fact = state_get(s, "gpus.%d.%s", g->gpu, FACTS[what]);
    double part = 1, unit = what == COMPUTE ? 1e12 : 1e9;
    if (fact)
        return atof(fact) * unit;
    long long generation = state_int(s, 0, "gpus.%d.pcie_generation", g->gpu);
    if (what == LINK)
        return REACHED * unit * LANE[generation < 7 ? generation : 0] * (double)state_int(s, 0, "gpus.%d.pcie_width", g->gpu);
    if (g->mig >= 0)
        part = (double)state_int(s, 0, "gpus.%d.mig.devices.%d.memory_mib", g->gpu, g->mig) /
               (double)state_int(s, 1, "gpus.%d.memory_mib", g->gpu);
    double clock = 1e6 * (double)state_int(s, 0, what == MEMORY ? "gpus.%d.clock_memory_mhz" : "gpus.%d.clock_mhz", g->gpu);
    double wide = what == MEMORY ? (double)state_int(s, 0, "gpus.%d.bus_width", g->gpu) / 8
                                 : (double)state_int(s, 0, "gpus.%d.cores", g->gpu);
    return REACHED * part * clock * wide * 2;
}

static void spend(int what, double amount)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    double fast = driver_state(&s) ? 0 : speed(&s, &gpus[current->device], what);
    current->clock += fast > 0 ? amount / fast : 0;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    CONTEXT();
    struct allocation *a = holding(to, size);
    VALUE(a && from);
    memcpy(a->memory + (to - a->address), from, size);
    spend(LINK, (double)size);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream)
{
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, size);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    CONTEXT();
    struct allocation *a = holding(from, size);
    VALUE(a && to);
    memcpy(to, a->memory + (from - a->address), size);
    spend(LINK, (double)size);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream)
{
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, size);
}

EXPORT CUresult cuMemAllocHost_v2(void **memory, size_t size)
{
    CONTEXT();
    VALUE(memory && size);
    return (*memory = calloc(1, size)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *memory)
{
    CONTEXT();
    free(memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size)
{
    CONTEXT();
    struct allocation *a = holding(to, size);
    VALUE(a);
    memset(a->memory + (to - a->address), value, size);
    return CUDA_SUCCESS;
}

/* Modules */

enum { JIT_ERRORS = 5, JIT_ERRORS_SIZE = 6 }; /* CU_JIT_ERROR_LOG_BUFFER, …_SIZE_BYTES */

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, int *keys, void **values)
{
    CONTEXT();
    VALUE(module && image && (!options || (keys && values)));
    const char *ptx = image, *version = strstr(ptx, ".version"), *target = strstr(ptx, ".target");
    int major, minor, sm, cc_major, cc_minor;
    char spare[1], *log = spare;
    size_t room = 0;
    for (unsigned i = 0; i < options; i++) {
        log = keys[i] == JIT_ERRORS ? values[i] : log;
        room = keys[i] == JIT_ERRORS_SIZE ? (uint32_t)(uintptr_t)values[i] : room;
    }
    if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2 || !target ||
        sscanf(target, ".target sm_%d", &sm) != 1 || !strstr(ptx, ".address_size 64"))
        return version || target ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    /* PTX 8.x came with CUDA 12.x, 9.x with 13.x; the minor numbers run along */
    if (major > CUDA / 1000 - 4 || (major == CUDA / 1000 - 4 && minor > CUDA % 1000 / 10))
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    cuDeviceComputeCapability(&cc_major, &cc_minor, current->device);
    if (sm > cc_major * 10 + cc_minor)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    struct ptx_kernel *kernels = ptx_parse(ptx, log, room);
    if (!kernels)
        return CUDA_ERROR_INVALID_PTX;
    *module = calloc(1, sizeof **module);
    **module = (struct module){current, kernels};
    return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    CONTEXT();
    VALUE(module);
    ptx_free(module->kernels);
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CONTEXT();
    VALUE(function && module && name);
    if (module->context != current)
        return CUDA_ERROR_INVALID_HANDLE;
    *function = ptx_entry(module->kernels, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static char *host(uint64_t address, size_t size, size_t *room)
{
    struct allocation *a = holding(address, size);
    *room = a ? a->size - (address - a->address) : 0;
    return a ? a->memory + (address - a->address) : NULL;
}

/* Faults: a cell in each MiB, `gpus.0.stuck "OFFSET BIT"`, whose bit is always set; `gpus.0.flaky 1`, a wrong result in each
 * launch that computes. */
static uint64_t stuck_at;
static int stuck_bit;
static char *last_stored;

static void fault(uint64_t address, char *memory, size_t size)
{
    uint64_t offset = (stuck_at - address) & ((1 << 20) - 1);
    if (stuck_bit >= 0 && offset < size)
        memory[offset] |= (char)(1 << stuck_bit);
    last_stored = memory;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                               void **extra)
{
    CONTEXT();
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    VALUE(grid_x && grid_y && grid_z && block_x && block_y && block_z && grid_x <= INT_MAX && grid_y <= 65535 &&
          grid_z <= 65535 && block_x <= 1024 && block_y <= 1024 && block_z <= 64 &&
          (uint64_t)block_x * block_y * block_z <= 1024 && shared <= 49152 && !extra);
    (void)stream;
    if (grid_y * grid_z * block_y * block_z > 1)
        return CUDA_ERROR_NOT_SUPPORTED; /* one dimension is what the lab can compute */
    STATE();
    int gpu = gpus[current->device].gpu, flaky = (int)state_int(&s, 0, "gpus.%d.flaky", gpu);
    const char *stuck = state_get(&s, "gpus.%d.stuck", gpu);
    stuck_bit = -1;
    if (stuck)
        sscanf(stuck, "%lu %d", &stuck_at, &stuck_bit);
    struct ptx_work work = {0, 0};
    int error = ptx_run(f, grid_x, block_x, parameters, host, stuck || flaky ? fault : NULL, &work);
    if (error)
        current->error = (CUresult)error; /* seen by the next call, as a launch is asynchronous */
    else if (flaky && work.operations)
        *last_stored ^= 1;
    double memory = speed(&s, &gpus[current->device], MEMORY), compute = speed(&s, &gpus[current->device], COMPUTE);
    double reading = memory > 0 ? (double)work.bytes / memory : 0, computing = compute > 0 ? (double)work.operations / compute : 0;
    current->clock += (reading > computing ? reading : computing);
    return CUDA_SUCCESS;
}

/* Events: the seconds that the GPU has worked. */

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CONTEXT();
    VALUE(event && flags < 8);
    *event = calloc(1, sizeof **event);
    (*event)->at = -1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, void *stream)
{
    CONTEXT();
    (void)stream;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    event->at = current->clock;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    CONTEXT();
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    CONTEXT();
    VALUE(milliseconds);
    if (!start || !end || start->at < 0 || end->at < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)(1000 * (end->at - start->at));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    CONTEXT();
    free(event);
    return CUDA_SUCCESS;
}
