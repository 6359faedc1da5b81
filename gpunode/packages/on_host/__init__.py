"""The package systems' half on the host."""
