/* Stand-in nvidia-smi: the table, -L, --query-gpu, --query-compute-apps, --version, -i, over whatever
 * libnvidia-ml.so.1 is there. Texts and exit statuses of failures are the real ones. */
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX = 64, EXIT_INVALID = 2, EXIT_NO_DEVICE = 6, EXIT_NO_DRIVER = 9, EXIT_NO_LIBRARY = 12 };

static void *library;
static int header = 1, units = 1;
static const char *only;

/* Calls a function of the library by name; FUNCTION_NOT_FOUND (13) when it has none. */
#define CALL(name, types, ...) \
    (dlsym(library, #name) ? ((nvmlReturn_t(*) types)dlsym(library, #name))(__VA_ARGS__) : (nvmlReturn_t)13)
#define NUMBER(name, device, into) CALL(name, (nvmlDevice_t, u32 *), device, into)
#define STRING(name, device, into) CALL(name, (nvmlDevice_t, char *, u32), device, into, sizeof into)

static const char *error_text(nvmlReturn_t code)
{
    const char *(*text)(nvmlReturn_t) = (const char *(*)(nvmlReturn_t))dlsym(library, "nvmlErrorString");
    return text(code);
}

static void open_library(void)
{
    char version[96];
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
             "Driver is properly installed and present in your system.\n"
             "Please also try adding directory that contains libnvidia-ml.so to your system PATH.");
        exit(EXIT_NO_LIBRARY);
    }
    nvmlReturn_t result = CALL(nvmlInit_v2, (void));
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
             "NVIDIA driver is installed and running.\n");
        exit(EXIT_NO_DRIVER);
    }
    if (result == NVML_ERROR_LIB_RM_VERSION_MISMATCH) {
        CALL(nvmlSystemGetNVMLVersion, (char *, u32), version, sizeof version);
        char *library_version = strchr(version, '.') + 1, *second = strchr(strchr(library_version, '.') + 1, '.');
        if (second)
            *second = 0;
        printf("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: %s\n", library_version);
        exit(result);
    }
    if (result) {
        printf("Failed to initialize NVML: %s\n", error_text(result));
        exit(result == NVML_ERROR_UNKNOWN ? 255 : (int)result);
    }
}

static int devices(nvmlDevice_t *list)
{
    u32 count = 0, found = 0;
    CALL(nvmlDeviceGetCount_v2, (u32 *), &count);
    for (u32 i = 0; i < count && i < MAX; i++) {
        nvmlDevice_t device;
        nvmlPciInfo_t pci = {0};
        char uuid[96] = "", index[16];
        nvmlReturn_t result = CALL(nvmlDeviceGetHandleByIndex_v2, (u32, nvmlDevice_t *), i, &device);
        if (result) {
            printf("Unable to determine the device handle for GPU%u: %s%s\n", i, error_text(result),
                   result == NVML_ERROR_GPU_IS_LOST ? ".  Reboot the system to recover this GPU" : "");
            if (only && atoi(only) == (int)i)
                exit((int)result);
            continue;
        }
        STRING(nvmlDeviceGetUUID, device, uuid);
        CALL(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *), device, &pci);
        snprintf(index, sizeof index, "%u", i);
        if (!only || !strcmp(only, index) || !strcmp(only, uuid) || !strcasecmp(only, pci.busId) || !strcasecmp(only, pci.busIdLegacy))
            list[found++] = device;
    }
    if (!count || !found) {
        puts("No devices were found");
        exit(EXIT_NO_DEVICE);
    }
    return (int)found;
}

static void list(void)
{
    nvmlDevice_t all[MAX];
    int count = devices(all);
    for (int i = 0; i < count; i++) {
        char name[96], uuid[96];
        u32 index, most = 0;
        NUMBER(nvmlDeviceGetIndex, all[i], &index);
        STRING(nvmlDeviceGetName, all[i], name);
        STRING(nvmlDeviceGetUUID, all[i], uuid);
        printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
        NUMBER(nvmlDeviceGetMaxMigDeviceCount, all[i], &most);
        for (u32 m = 0; m < most; m++) {
            nvmlDevice_t mig;
            if (CALL(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, u32, nvmlDevice_t *), all[i], m, &mig))
                continue;
            STRING(nvmlDeviceGetName, mig, name);
            STRING(nvmlDeviceGetUUID, mig, uuid);
            char *profile = strstr(name, "MIG ");
            printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 4 : "", m, uuid);
        }
    }
}

