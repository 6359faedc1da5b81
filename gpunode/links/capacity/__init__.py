"""Capacity: the node offers every GPU of its host."""
