"""The bundled device plugin in the cluster: its deployment and removal."""

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

__all__ = ["Rollout", "Scope", "Spec", "deploy", "plan", "pods_on", "removable", "remove"]
