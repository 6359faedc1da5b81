"""The simulated fleet and cluster behind `gpunode demo` and the fast tests.

gpunode uses it as it uses real hosts and clusters: by an inventory file, SSH, the Kubernetes API over HTTP, the
kubelet's socket. Nothing else of gpunode imports it.
"""
