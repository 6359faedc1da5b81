"""The bundled device plugin in the cluster: its deployment and removal."""

from gpunode.links.plugin.deployment import (
    Rollout,
    Scope,
    Spec,
    deploy,
    find_removable,
    plan,
    pods_on,
    remove,
)

__all__ = ["Rollout", "Scope", "Spec", "deploy", "find_removable", "plan", "pods_on", "remove"]
