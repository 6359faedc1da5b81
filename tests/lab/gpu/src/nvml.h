/* The part of NVML's binary interface that the stand-in answers, written from its documentation.
 * Sizes and orders of fields are what callers (go-nvml, nvidia-ml-py, nvidia-smi) rely on. */
#ifndef LAB_NVML_H
#define LAB_NVML_H

typedef struct device *nvmlDevice_t;
typedef struct instance *nvmlGpuInstance_t, *nvmlComputeInstance_t;
typedef struct events *nvmlEventSet_t;

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef unsigned int u32;
typedef unsigned long long u64;

/* The version field of a versioned struct: its size and its number. */
#define VERSIONED(type, number) ((u32)(sizeof(type) | ((u32)(number) << 24)))

typedef struct {
    char busIdLegacy[16];
    u32 domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    char busId[16];
    u32 domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
    u32 version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_t;

typedef struct { u64 total, free, used; } nvmlMemory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { u64 bar1Total, bar1Free, bar1Used; } nvmlBAR1Memory_t;
typedef struct { u32 gpu, memory; } nvmlUtilization_t;
typedef struct { u32 version, sensorType; int temperature; } nvmlTemperature_t;
typedef struct { u32 pid; u64 usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct { u32 pid; u64 usedGpuMemory; u32 gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef struct { u32 version, value; } nvmlVersionedValue_t;
typedef struct { u32 version; char branch[80]; } nvmlBranchInfo_t;
typedef struct { u32 max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;

typedef struct { nvmlDevice_t device; u64 eventType, eventData; } nvmlEventData_v1_t;
typedef struct { nvmlDevice_t device; u64 eventType, eventData; u32 gpuInstanceId, computeInstanceId; } nvmlEventData_t;

typedef struct { unsigned char clusterUuid[16]; nvmlReturn_t status; u32 cliqueId; unsigned char state; } nvmlGpuFabricInfo_t;
typedef struct {
    u32 version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    u32 cliqueId;
    unsigned char state;
    u32 healthMask;
} nvmlGpuFabricInfo_v2_t;
typedef struct {
    u32 version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    u32 cliqueId;
    unsigned char state;
    u32 healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
    u32 multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount;
    u32 sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    u64 memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    u32 id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    u32 version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    u32 version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
    char name[96];
    u32 capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct { u32 start, size; } nvmlPlacement_t;
typedef struct { nvmlDevice_t device; u32 id, profileId; nvmlPlacement_t placement; } nvmlGpuInstanceInfo_t;
typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    u32 id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;
typedef struct {
    u32 id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount;
    u32 sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    u32 fieldId, scopeId;
    long long timestamp, latencyUsec;
    u32 valueType;
    nvmlReturn_t nvmlReturn;
    union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; int si; } value;
} nvmlFieldValue_t;

typedef struct { const char *nameSpace; u64 softLimit, hardLimit; } nvmlSetMemoryLimits_v1_t;
typedef struct { const char *nameSpace; u64 softLimit, hardLimit, currentUsed; } nvmlGetMemoryLimits_v1_t;
#endif
