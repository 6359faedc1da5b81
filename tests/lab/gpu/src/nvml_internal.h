/* What the parts of the stand-in NVML share. */
#ifndef LAB_NVML_INTERNAL_H
#define LAB_NVML_INTERNAL_H
#include "driver.h"
#include "nvml.h"

/* What a handle points to. `gpu` is the number in the node's configuration, `index` NVML's; mig < 0: the GPU. */
struct device {
    int gpu, index, mig;
};

/* Opens a call: is NVML initialised, is the handle one of ours, what is the state now, is the GPU there?
 * Waits while the state says `hang`, and answers `fault.<function>` if the state has one. */
nvmlReturn_t enter(struct state *s, const struct device *d, const char *function);
/* As enter(), of a full GPU only: a MIG handle gets NOT_SUPPORTED. */
nvmlReturn_t enter_gpu(struct state *s, const struct device *d, const char *function);
/* As enter(), of a call that names no device. */
nvmlReturn_t enter_system(struct state *s, const char *function);

#define OPEN(how, device) \
    struct state s __attribute__((cleanup(state_free))) = {0}; \
    nvmlReturn_t opened = how(&s, device, __func__); \
    if (opened) \
        return opened
#define OPEN_SYSTEM() \
    struct state s __attribute__((cleanup(state_free))) = {0}; \
    nvmlReturn_t opened = enter_system(&s, __func__); \
    if (opened) \
        return opened
#define NEED(condition) \
    if (!(condition)) \
        return NVML_ERROR_INVALID_ARGUMENT

nvmlReturn_t give_text(const char *value, char *into, unsigned length);
/* The GPU's number of a property, or NOT_SUPPORTED when its configuration does not have it. */
nvmlReturn_t give_number(const struct state *s, const struct device *d, const char *property, unsigned *into);
struct device *gpu_handle(int index);
struct device *mig_handle(const struct device *parent, int mig);
int gpu_count(void);
#endif
