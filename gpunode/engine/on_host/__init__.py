"""The engine's half on the host: jobs, and an apply that survives its connection."""
