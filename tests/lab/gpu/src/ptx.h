/* A small interpreter of PTX: the instructions that gpunode's kernels use, on the CPU. */
#ifndef LAB_PTX_H
#define LAB_PTX_H
#include <stddef.h>
#include <stdint.h>

enum { PTX_PARAMETERS = 16, PTX_THREADS = 1024 };

struct ptx_kernel;
/* What a launch did, for the clock of the GPU that is stood in for. */
struct ptx_work {
    uint64_t bytes, operations;
};
/* The host's address of `size` bytes at a GPU's address, or NULL; *room gets how many bytes from there on are the same
 * allocation's. */
typedef char *ptx_memory(uint64_t address, size_t size, size_t *room);
/* Called after a store, with the GPU's and the host's address of it. */
typedef void ptx_stored(uint64_t address, char *memory, size_t size);

/* Parses every entry. NULL: an instruction, a register or a label that is not known; `log` says which. */
struct ptx_kernel *ptx_parse(const char *text, char *log, size_t room);
void ptx_free(struct ptx_kernel *kernels);
struct ptx_kernel *ptx_entry(struct ptx_kernel *kernels, const char *name);
/* Runs a grid of one dimension, block by block. 0; or 700 for an address that is none, 716 for one that is not aligned. */
int ptx_run(const struct ptx_kernel *kernel, unsigned blocks, unsigned threads, void **parameters, ptx_memory *memory,
            ptx_stored *stored, struct ptx_work *work);
#endif
