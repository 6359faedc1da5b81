"""The scheduler and controllers of the simulated cluster."""
