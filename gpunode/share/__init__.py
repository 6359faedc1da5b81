"""The scheduler extender: promises pods memory of single GPUs, which a scheduler that sees a node's sum cannot.

It runs in the device plugin's image, so it imports nothing of gpunode but that package and `contract`.
"""
