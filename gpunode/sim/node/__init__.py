"""The simulated nodes: kubelets, their pods, and what containers see of GPUs."""
