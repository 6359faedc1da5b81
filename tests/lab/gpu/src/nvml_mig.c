/* Stand-in NVML: Multi-Instance GPU. Instances are what the node's configuration says; none is made or removed. */
#define _GNU_SOURCE
#include "nvml_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct instance {
    struct device *parent;
    int mig;
};

static struct instance gpu_instances[GPUS][MIGS], compute_instances[GPUS][MIGS];

static long long mig_int(const struct state *s, int gpu, int mig, const char *property)
{
    return state_int(s, 0, "gpus.%d.mig.devices.%d.%s", gpu, mig, property);
}

static int capable(const struct state *s, const struct device *d)
{
    return state_get(s, "gpus.%d.mig.enabled", d->gpu) != NULL;
}

static int instances(const struct state *s, const struct device *d)
{
    if (!state_int(s, 0, "gpus.%d.mig.enabled", d->gpu))
        return 0;
    int count = (int)state_int(s, 0, "gpus.%d.mig.devices.count", d->gpu);
    return count < MIGS ? count : MIGS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, u32 *current, u32 *pending)
{
    OPEN(enter_gpu, d);
    NEED(current && pending);
    if (!capable(&s, d))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = (u32)state_int(&s, 0, "gpus.%d.mig.enabled", d->gpu);
    *pending = (u32)state_int(&s, *current, "gpus.%d.mig.pending", d->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, u32 *count)
{
    OPEN(enter_gpu, d);
    NEED(count);
    *count = capable(&s, d) ? 7 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, u32 *is)
{
    OPEN(enter, d);
    NEED(is);
    *is = d->mig >= 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, u32 index, nvmlDevice_t *mig)
{
    OPEN(enter_gpu, d);
    NEED(mig && index < MIGS);
    if (!capable(&s, d))
        return NVML_ERROR_NOT_SUPPORTED;
    if ((int)index >= instances(&s, d) || !mig_visible(&s, d->gpu, (int)index))
        return NVML_ERROR_NOT_FOUND;
    *mig = mig_handle(d, (int)index);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *d)
{
    OPEN(enter, mig);
    NEED(d && mig->mig >= 0);
    for (int i = 0; i < gpu_count(); i++)
        if (gpu_handle(i)->gpu == mig->gpu)
            *d = gpu_handle(i);
    return NVML_SUCCESS;
}

static nvmlReturn_t instance_number(nvmlDevice_t d, const char *property, u32 *into, const char *function)
{
    struct state s __attribute__((cleanup(state_free))) = {0};
    nvmlReturn_t result = enter(&s, d, function);
    if (result)
        return result;
    NEED(into && d->mig >= 0);
    *into = (u32)mig_int(&s, d->gpu, d->mig, property);
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, u32 *id) { return instance_number(d, "gi", id, __func__); }
EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, u32 *id) { return instance_number(d, "ci", id, __func__); }

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *into)
{
    OPEN(enter, d);
    NEED(into);
    if (d->mig < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(into, 0, sizeof *into);
    into->gpuInstanceSliceCount = into->computeInstanceSliceCount = (u32)mig_int(&s, d->gpu, d->mig, "slices");
    into->multiprocessorCount = (u32)mig_int(&s, d->gpu, d->mig, "multiprocessors");
    into->sharedCopyEngineCount = into->gpuInstanceSliceCount;
    into->memorySizeMB = (u64)mig_int(&s, d->gpu, d->mig, "memory_mib");
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t d, nvmlDeviceAttributes_t *into)
{
    return nvmlDeviceGetAttributes_v2(d, into);
}

/* Profiles: gpus.N.mig.profiles.K.{profile,id,slices,count,multiprocessors,memory_mib,name}, `profile` as in nvml.h. */
static int profile_at(const struct state *s, const struct device *d, const char *property, u32 value)
{
    for (int k = 0; k < state_int(s, 0, "gpus.%d.mig.profiles.count", d->gpu); k++)
        if (state_int(s, -1, "gpus.%d.mig.profiles.%d.%s", d->gpu, k, property) == value)
            return k;
    return -1;
}

static long long profile_int(const struct state *s, const struct device *d, int k, const char *property)
{
    return state_int(s, 0, "gpus.%d.mig.profiles.%d.%s", d->gpu, k, property);
}

#define FILL(into) \
    do { \
        (into)->id = (u32)profile_int(&s, d, k, "id"); \
        (into)->sliceCount = (u32)profile_int(&s, d, k, "slices"); \
        (into)->instanceCount = (u32)profile_int(&s, d, k, "count"); \
        (into)->multiprocessorCount = (u32)profile_int(&s, d, k, "multiprocessors"); \
        (into)->copyEngineCount = (into)->sliceCount; \
        (into)->memorySizeMB = (u64)profile_int(&s, d, k, "memory_mib"); \
    } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, u32 profile, nvmlGpuInstanceProfileInfo_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    int k = profile_at(&s, d, "profile", profile);
    if (k < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(into, 0, sizeof *into);
    FILL(into);
    return NVML_SUCCESS;
}

static nvmlReturn_t profile_versioned(const struct state *state, nvmlDevice_t d, int k, nvmlGpuInstanceProfileInfo_v2_t *into)
{
    struct state s = *state;
    NEED(into);
    if (k < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const char *name = state_get(&s, "gpus.%d.mig.profiles.%d.name", d->gpu, k);
    u32 version = into->version;
    if (version == VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        memset(into, 0, sizeof *into);
        FILL(into);
        snprintf(into->name, sizeof into->name, "MIG %s", name);
    } else if (version == VERSIONED(nvmlGpuInstanceProfileInfo_v3_t, 3)) {
        nvmlGpuInstanceProfileInfo_v3_t *v3 = (void *)into;
        memset(v3, 0, sizeof *v3);
        FILL(v3);
        snprintf(v3->name, sizeof v3->name, "MIG %s", name);
    } else {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    into->version = version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t d, u32 profile, nvmlGpuInstanceProfileInfo_v2_t *into)
{
    OPEN(enter_gpu, d);
    return profile_versioned(&s, d, profile_at(&s, d, "profile", profile), into);
}
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t d, u32 id, nvmlGpuInstanceProfileInfo_v2_t *into)
{
    OPEN(enter_gpu, d);
    return profile_versioned(&s, d, profile_at(&s, d, "id", id), into);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t d, u32 profile_id, nvmlGpuInstance_t *list, u32 *count)
{
    OPEN(enter_gpu, d);
    NEED(list && count);
    *count = 0;
    for (int m = 0; m < instances(&s, d); m++)
        if (mig_int(&s, d->gpu, m, "profile_id") == profile_id) {
            gpu_instances[d->index][m] = (struct instance){d, m};
            list[(*count)++] = &gpu_instances[d->index][m];
        }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t d, u32 id, nvmlGpuInstance_t *into)
{
    OPEN(enter_gpu, d);
    NEED(into);
    for (int m = 0; m < instances(&s, d); m++)
        if (mig_int(&s, d->gpu, m, "gi") == id) {
            gpu_instances[d->index][m] = (struct instance){d, m};
            *into = &gpu_instances[d->index][m];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *into)
{
    NEED(gi && into);
    OPEN(enter_gpu, gi->parent);
    int gpu = gi->parent->gpu;
    *into = (nvmlGpuInstanceInfo_t){gi->parent, (u32)mig_int(&s, gpu, gi->mig, "gi"),
                                    (u32)mig_int(&s, gpu, gi->mig, "profile_id"),
                                    {(u32)mig_int(&s, gpu, gi->mig, "start"), (u32)mig_int(&s, gpu, gi->mig, "size")}};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, u32 profile_id, nvmlComputeInstance_t *list, u32 *count)
{
    NEED(gi && list && count);
    OPEN(enter_gpu, gi->parent);
    compute_instances[gi->parent->index][gi->mig] = *gi;
    /* the lab has one compute instance a GPU instance, of all its slices: compute profile N-1 of N slices */
    u32 slices = (u32)mig_int(&s, gi->parent->gpu, gi->mig, "slices");
    *count = profile_id == (slices == 7 ? 4 : slices - 1);
    if (*count)
        list[0] = &compute_instances[gi->parent->index][gi->mig];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, u32 id, nvmlComputeInstance_t *into)
{
    NEED(gi && into);
    OPEN(enter_gpu, gi->parent);
    if (id != (u32)mig_int(&s, gi->parent->gpu, gi->mig, "ci"))
        return NVML_ERROR_NOT_FOUND;
    compute_instances[gi->parent->index][gi->mig] = *gi;
    *into = &compute_instances[gi->parent->index][gi->mig];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *into)
{
    NEED(ci && into);
    OPEN(enter_gpu, ci->parent);
    u32 slices = (u32)mig_int(&s, ci->parent->gpu, ci->mig, "slices");
    *into = (nvmlComputeInstanceInfo_t){ci->parent, &gpu_instances[ci->parent->index][ci->mig],
                                        (u32)mig_int(&s, ci->parent->gpu, ci->mig, "ci"),
                                        slices == 7 ? 4 : slices - 1, {0, slices}};
    return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *into)
{
    return nvmlComputeInstanceGetInfo_v2(ci, into);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, u32 profile, u32 engine,
                                                                nvmlComputeInstanceProfileInfo_t *into)
{
    NEED(gi && into && !engine);
    OPEN(enter_gpu, gi->parent);
    static const u32 slices_of[] = {1, 2, 3, 4, 7};
    u32 have = (u32)mig_int(&s, gi->parent->gpu, gi->mig, "slices");
    if (profile >= 5 || slices_of[profile] > have)
        return NVML_ERROR_NOT_SUPPORTED;
    *into = (nvmlComputeInstanceProfileInfo_t){.id = profile, .sliceCount = slices_of[profile],
                                               .instanceCount = have / slices_of[profile]};
    return NVML_SUCCESS;
}
