"""What the scheduler extender promised pods of this node: read here, written by `gpunode.share`."""
