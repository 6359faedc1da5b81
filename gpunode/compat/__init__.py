"""Tables of Kubernetes minor versions, and look-ups in them."""