/* One value of --query-gpu; 0 when the field is not known. */
static int field(nvmlDevice_t d, const char *name, char *into, size_t room)
{
    nvmlPciInfo_t pci = {0};
    nvmlMemory_t memory = {0};
    nvmlUtilization_t use = {0};
    char text[128] = "";
    u32 n = 0, m = 0;
    int major = 0, minor = 0;
    nvmlReturn_t r = NVML_SUCCESS;
    const char *unit = "";
    CALL(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *), d, &pci);
#define IS(other) (!strcmp(name, other))
#define SAY(...) snprintf(text, sizeof text, __VA_ARGS__)
    if (IS("index")) r = NUMBER(nvmlDeviceGetIndex, d, &n), SAY("%u", n);
    else if (IS("count")) r = CALL(nvmlDeviceGetCount_v2, (u32 *), &n), SAY("%u", n);
    else if (IS("uuid") || IS("gpu_uuid")) r = STRING(nvmlDeviceGetUUID, d, text);
    else if (IS("name") || IS("gpu_name")) r = STRING(nvmlDeviceGetName, d, text);
    else if (IS("serial") || IS("gpu_serial")) r = STRING(nvmlDeviceGetSerial, d, text);
    else if (IS("vbios_version")) r = STRING(nvmlDeviceGetVbiosVersion, d, text);
    else if (IS("driver_version")) r = CALL(nvmlSystemGetDriverVersion, (char *, u32), text, sizeof text);
    else if (IS("pci.bus_id") || IS("gpu_bus_id")) SAY("%s", pci.busId);
    else if (IS("pci.domain")) SAY("0x%04X", pci.domain & 0xffff);
    else if (IS("pci.bus")) SAY("0x%02X", pci.bus & 0xff);
    else if (IS("pci.device")) SAY("0x%02X", pci.device & 0xff);
    else if (IS("pci.device_id")) SAY("0x%08X", pci.pciDeviceId);
    else if (IS("pci.sub_device_id")) SAY("0x%08X", pci.pciSubSystemId);
    else if (!strncmp(name, "memory.", 7)) {
        r = CALL(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *), d, &memory);
        unit = " MiB";
        if (IS("memory.total")) SAY("%llu", memory.total >> 20);
        else if (IS("memory.used")) SAY("%llu", memory.used >> 20);
        else if (IS("memory.free")) SAY("%llu", memory.free >> 20);
        else return 0;
    } else if (IS("utilization.gpu") || IS("utilization.memory")) {
        r = CALL(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *), d, &use);
        unit = " %";
        SAY("%u", IS("utilization.gpu") ? use.gpu : use.memory);
    } else if (IS("temperature.gpu")) r = CALL(nvmlDeviceGetTemperature, (nvmlDevice_t, u32, u32 *), d, 0, &n), SAY("%u", n);
    else if (IS("power.draw")) r = NUMBER(nvmlDeviceGetPowerUsage, d, &n), unit = " W", SAY("%.2f", n / 1000.0);
    else if (IS("power.limit")) r = NUMBER(nvmlDeviceGetEnforcedPowerLimit, d, &n), unit = " W", SAY("%.2f", n / 1000.0);
    else if (IS("persistence_mode")) r = NUMBER(nvmlDeviceGetPersistenceMode, d, &n), SAY("%s", n ? "Enabled" : "Disabled");
    else if (IS("compute_mode")) r = NUMBER(nvmlDeviceGetComputeMode, d, &n), SAY("%s", n == 3 ? "Exclusive_Process" : n == 2 ? "Prohibited" : "Default");
    else if (IS("pstate")) r = NUMBER(nvmlDeviceGetPerformanceState, d, &n), SAY("P%u", n);
    else if (IS("compute_cap")) r = CALL(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *), d, &major, &minor), SAY("%d.%d", major, minor);
    else if (IS("mig.mode.current") || IS("mig.mode.pending")) r = CALL(nvmlDeviceGetMigMode, (nvmlDevice_t, u32 *, u32 *), d, &n, &m), SAY("%s", (IS("mig.mode.current") ? n : m) ? "Enabled" : "Disabled");
    else if (IS("ecc.mode.current") || IS("ecc.mode.pending")) r = CALL(nvmlDeviceGetEccMode, (nvmlDevice_t, u32 *, u32 *), d, &n, &m), SAY("%s", (IS("ecc.mode.current") ? n : m) ? "Enabled" : "Disabled");
    else return 0;
    if (r)
        snprintf(into, room, "%s", r == NVML_ERROR_NOT_SUPPORTED ? "[N/A]" : r == NVML_ERROR_GPU_IS_LOST ? "[GPU is lost]" : "[Unknown Error]");
    else
        snprintf(into, room, "%s%s", text, units ? unit : "");
    return 1;
}

