"""gpunode: hosts reachable over SSH become verified NVIDIA GPU nodes of a Kubernetes cluster."""

__version__ = "0.1.0"
