"""MPS: a control daemon for each GPU that is shared by it, kept by a process of its own; the plugin follows along.

One daemon a GPU, not one a resource: limits can differ from GPU to GPU, and what breaks on one GPU ends no client of
another. The process is not the plugin's, as a restart of the plugin must not end the clients of running pods.
"""
