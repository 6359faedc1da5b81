"""The runtimes' half on the host."""
