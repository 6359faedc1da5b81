"""A Kubernetes device plugin for NVIDIA GPUs. Ships alone: imports nothing of the rest of gpunode."""
