"""Whether measured GPUs are healthy: figures against the model's and the fleet's, and the record of it that runs out. Pure."""
