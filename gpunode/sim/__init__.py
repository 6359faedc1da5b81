"""The simulated fleet and cluster behind `gpunode demo` and the fast tests.

It comes in by the doors that real hosts and clusters use: an inventory file, SSH, the Kubernetes API over HTTP, the
kubelet's socket. Nothing else of gpunode knows of it.
"""
