"""Kubelets: how a host's kubelet is started, and changes to its feature gates wherever they are set."""
