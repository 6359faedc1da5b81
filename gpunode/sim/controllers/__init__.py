"""What runs beside the API server: scheduler and controllers."""
