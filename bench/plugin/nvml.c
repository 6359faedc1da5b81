/* NVML of eight GPUs, as far as both device plugins ask it: for `bench/plugin/__main__.py`. Its wait for events blocks. Faults come through
   the FIFO $BENCH_FAULTS, two bytes each: the GPU's number, and x (an Xid) or l (it is lost, which fails each wait for it at once). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned u;
enum { OK, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15, GPUS = 8 };
typedef struct { void *device; unsigned long long type, data; u gpu_instance, compute_instance; } event;
static int faults = -1;
static volatile int lost[GPUS];
typedef struct { char old[16]; u domain, bus, device, id, sub; char bus_id[32]; } pci;

static u number(void *handle) { return (u)((uintptr_t)handle - 1); }
static int answer(void *handle) { return lost[number(handle)] ? LOST : OK; }

int nvmlInit_v2(void) { const char *path = getenv("BENCH_FAULTS"); if (path && faults < 0) faults = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); return OK; }
int nvmlInitWithFlags(u flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : code == TIMEOUT ? "Timeout" : code == LOST ? "GPU is lost" : "?"; }
int nvmlSystemGetDriverVersion(char *text, u size) { strncpy(text, "580.178.04", size); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *n) { *n = 13000; return OK; }
int nvmlDeviceGetCount_v2(u *n) { *n = GPUS; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u i, void **handle) { *handle = (void *)(uintptr_t)(i + 1); return i < GPUS ? OK : 2; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { u i; sscanf(uuid, "GPU-%x", &i); return nvmlDeviceGetHandleByIndex_v2(i, handle); }
int nvmlDeviceGetIndex(void *h, u *n) { *n = number(h); return OK; }
int nvmlDeviceGetMinorNumber(void *h, u *n) { *n = number(h); return OK; }
int nvmlDeviceGetUUID(void *h, char *text, u size) { snprintf(text, size, "GPU-%08x-0000-0000-0000-000000000000", number(h)); return OK; }
int nvmlDeviceGetName(void *h, char *text, u size) { strncpy(text, "NVIDIA H100 80GB HBM3", size); return OK; }
int nvmlDeviceGetPciInfo_v3(void *h, pci *p) { memset(p, 0, sizeof *p); snprintf(p->bus_id, 32, "00000000:%02X:00.0", 16 + number(h)); p->bus = 16 + number(h); return OK; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = 80ull << 30; m[1] = m[0]; m[2] = 0; return answer(h); }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { *a = 9; *b = 0; return OK; }
int nvmlDeviceGetMigMode(void *h, u *a, u *b) { return NOT_SUPPORTED; }
int nvmlDeviceIsMigDeviceHandle(void *h, u *n) { *n = 0; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, u *n) { *n = 0; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *n) { *n = 1; return OK; }
int nvmlDeviceGetRemappedRows(void *h, u *a, u *b, u *c, u *d) { *a = *b = *c = *d = 0; return OK; }
int nvmlDeviceGetFieldValues(void *h, int n, u *values) { values[7] = OK, values[8] = 0; return OK; }
int nvmlDeviceGetNvLinkState(void *h, u link, u *active) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, u link, pci *p) { return NOT_SUPPORTED; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, u *level) { *level = 50; return OK; }
int nvmlDeviceGetP2PStatus(void *a, void *b, u kind, u *status) { *status = 1; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *types) { *types = 0x1f; return OK; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, u *set) { *set |= 1u << number(h); return answer(h); }
int nvmlEventSetCreate(u **set) { *set = calloc(1, sizeof **set); return OK; }
int nvmlEventSetFree(u *set) { free(set); return OK; }

static int wait_event(u *set, event *data, u ms)
{
    for (int i = 0; i < GPUS; i++)
        if (*set >> i & 1 && lost[i])
            return LOST;
    unsigned char fault[2];
    if (poll(&(struct pollfd){faults, POLLIN, 0}, faults >= 0, ms) <= 0 || read(faults, fault, 2) != 2)
        return TIMEOUT;
    if (fault[1] == 'l') {
        lost[fault[0]] = 1;
        return LOST;
    }
    data->device = (void *)(uintptr_t)(fault[0] + 1), data->type = 8, data->data = 79;
    return OK;
}

int nvmlEventSetWait_v2(u *set, event *data, u ms) { data->gpu_instance = data->compute_instance = ~0u; return wait_event(set, data, ms); }
int nvmlEventSetWait(u *set, event *data, u ms) { return wait_event(set, data, ms); }
