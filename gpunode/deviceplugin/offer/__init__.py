"""What the node offers: resources and their units, preferred allocations, reservations, the current state."""
