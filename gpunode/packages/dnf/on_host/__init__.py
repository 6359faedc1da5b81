"""dnf's half on the host."""
