"""NVIDIA's container toolkit: packages, configuration, CDI specification."""
