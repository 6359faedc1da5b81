"""apt's half on the host."""
