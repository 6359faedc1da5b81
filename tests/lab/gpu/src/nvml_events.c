/* Stand-in NVML: event sets. The one event that happens is an Xid (`lab-gpu xid`). */
#define _GNU_SOURCE
#include "nvml_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { XID = 8, POLL_MS = 20 };

struct events {
    u64 mask[GPUS];    /* what is registered of the GPU with this configuration number */
    long long next;    /* the first event that was not delivered */
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    OPEN_SYSTEM();
    NEED(set);
    *set = calloc(1, sizeof **set);
    (*set)->next = state_int(&s, 1, "events.next");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

static u64 supported(const struct state *s, const struct device *d)
{
    return (u64)state_int(s, 0x1f, "gpus.%d.events", d->gpu);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, u64 *types)
{
    OPEN(enter_gpu, d);
    NEED(types);
    *types = supported(&s, d);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, u64 types, nvmlEventSet_t set)
{
    OPEN(enter_gpu, d);
    NEED(set);
    if (types & ~supported(&s, d))
        return NVML_ERROR_NOT_SUPPORTED;
    set->mask[d->gpu] |= types;
    return NVML_SUCCESS;
}

/* The next undelivered event of the set: 1 and *data, or 0. */
static int take(const struct state *s, struct events *set, nvmlEventData_t *data)
{
    for (long long last = state_int(s, 1, "events.next"); set->next < last; set->next++) {
        const char *event = state_get(s, "events.%lld", set->next);
        u32 gpu, xid, gi = 0xffffffff, ci = 0xffffffff;
        if (!event || sscanf(event, "%u %u %u %u", &gpu, &xid, &gi, &ci) < 2 || gpu >= GPUS || !(set->mask[gpu] & XID))
            continue;
        for (int i = 0; i < gpu_count(); i++)
            if (gpu_handle(i)->gpu == (int)gpu) {
                *data = (nvmlEventData_t){gpu_handle(i), XID, xid, gi, ci};
                set->next++;
                return 1;
            }
    }
    return 0;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, nvmlEventData_t *data, u32 timeout_ms, const char *function)
{
    NEED(set && data);
    for (u64 waited = 0;; waited += POLL_MS) {
        struct state s __attribute__((cleanup(state_free))) = {0};
        nvmlReturn_t result = enter_system(&s, function);
        if (result)
            return result;
        if (take(&s, set, data))
            return NVML_SUCCESS;
        for (int gpu = 0; gpu < GPUS; gpu++)
            if (set->mask[gpu] && state_int(&s, 0, "gpus.%d.lost", gpu))
                return NVML_ERROR_GPU_IS_LOST;
        if (waited >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){0, POLL_MS * 1000000L}, NULL);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, u32 timeout_ms)
{
    return wait_event(set, data, timeout_ms, __func__);
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data, u32 timeout_ms)
{
    nvmlEventData_t full;
    NEED(data);
    nvmlReturn_t result = wait_event(set, &full, timeout_ms, __func__);
    if (!result)
        *data = (nvmlEventData_v1_t){full.device, full.eventType, full.eventData};
    return result;
}
