"""`python -m gpunode.accept`: measures the GPUs of this container or host. Ships in the device plugin's image."""
