"""The driver: module, library, NVML."""
