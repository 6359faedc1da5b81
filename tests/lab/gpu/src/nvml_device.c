/* Stand-in NVML: what one GPU says about itself. */
#define _GNU_SOURCE
#include "nvml_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB(n) ((u64)(n) << 20)

/* A number of the GPU's configuration, NOT_SUPPORTED when the model has none. */
#define NUMBER(function, property) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *into) \
    { \
        OPEN(enter_gpu, d); \
        return give_number(&s, d, property, into); \
    }
/* The same for a property with a current and a pending value. */
#define MODE(function, property) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *current, u32 *pending) \
    { \
        OPEN(enter_gpu, d); \
        nvmlReturn_t result = give_number(&s, d, property, current); \
        NEED(result || pending); \
        if (!result) \
            *pending = (u32)state_int(&s, *current, "gpus.%d.%s_pending", d->gpu, property); \
        return result; \
    }
/* The highest of a property that may be lower now: PROPERTY_max, or the property itself. */
#define HIGHEST(function, property) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *into) \
    { \
        OPEN(enter_gpu, d); \
        return give_number(&s, d, state_get(&s, "gpus.%d." property "_max", d->gpu) ? property "_max" : property, into); \
    }
/* A text of the GPU's configuration. */
#define TEXT(function, property) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, char *into, u32 length) \
    { \
        OPEN(enter_gpu, d); \
        return give_text(state_get(&s, "gpus.%d." property, d->gpu), into, length); \
    }

TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "part")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetBusType, "bus_type")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetDisplayMode, "display")
NUMBER(nvmlDeviceGetDisplayActive, "display")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetPowerState, "pstate")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetBoardId, "board")
NUMBER(nvmlDeviceGetMultiGpuBoard, "multi_gpu_board")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "bus_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
HIGHEST(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
HIGHEST(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending")
MODE(nvmlDeviceGetEccMode, "ecc")

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *into, u32 length)
{
    OPEN(enter, d);
    const char *name = state_get(&s, "gpus.%d.name", d->gpu);
    if (d->mig < 0)
        return give_text(name, into, length);
    char text[96];
    snprintf(text, sizeof text, "%s MIG %s", name, state_get(&s, "gpus.%d.mig.devices.%d.profile", d->gpu, d->mig));
    return give_text(text, into, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *into, u32 length)
{
    OPEN(enter, d);
    return give_text(d->mig < 0 ? state_get(&s, "gpus.%d.uuid", d->gpu)
                                : state_get(&s, "gpus.%d.mig.devices.%d.uuid", d->gpu, d->mig),
                     into, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, u32 *into)
{
    OPEN(enter, d);
    NEED(into);
    *into = (u32)d->index;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, u32 *into)
{
    OPEN(enter_gpu, d);
    return give_number(&s, d, "minor", into);
}

EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t d, u32 *into)
{
    OPEN(enter_gpu, d);
    return give_number(&s, d, "module", into);
}

static void pci(const struct state *s, const struct device *d, nvmlPciInfo_t *info)
{
    u32 function = 0, vendor = 0, subsystem = 0;
    memset(info, 0, sizeof *info);
    sscanf(state_get(s, "gpus.%d.pci", d->gpu), "%x:%x:%x.%x", &info->domain, &info->bus, &info->device, &function);
    sscanf(state_get(s, "gpus.%d.device", d->gpu), "%x", &info->pciDeviceId);
    sscanf(state_get(s, "gpus.%d.subsystem", d->gpu), "%x:%x", &vendor, &subsystem);
    info->pciDeviceId = info->pciDeviceId << 16 | 0x10de;
    info->pciSubSystemId = subsystem << 16 | vendor;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xffff,
             info->bus & 0xff, info->device & 0xff);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus & 0xff, info->device & 0xff);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *info)
{
    OPEN(enter_gpu, d);
    NEED(info);
    pci(&s, d, info);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_v2_t *into)
{
    OPEN(enter_gpu, d);
    nvmlPciInfo_t info;
    NEED(into);
    pci(&s, d, &info);
    memset(into, 0, sizeof *into);
    memcpy(into->busId, info.busIdLegacy, sizeof into->busId);
    into->domain = info.domain, into->bus = info.bus, into->device = info.device;
    into->pciDeviceId = info.pciDeviceId, into->pciSubSystemId = info.pciSubSystemId;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, nvmlPciInfo_v2_t *into)
{
    return nvmlDeviceGetPciInfo_v2(d, into);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t d, nvmlPciInfoExt_t *into)
{
    OPEN(enter_gpu, d);
    nvmlPciInfo_t info;
    NEED(into);
    if (into->version != VERSIONED(nvmlPciInfoExt_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci(&s, d, &info);
    into->domain = info.domain, into->bus = info.bus, into->device = info.device;
    into->pciDeviceId = info.pciDeviceId, into->pciSubSystemId = info.pciSubSystemId;
    into->baseClass = 3, into->subClass = 2;
    memcpy(into->busId, info.busId, sizeof into->busId);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
    OPEN(enter, d);
    NEED(major && minor);
    sscanf(state_get(&s, "gpus.%d.cc", d->gpu), "%d.%d", major, minor);
    return NVML_SUCCESS;
}

static void memory(const struct state *s, const struct device *d, nvmlMemory_v2_t *into)
{
    if (d->mig >= 0) {
        into->total = MIB(state_int(s, 0, "gpus.%d.mig.devices.%d.memory_mib", d->gpu, d->mig));
        into->reserved = 0;
        into->used = MIB(state_int(s, 0, "gpus.%d.mig.devices.%d.used_mib", d->gpu, d->mig));
    } else {
        into->total = MIB(state_int(s, 0, "gpus.%d.memory_mib", d->gpu));
        into->reserved = MIB(state_int(s, 0, "gpus.%d.reserved_mib", d->gpu));
        into->used = MIB(state_int(s, 0, "gpus.%d.used_mib", d->gpu));
    }
    into->free = into->total - into->reserved - into->used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *into)
{
    OPEN(enter, d);
    nvmlMemory_v2_t m;
    NEED(into);
    memory(&s, d, &m);
    *into = (nvmlMemory_t){m.total, m.free, m.used + m.reserved};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *into)
{
    OPEN(enter, d);
    NEED(into);
    if (into->version != VERSIONED(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory(&s, d, into);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *into)
{
    OPEN(enter, d);
    NEED(into);
    into->bar1Total = MIB(state_int(&s, 256, "gpus.%d.bar1_mib", d->gpu));
    into->bar1Used = MIB(2);
    into->bar1Free = into->bar1Total - into->bar1Used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    if (state_int(&s, 0, "gpus.%d.mig.enabled", d->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    into->gpu = (u32)state_int(&s, 0, "gpus.%d.utilization", d->gpu);
    into->memory = (u32)state_int(&s, 0, "gpus.%d.memory_utilization", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, u32 sensor, u32 *into)
{
    OPEN(enter_gpu, d);
    NEED(!sensor);
    return give_number(&s, d, "temperature", into);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, nvmlTemperature_t *into)
{
    OPEN(enter_gpu, d);
    u32 value;
    NEED(into && !into->sensorType);
    if (into->version != VERSIONED(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = give_number(&s, d, "temperature", &value);
    if (!result)
        into->temperature = (int)value;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, u32 which, u32 *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    *into = which == 0 ? 92 : 89;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, u32 *least, u32 *most)
{
    OPEN(enter_gpu, d);
    NEED(least && most);
    nvmlReturn_t result = give_number(&s, d, "power_limit_mw", most);
    *least = *most / 2;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, u32 type, u32 *into)
{
    OPEN(enter_gpu, d);
    NEED(type < 4);
    return give_number(&s, d, type == 2 ? "clock_memory_mhz" : "clock_mhz", into);
}
EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, u32 type, u32 *into)
{
    OPEN(enter_gpu, d);
    if (type != 2 && state_get(&s, "gpus.%d.clock_mhz_max", d->gpu))
        return give_number(&s, d, "clock_mhz_max", into);
    return nvmlDeviceGetClockInfo(d, type, into);
}

static nvmlReturn_t reasons(nvmlDevice_t d, u64 *into, const char *function)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    nvmlReturn_t result = enter_gpu(&s, d, function);
    NEED(result || into);
    if (!result)
        *into = (u64)state_int(&s, 1, "gpus.%d.throttle", d->gpu); /* 1: the GPU is idle */
    return result;
}
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, u64 *into) { return reasons(d, into, __func__); }
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, u64 *into) { return reasons(d, into, __func__); }

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, u32 type, u32 counter, u64 *into)
{
    OPEN(enter_gpu, d);
    NEED(into && type < 2 && counter < 2);
    if (!state_int(&s, 0, "gpus.%d.ecc", d->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (u64)state_int(&s, 0, "gpus.%d.ecc_%s", d->gpu, type ? "uncorrected" : "corrected");
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, u32 type, u32 counter, u32 location, u64 *into)
{
    (void)location;
    return nvmlDeviceGetTotalEccErrors(d, type, counter, into);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, u32 cause, u32 *count, u64 *addresses)
{
    OPEN(enter_gpu, d);
    (void)cause, (void)addresses;
    NEED(count);
    if (!state_get(&s, "gpus.%d.retired_pages_pending", d->gpu))
        return NVML_ERROR_NOT_SUPPORTED; /* GPUs that remap rows retire no pages */
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    OPEN(enter_gpu, d);
    NEED(corrected && uncorrected && pending && failed);
    if (!state_get(&s, "gpus.%d.remapped", d->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = 0;
    *uncorrected = (u32)state_int(&s, 0, "gpus.%d.remapped", d->gpu);
    *pending = (u32)state_int(&s, 0, "gpus.%d.remap_pending", d->gpu);
    *failed = (u32)state_int(&s, 0, "gpus.%d.remap_failed", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    if (!state_get(&s, "gpus.%d.remapped", d->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (nvmlRowRemapperHistogramValues_t){.max = 1280};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t d, nvmlVersionedValue_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    if (into->version != VERSIONED(nvmlVersionedValue_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return give_number(&s, d, "addressing_mode", &into->value);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t d, u32 *enabled, u32 *standard)
{
    OPEN(enter_gpu, d);
    NEED(enabled && standard);
    *enabled = *standard = state_int(&s, 0, "gpus.%d.open", d->gpu) > 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *into)
{
    OPEN(enter_gpu, d);
    return state_int(&s, 0, "gpus.%d.open", d->gpu) ? give_text(VERSION, into, 80) : NVML_ERROR_NOT_SUPPORTED;
}

/* Where the GPU is: CPUs, memory node, other GPUs. */

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, u32 size, unsigned long *set)
{
    OPEN(enter_gpu, d);
    NEED(set && size);
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    memset(set, 0, size * sizeof *set);
    for (long cpu = 0; cpu < cpus && cpu < 64L * size; cpu++)
        set[cpu / 64] |= 1UL << cpu % 64;
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t d, u32 size, unsigned long *set, u32 scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(d, size, set);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, u32 size, unsigned long *set, u32 scope)
{
    OPEN(enter_gpu, d);
    (void)scope;
    NEED(set && size);
    long long node = state_int(&s, -1, "gpus.%d.numa", d->gpu);
    if (node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(set, 0, size * sizeof *set);
    set[0] |= 1UL << node;
    return NVML_SUCCESS;
}

static u32 distance(const struct state *s, int a, int b)
{
    if (a == b)
        return 0;
    long long bridge = state_int(s, -1, "gpus.%d.pcie_switch", a);
    if (bridge >= 0 && bridge == state_int(s, -2, "gpus.%d.pcie_switch", b))
        return 10;
    return state_int(s, -1, "gpus.%d.numa", a) == state_int(s, -1, "gpus.%d.numa", b) ? 40 : 50;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, u32 *into)
{
    OPEN(enter_gpu, a);
    NEED(b && into);
    *into = distance(&s, a->gpu, b->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t d, u32 level, u32 *count, nvmlDevice_t *devices)
{
    OPEN(enter_gpu, d);
    u32 found = 0;
    NEED(count);
    for (int i = 0; i < gpu_count(); i++)
        if (gpu_handle(i) != d && distance(&s, d->gpu, gpu_handle(i)->gpu) <= level) {
            if (devices && found < *count)
                devices[found] = gpu_handle(i);
            found++;
        }
    int small = devices && found > *count;
    *count = found;
    return small ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, u32 index, u32 *status)
{
    OPEN(enter_gpu, a);
    NEED(b && status);
    /* 0 fine, 2 the GPU cannot; index 2 asks about NVLink */
    *status = index == 2 && !state_int(&s, 0, "gpus.%d.nvlinks.count", a->gpu) ? 2 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
    OPEN(enter_gpu, a);
    NEED(b && same);
    *same = a == b;
    return NVML_SUCCESS;
}

/* NVLink: gpus.N.nvlinks.L is the number of the GPU at the other end, or "switch". */
static const char *link_peer(const struct state *s, const struct device *d, u32 link)
{
    return state_get(s, "gpus.%d.nvlinks.%u", d->gpu, link);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, u32 link, u32 *active)
{
    OPEN(enter_gpu, d);
    NEED(active && link < 36);
    if (!link_peer(&s, d, link))
        return state_int(&s, 0, "gpus.%d.nvlinks.count", d->gpu) ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *active = link >= state_int(&s, 0, "gpus.%d.nvlinks_down", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, u32 link, u32 counter, u64 *into)
{
    OPEN(enter_gpu, d);
    NEED(into && counter < 5);
    if (!link_peer(&s, d, link))
        return NVML_ERROR_NOT_SUPPORTED;
    *into = link || counter ? 0 : (u64)state_int(&s, 0, "gpus.%d.nvlink_errors", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, u32 link, u32 *version)
{
    OPEN(enter_gpu, d);
    return link_peer(&s, d, link) ? give_number(&s, d, "nvlink_version", version) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, u32 link, u32 capability, u32 *result)
{
    OPEN(enter_gpu, d);
    NEED(result && capability < 6);
    if (!link_peer(&s, d, link))
        return NVML_ERROR_NOT_SUPPORTED;
    *result = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, u32 link, u32 *type)
{
    OPEN(enter_gpu, d);
    const char *peer = link_peer(&s, d, link);
    NEED(type);
    if (!peer)
        return NVML_ERROR_NOT_SUPPORTED;
    *type = strcmp(peer, "switch") ? 0 : 2;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, u32 link, nvmlPciInfo_t *info)
{
    OPEN(enter_gpu, d);
    const char *peer = link_peer(&s, d, link);
    NEED(info);
    if (!peer)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strcmp(peer, "switch")) {
        pci(&s, &(struct device){atoi(peer), 0, -1}, info);
        return NVML_SUCCESS;
    }
    memset(info, 0, sizeof *info);
    info->bus = 5 + link % 4;
    info->pciDeviceId = 0x22a310de;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus & 0xff);
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus & 0xff);
    return NVML_SUCCESS;
}

static nvmlReturn_t fabric(const struct state *s, const struct device *d, u32 *clique, unsigned char *stage, nvmlReturn_t *status)
{
    *clique = 0;
    *status = (nvmlReturn_t)state_int(s, NVML_SUCCESS, "gpus.%d.fabric_status", d->gpu);
    /* 0 not supported, 1 not started, 2 in progress, 3 completed */
    *stage = (unsigned char)state_int(s, 0, "gpus.%d.fabric", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    memset(into, 0, sizeof *into);
    return fabric(&s, d, &into->cliqueId, &into->state, &into->status);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfo_v2_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    u32 version = into->version;
    if (version != VERSIONED(nvmlGpuFabricInfo_v2_t, 2) && version != VERSIONED(nvmlGpuFabricInfo_v3_t, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(into, 0, version & 0xffffff);
    into->version = version;
    return fabric(&s, d, &into->cliqueId, &into->state, &into->status);
}

/* Processes: state lines `processes.N GPU PID MIB NAME`. */
static nvmlReturn_t processes(nvmlDevice_t d, u32 *count, void *infos, size_t each, const char *function)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    nvmlReturn_t result = enter(&s, d, function);
    if (result)
        return result;
    u32 found = 0;
    NEED(count);
    for (int i = 0; i < s.count; i++) {
        u32 gpu, pid, mib;
        if (strncmp(s.key[i], "processes.", 10) || sscanf(s.value[i], "%u %u %u", &gpu, &pid, &mib) != 3 ||
            (int)gpu != d->gpu)
            continue;
        if (infos && found < *count) {
            nvmlProcessInfo_t info = {pid, MIB(mib), 0xffffffff, 0xffffffff};
            memcpy((char *)infos + found * each, &info, each);
        }
        found++;
    }
    int small = found > *count;
    *count = found;
    return small ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
#define PROCESSES(function, type) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *count, type *infos) \
    { \
        return processes(d, count, infos, sizeof *infos, __func__); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)

static nvmlReturn_t none(nvmlDevice_t d, u32 *count, const char *function)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    nvmlReturn_t result = enter(&s, d, function);
    NEED(result || count);
    if (!result)
        *count = 0;
    return result;
}
#define NONE(function) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 *count, void *infos) \
    { \
        (void)infos; \
        return none(d, count, __func__); \
    }
NONE(nvmlDeviceGetGraphicsRunningProcesses)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3)
NONE(nvmlDeviceGetMPSComputeRunningProcesses)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3)

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
    OPEN(enter, d);
    NEED(values && count > 0);
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (values[i].fieldId == 230) { /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: drivers since about R560 */
            values[i].nvmlReturn = NVML_SUCCESS;
            values[i].valueType = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
            values[i].value.ui = 0;  /* none */
        }
    }
    return NVML_SUCCESS;
}

/* Changing settings needs root and the one place that keeps the state, which no library can write: refused. */
#define READ_ONLY(function) \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, u32 value) \
    { \
        OPEN(enter_gpu, d); \
        (void)value; \
        return geteuid() ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_SUPPORTED; \
    }
READ_ONLY(nvmlDeviceSetPersistenceMode)
READ_ONLY(nvmlDeviceSetEccMode)
READ_ONLY(nvmlDeviceSetPowerManagementLimit)

/* The exception: who has the node's root folder, as root there or in a privileged container with its process ids, has
 * the program that keeps the state. Everybody else may not, as with the real driver. */
EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t d, u32 mode)
{
    char key[64], value[16];
    int status = -1;
    OPEN(enter_gpu, d);
    NEED(mode <= 3);
    snprintf(key, sizeof key, "gpus.%d.compute_mode", d->gpu);
    snprintf(value, sizeof value, "%u", mode);
    pid_t child = fork();
    if (!child) {
        if (!chroot("/proc/1/root") && !chdir("/"))
            execl("/usr/local/sbin/lab-gpu", "lab-gpu", "set", key, value, (char *)NULL);
        _exit(1);
    }
    if (child > 0)
        waitpid(child, &status, 0);
    return status ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}
