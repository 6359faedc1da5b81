"""The API server of the simulated cluster."""
