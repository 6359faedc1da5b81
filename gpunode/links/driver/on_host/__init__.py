"""The driver's half on the host."""
