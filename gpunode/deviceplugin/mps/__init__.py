"""MPS: one control daemon per shared GPU, run by a separate process that reports its state to the plugin.

Per GPU, not per resource: limits can differ between GPUs, and a fault on one GPU ends no client of another. In a separate
process, because a restart of the plugin must not end the clients of running pods.
"""
