"""The bundled device plugin in the cluster: its deployment, status and removal."""

from gpunode.cluster.plugin.deployment import Rollout, Scope, Spec, deploy, plan, pods_on
from gpunode.cluster.plugin.overview import Row, status
from gpunode.cluster.plugin.removal import removable, remove

__all__ = ["Rollout", "Row", "Scope", "Spec", "deploy", "plan", "pods_on", "removable", "remove", "status"]
