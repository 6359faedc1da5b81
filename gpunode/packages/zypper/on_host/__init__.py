"""zypper's half on the host."""
