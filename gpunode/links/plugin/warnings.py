"""Warnings about a plugin configuration that Kubernetes would not report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gpunode.contract.config import DEFAULT, LABEL
from gpunode.links.kubelet import minors
from gpunode.links.node import Node
from gpunode.links.plugin import expected
from gpunode.model import Host, PluginConfig
from gpunode.wording import few

NAMED = 5  # hosts that a message names
Place: TypeAlias = tuple[Host, Node, Mapping[str, str]]
"""A host, its node, and the node's desired labels."""


def warnings(config: PluginConfig | None, places: Sequence[Place]) -> list[str]:
    """Sentences for the user before a deployment: hosts whose pods would get no GPU, hosts without a configuration."""
    blind: dict[str, list[str]] = {}
    for host, node, labels in places:
        if why := _ignored(expected.cdi_alone(config, labels), host, node):
            blind.setdefault(why, []).append(f"{host.name} ({node.kubelet})")
    found = [
        f"{_named(hosts)}: containers would get no GPU. The plugin's configuration has no device list strategy but {why}. "
        "Put `envvar` beside it, or give these hosts another configuration (`cluster.plugin.configs`)."
        for why, hosts in blind.items()
    ]
    deaf = [
        host.name for host, _, labels in places if host.isolation and expected.variable_alone(config, labels)
    ]
    if deaf:
        found.append(
            f"{_named(deaf)}: containers would get no GPU. These hosts have `isolation: true`, and the plugin's only device "
            "list strategy there is `envvar`. Set `flags.plugin.deviceListStrategy: [volume-mounts]` in its configuration, "
            "or one of CDI's."
        )
    without = [host.name for host, _, labels in places if expected.unconfigured(config, labels)]
    if without:
        found.append(
            f"{_named(without)}: none of `cluster.plugin.configs` is for these hosts: their nodes have no label {LABEL}, "
            f"and none is named `{DEFAULT}`. The plugin runs there with every setting at its default. Set the label "
            f"(`labels`), or name one of the files `{DEFAULT}`, too."
        )
    return found


def _ignored(strategies: Sequence[str], host: Host, node: Node) -> str:
    """Why none of these strategies, all CDI's, gives containers their devices on this node; "" where one does."""
    gate, minor = minors.gates()["DevicePluginCDIDevices"], minors.minor(node.kubelet)
    docker = node.runtime.startswith("docker:")
    reasons = []
    for strategy in strategies:
        if strategy == "cdi-annotations":
            if not docker:
                return ""
            reasons.append("`cdi-annotations`, which docker ignores")
        else:
            on = minor is None or host.feature_gates.get(gate.name, gate.is_default(minor))
            if on and (minor is None or minor >= gate.alpha):
                return ""
            reasons.append(
                f"`cdi-cri`, which the kubelet ignores before Kubernetes 1.{gate.beta} (1.{gate.alpha} with the feature "
                f"gate {gate.name})"
            )
    return " and ".join(reasons)


def _named(hosts: Sequence[str]) -> str:
    return few(hosts, NAMED)
