/* NVML of eight GPUs that are well, as far as both device plugins ask it: for `bench/plugin/__main__.py`. Its wait for events blocks. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef unsigned u;
enum { OK, NOT_SUPPORTED = 3, TIMEOUT = 10, GPUS = 8 };
typedef struct { char old[16]; u domain, bus, device, id, sub; char bus_id[32]; } pci;

static u number(void *handle) { return (u)((uintptr_t)handle - 1); }

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(u flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : code == TIMEOUT ? "Timeout" : "?"; }
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
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = 80ull << 30; m[1] = m[0]; m[2] = 0; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { *a = 9; *b = 0; return OK; }
int nvmlDeviceGetMigMode(void *h, u *a, u *b) { return NOT_SUPPORTED; }
int nvmlDeviceIsMigDeviceHandle(void *h, u *n) { *n = 0; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, u *n) { *n = 0; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *n) { *n = 1; return OK; }
int nvmlDeviceGetRemappedRows(void *h, u *a, u *b, u *c, u *d) { return NOT_SUPPORTED; }
int nvmlDeviceGetFieldValues(void *h, int n, u *values) { values[7] = NOT_SUPPORTED; return OK; }
int nvmlDeviceGetNvLinkState(void *h, u link, u *active) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, u link, pci *p) { return NOT_SUPPORTED; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, u *level) { *level = 50; return OK; }
int nvmlDeviceGetP2PStatus(void *a, void *b, u kind, u *status) { *status = 1; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *types) { *types = 0x1f; return OK; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) { return OK; }
int nvmlEventSetCreate(void **set) { static int any; *set = &any; return OK; }
int nvmlEventSetFree(void *set) { return OK; }
static int wait(u ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); return TIMEOUT; }
int nvmlEventSetWait_v2(void *set, void *data, u ms) { return wait(ms); }
int nvmlEventSetWait(void *set, void *data, u ms) { return wait(ms); }
