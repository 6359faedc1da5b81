"""What GPUs this machine has, asked of NVML."""
