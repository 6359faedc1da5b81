/* Stand-in NVML: initialisation, system, handles. */
#define _GNU_SOURCE
#include "nvml_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int initialized;
static int count;
static struct device gpus[GPUS], migs[GPUS][MIGS];
static int held[GPUS + 1]; /* the device nodes, /dev/nvidiactl after the GPUs */

nvmlReturn_t enter_system(struct state *s, const char *function)
{
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    for (;;) {
        if (driver_state(s))
            return NVML_ERROR_UNKNOWN;
        if (!state_int(s, 0, "hang"))
            break;
        state_free(s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    return (nvmlReturn_t)state_int(s, NVML_SUCCESS, "fault.%s", function);
}

nvmlReturn_t enter(struct state *s, const struct device *d, const char *function)
{
    nvmlReturn_t result = enter_system(s, function);
    if (result)
        return result;
    int known = 0;
    for (int i = 0; i < count; i++)
        known |= d == &gpus[i] || (d >= migs[i] && d < migs[i] + MIGS);
    if (!known)
        return NVML_ERROR_INVALID_ARGUMENT;
    while (state_int(s, 0, "gpus.%d.hang", d->gpu)) {
        state_free(s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        if (driver_state(s))
            return NVML_ERROR_UNKNOWN;
    }
    if (state_int(s, 0, "gpus.%d.lost", d->gpu))
        return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)state_int(s, NVML_SUCCESS, "gpus.%d.fault.%s", d->gpu, function);
}

nvmlReturn_t enter_gpu(struct state *s, const struct device *d, const char *function)
{
    nvmlReturn_t result = enter(s, d, function);
    return !result && d->mig >= 0 ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t give_text(const char *value, char *into, unsigned length)
{
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    NEED(into);
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(into, value);
    return NVML_SUCCESS;
}

nvmlReturn_t give_number(const struct state *s, const struct device *d, const char *property, unsigned *into)
{
    const char *value = state_get(s, "gpus.%d.%s", d->gpu, property);
    if (!value || !*value)
        return NVML_ERROR_NOT_SUPPORTED;
    NEED(into);
    *into = (unsigned)state_int(s, 0, "gpus.%d.%s", d->gpu, property);
    return NVML_SUCCESS;
}

int gpu_count(void)
{
    return count;
}

struct device *gpu_handle(int index)
{
    return index >= 0 && index < count ? &gpus[index] : NULL;
}

struct device *mig_handle(const struct device *parent, int mig)
{
    return mig >= 0 && mig < MIGS ? &migs[parent->index][mig] : NULL;
}

static nvmlReturn_t start(void)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    if (initialized) {
        initialized++;
        return NVML_SUCCESS;
    }
    if (access(at("/dev/nvidiactl"), F_OK))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!may_open("/dev/nvidiactl"))
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    for (;;) {
        if (driver_state(&s) || !state_get(&s, "driver.version"))
            return NVML_ERROR_DRIVER_NOT_LOADED;
        if (!state_int(&s, 0, "hang"))
            break;
        state_free(&s);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    if (strcmp(state_get(&s, "driver.version"), VERSION))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    nvmlReturn_t fault = (nvmlReturn_t)state_int(&s, NVML_SUCCESS, "fault.nvmlInit");
    if (fault)
        return fault;
    count = 0;
    for (int i = 0; i < state_int(&s, 0, "gpus.count") && count < GPUS; i++) {
        if (!gpu_visible(&s, i))
            continue;
        gpus[count] = (struct device){i, count, -1};
        for (int m = 0; m < MIGS; m++)
            migs[count][m] = (struct device){i, m, m};
        held[count++] = hold_gpu(&s, i);
    }
    held[count] = hold("/dev/nvidiactl");
    initialized = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t initialize(void)
{
    pthread_mutex_lock(&starting);
    nvmlReturn_t result = start();
    pthread_mutex_unlock(&starting);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return initialize(); }
EXPORT nvmlReturn_t nvmlInit(void) { return initialize(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    return initialize();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&starting);
    nvmlReturn_t result = initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialized && !--initialized)
        for (int i = 0; i <= count; i++)
            close(held[i]);
    pthread_mutex_unlock(&starting);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires restart", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "The requested frequency is not supported", "Argument version mismatch",
        "This function is deprecated", "Not ready", "GPU not found", "Invalid state", "Reset type not supported",
    };
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, u32 length)
{
    OPEN_SYSTEM();
    return give_text(VERSION, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, u32 length)
{
    char text[80];
    snprintf(text, sizeof text, "%d.%s", CUDA / 1000, VERSION);
    return give_text(text, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NEED(version);
    *version = CUDA;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlBranchInfo_t *info, u32 length)
{
    OPEN_SYSTEM();
    NEED(info && length);
    if (info->version != VERSIONED(nvmlBranchInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    snprintf(info->branch, sizeof info->branch, "r%.3s_00", VERSION);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(u32 pid, char *name, u32 length)
{
    OPEN_SYSTEM();
    for (int i = 0; i < s.count; i++) {
        u32 owner;
        int at = 0;
        if (!strncmp(s.key[i], "processes.", 10) && sscanf(s.value[i], "%*u %u %*u %n", &owner, &at) == 1 && at &&
            owner == pid)
            return give_text(s.value[i] + at, name, length);
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t get_count(u32 *into, const char *function)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    nvmlReturn_t result = enter_system(&s, function);
    if (result)
        return result;
    NEED(into);
    *into = (u32)count;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(u32 *into) { return get_count(into, __func__); }
EXPORT nvmlReturn_t nvmlDeviceGetCount(u32 *into) { return get_count(into, "nvmlDeviceGetCount_v2"); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u32 index, nvmlDevice_t *device)
{
    OPEN_SYSTEM();
    NEED(device && index < (u32)count);
    *device = &gpus[index];
    return state_int(&s, 0, "gpus.%d.lost", gpus[index].gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(u32 index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find(const struct state *s, const char *property, const char *value, nvmlDevice_t *device)
{
    NEED(device && value);
    for (int i = 0; i < count; i++) {
        const char *has = state_get(s, "gpus.%d.%s", gpus[i].gpu, property);
        if (has && !strcasecmp(has, value)) {
            *device = &gpus[i];
            return state_int(s, 0, "gpus.%d.lost", gpus[i].gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    OPEN_SYSTEM();
    nvmlReturn_t result = find(&s, "uuid", uuid, device);
    for (int i = 0; result == NVML_ERROR_NOT_FOUND && i < count; i++)
        for (int m = 0; m < MIGS; m++) {
            const char *has = state_get(&s, "gpus.%d.mig.devices.%d.uuid", gpus[i].gpu, m);
            if (has && !strcmp(has, uuid) && mig_visible(&s, gpus[i].gpu, m)) {
                *device = &migs[i][m];
                return state_int(&s, 0, "gpus.%d.lost", gpus[i].gpu) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
            }
        }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    OPEN_SYSTEM();
    return find(&s, "serial", serial, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    OPEN_SYSTEM();
    u32 domain = 0, bus, slot, function = 0;
    char bdf[32];
    NEED(id);
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        NEED(sscanf(id, "%x:%x.%x", &bus, &slot, &function) >= 2);
    }
    snprintf(bdf, sizeof bdf, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return find(&s, "pci", bdf, device);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(u32 *into)
{
    NEED(into);
    *into = 0;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlUnitGetCount(u32 *into)
{
    OPEN_SYSTEM();
    NEED(into);
    *into = 0;
    return NVML_SUCCESS;
}
