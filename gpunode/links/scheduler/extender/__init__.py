"""The scheduler extender's objects in the cluster."""