static const char *unit_of(const char *name)
{
    if (!strncmp(name, "memory.", 7) || !strncmp(name, "used_gpu_memory", 15) || !strncmp(name, "used_memory", 11)) return " [MiB]";
    if (!strncmp(name, "utilization.", 12)) return " [%]";
    return !strncmp(name, "power.", 6) ? " [W]" : "";
}

static int split(char *fields, char **names)
{
    int count = 0;
    for (char *word; count < MAX && (word = strsep(&fields, ","));)
        names[count++] = word + strspn(word, " ");
    return count;
}

static void heading(char **names, int count)
{
    for (int f = 0; header && f < count; f++)
        printf("%s%s%s", names[f], units ? unit_of(names[f]) : "", f + 1 < count ? ", " : "\n");
}

static int query_gpu(char *fields)
{
    nvmlDevice_t all[MAX];
    char *names[MAX], value[160];
    int count = devices(all), wanted = split(fields, names);
    for (int f = 0; f < wanted; f++)
        if (!field(all[0], names[f], value, sizeof value)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", names[f]);
            return EXIT_INVALID;
        }
    heading(names, wanted);
    for (int i = 0; i < count; i++)
        for (int f = 0; f < wanted; f++) {
            field(all[i], names[f], value, sizeof value);
            printf("%s%s", value, f + 1 < wanted ? ", " : "\n");
        }
    return 0;
}

static int query_apps(char *fields)
{
    nvmlDevice_t all[MAX];
    char *names[MAX], uuid[96], process[128];
    int count = devices(all), wanted = split(fields, names);
    heading(names, wanted);
    for (int i = 0; i < count; i++) {
        nvmlProcessInfo_t infos[MAX];
        u32 running = MAX;
        if (CALL(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, u32 *, nvmlProcessInfo_t *), all[i], &running, infos))
            continue;
        STRING(nvmlDeviceGetUUID, all[i], uuid);
        for (u32 p = 0; p < running; p++)
            for (int f = 0; f < wanted; f++) {
                char text[160];
                if (!strcmp(names[f], "pid")) snprintf(text, sizeof text, "%u", infos[p].pid);
                else if (!strcmp(names[f], "gpu_uuid")) snprintf(text, sizeof text, "%s", uuid);
                else if (!strcmp(names[f], "process_name") || !strcmp(names[f], "name"))
                    snprintf(text, sizeof text, "%s", CALL(nvmlSystemGetProcessName, (u32, char *, u32), infos[p].pid, process, sizeof process) ? "[Not Found]" : process);
                else if (!strncmp(names[f], "used", 4)) snprintf(text, sizeof text, "%llu%s", infos[p].usedGpuMemory >> 20, units ? " MiB" : "");
                else {
                    printf("Field \"%s\" is not a valid field to query.\n\n", names[f]);
                    return EXIT_INVALID;
                }
                printf("%s%s", text, f + 1 < wanted ? ", " : "\n");
            }
    }
    return 0;
}

