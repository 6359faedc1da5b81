"""The machine: its GPUs on the PCI bus, and whether gpunode may change its system."""
