"""The bundled device plugin in the cluster: its deployment, status and removal."""

from gpunode.links.plugin.deployment import (
    Rollout,
    Scope,
    Spec,
    deploy,
    plan,
    pods_on,
    removable,
    remove,
)
from gpunode.links.plugin.overview import Row, status

__all__ = ["Rollout", "Row", "Scope", "Spec", "deploy", "plan", "pods_on", "removable", "remove", "status"]
