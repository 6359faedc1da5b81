"""vectoradd in pods on the GPUs of nodes: requests, runs and results."""
