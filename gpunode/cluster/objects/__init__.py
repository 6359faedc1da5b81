"""Manifests: rendered, compared with the cluster, applied, removed."""
