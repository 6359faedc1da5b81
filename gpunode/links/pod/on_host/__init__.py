"""What runs with GPUs, read on the host."""
