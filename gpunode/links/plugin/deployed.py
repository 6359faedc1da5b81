"""The device plugin as the cluster has it: its image and its configuration, for commands without an inventory."""

from __future__ import annotations

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.links.plugin.daemonset import NAME
from gpunode.links.plugin.published import CONTAINER
from gpunode.model import PluginConfig, PluginImage

CONFIG_FILE = (
    "config.yaml"  # in the ConfigMap, where there is but one configuration (templates/cluster/plugin.yaml.j2)
)


def image(api: Api, namespace: str) -> PluginImage | None:
    """The image that the plugin's DaemonSet names, pulled as it says; None where there is no DaemonSet."""
    container = _container(api, namespace)
    if container is None:
        return None
    never = (
        container.get("imagePullPolicy") == "Never"
    )  # it was loaded from an archive, whose name is not known
    return PluginImage(container["image"], archive="" if never else None)


def config(api: Api, namespace: str) -> PluginConfig | None:
    """The configuration that was deployed with it; None where it has none."""
    found = api.get("ConfigMap", NAME, namespace)
    data = (found or {}).get("data") or {}
    if not data:
        return None
    several = any(one["name"] == "CONFIG_DIR" for one in (_container(api, namespace) or {}).get("env") or [])
    return PluginConfig("", files=data) if several else PluginConfig(data.get(CONFIG_FILE, ""))


def _container(api: Api, namespace: str) -> Object | None:
    found = api.get("DaemonSet", NAME, namespace)
    several: list[Object] = found["spec"]["template"]["spec"]["containers"] if found else []
    return next((one for one in several if one["name"] == CONTAINER), None)