static void table(void)
{
    nvmlDevice_t all[MAX];
    char driver[96] = "", now[64];
    int cuda = 0, count = devices(all), any = 0;
    time_t t = time(NULL);
    CALL(nvmlSystemGetDriverVersion, (char *, u32), driver, sizeof driver);
    CALL(nvmlSystemGetCudaDriverVersion_v2, (int *), &cuda);
    strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&t));
    printf("%s       \n", now);
    static const char line[] = "+-----------------------------------------+------------------------+----------------------+";
    puts("+-----------------------------------------------------------------------------------------+");
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %d.%-5d |\n", driver, driver, cuda / 1000, cuda % 1000 / 10);
    puts(line);
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                        |               MIG M. |");
    puts("|=========================================+========================+======================|");
    for (int i = 0; i < count; i++) {
        char v[12][160];
        static const char *const names[] = {"index", "name", "persistence_mode", "pci.bus_id", "temperature.gpu", "pstate", "power.draw",
                                            "power.limit", "memory.used", "memory.total", "utilization.gpu", "mig.mode.current"};
        units = 0;
        for (int f = 0; f < 12; f++)
            field(all[i], names[f], v[f], sizeof v[f]);
        printf("| %3s  %-26.26s %7s | %-16s   Off | %20s |\n", v[0], v[1], strcmp(v[2], "Enabled") ? "Off" : "On", v[3], "0");
        printf("| N/A %4sC    %-3s %13.0fW / %4.0fW | %7sMiB / %6sMiB | %6s%%      Default |\n", v[4], v[5], atof(v[6]), atof(v[7]), v[8], v[9], strcmp(v[10], "[N/A]") ? v[10] : "N/A");
        printf("| %39s | %22s | %20s |\n", "", "", strcmp(v[11], "[N/A]") ? v[11] : "N/A");
        puts(line);
    }
    puts("\n+-----------------------------------------------------------------------------------------+");
    puts("| Processes:                                                                              |");
    puts("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |");
    puts("|=========================================================================================|");
    for (int i = 0; i < count; i++) {
        nvmlProcessInfo_t infos[MAX];
        u32 running = MAX;
        if (CALL(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, u32 *, nvmlProcessInfo_t *), all[i], &running, infos))
            continue;
        for (u32 p = 0; p < running; p++, any = 1) {
            char process[128] = "";
            u32 index = 0;
            NUMBER(nvmlDeviceGetIndex, all[i], &index);
            CALL(nvmlSystemGetProcessName, (u32, char *, u32), infos[p].pid, process, sizeof process);
            printf("| %4u   N/A  N/A %16u      C   %-30.30s %9lluMiB |\n", index, infos[p].pid, process, infos[p].usedGpuMemory >> 20);
        }
    }
    if (!any)
        puts("|  No running processes found                                                             |");
    puts("+-----------------------------------------------------------------------------------------+");
}

static void version(void)
{
    char driver[96] = "N/A", nvml[96] = "N/A";
    int cuda = 0;
    CALL(nvmlSystemGetDriverVersion, (char *, u32), driver, sizeof driver);
    CALL(nvmlSystemGetNVMLVersion, (char *, u32), nvml, sizeof nvml);
    CALL(nvmlSystemGetCudaDriverVersion_v2, (int *), &cuda);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n", driver,
           strchr(nvml, '.') + 1, driver, cuda / 1000, cuda % 1000 / 10);
}

int main(int argc, char **argv)
{
    char *gpu_fields = NULL, *app_fields = NULL;
    int want_list = 0, want_version = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus")) want_list = 1;
        else if (!strcmp(argv[i], "--version")) want_version = 1;
        else if (!strncmp(argv[i], "--query-gpu=", 12)) gpu_fields = argv[i] + 12;
        else if (!strncmp(argv[i], "--query-compute-apps=", 21)) app_fields = argv[i] + 21;
        else if (!strncmp(argv[i], "--format=csv", 12)) header = !strstr(argv[i], "noheader"), units = !strstr(argv[i], "nounits");
        else if (!strncmp(argv[i], "--id=", 5)) only = argv[i] + 5;
        else if (!strcmp(argv[i], "-i") && i + 1 < argc) only = argv[++i];
        else {
            printf("Option %s is not one that the lab's nvidia-smi has.\n", argv[i]);
            return EXIT_INVALID;
        }
    }
    open_library();
    if (want_version) version();
    else if (want_list) list();
    else if (gpu_fields) return query_gpu(gpu_fields);
    else if (app_fields) return query_apps(app_fields);
    else table();
    return 0;
}
