"""The plugin's configuration in sentences for users: what its change means for pods, and what of it Kubernetes would not
report. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from gpunode.contract.config import DEFAULT, GPU, LABEL, Config, Share
from gpunode.links.kubelet import minors
from gpunode.links.node import Node
from gpunode.links.plugin import expected
from gpunode.links.plugin.expected import find_config
from gpunode.model import Host, PluginConfig
from gpunode.wording import few

GIVEN = "Pods that have GPUs keep them: what they use is reserved until they end."


def meaning(
    before: PluginConfig | None, after: PluginConfig | None, labels: Mapping[str, str], gpus: int
) -> str:
    """What becomes of a node's GPUs; "" where they are shared as before. `gpus`: how many it offers whole, 0 if unknown."""
    old, new = find_config(before, labels), find_config(after, labels)
    if old is None or new is None or (old.shares, old.memory) == (new.shares, new.memory):
        return ""
    return "; ".join(_now(old, new, gpus))


def differ(before: PluginConfig | None, after: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether another configuration comes into force on a node with these labels; one that names none keeps its own."""
    new = find_config(after, labels)
    return new is not None and new != find_config(before, labels)


def _now(old: Config, new: Config, gpus: int) -> Iterator[str]:
    if not new.shares and new.memory is None:
        yield "each GPU becomes whole again: one pod has all of it"
    known = gpus if not old.shares and old.memory is None else 0
    for share in new.shares:
        yield _format_share(share, known)
    if new.memory is not None:
        yield f"GPUs are shared by memory: pods ask for {new.memory.resource}, and the driver limits them where it can"


def _format_share(share: Share, gpus: int) -> str:
    if share.resource != GPU or share.devices or not gpus:
        what = "each GPU" if share.resource == GPU else f"each {share.resource}"
        some = f" of {', '.join(share.devices)}" if share.devices else ""
        start = f"{what}{some} becomes {share.replicas} shares"
    else:
        start = f"{gpus} GPU{'s become' if gpus > 1 else ' becomes'} {gpus * share.replicas} shares"
    name = f" ({share.rename})" if share.rename != share.resource else ""
    how = "MPS, with limits of memory and threads" if share.mps else "time-slicing, no memory isolation"
    return f"{start}{name} by {how}"


NAMED = 5  # hosts that a message names
Place: TypeAlias = tuple[Host, Node, Mapping[str, str]]
"""A host, its node, and the node's desired labels."""


def warnings(config: PluginConfig | None, places: Sequence[Place]) -> list[str]:
    """Sentences for the user before a deployment: hosts whose pods would get no GPU, hosts without a configuration."""
    blind: dict[str, list[str]] = {}
    for host, node, labels in places:
        if why := _ignored_reason(expected.cdi_strategies(config, labels), host, node):
            blind.setdefault(why, []).append(f"{host.name} ({node.kubelet})")
    sentences = [
        f"{_format_hosts(hosts)}: containers would get no GPU. No device list strategy of the plugin works there: {why}. Add `envvar`, or give these hosts another configuration (`cluster.plugin.configs`)."
        for why, hosts in blind.items()
    ]
    deaf = [
        host.name for host, _, labels in places if host.isolation and expected.uses_variable(config, labels)
    ]
    if deaf:
        sentences.append(
            f"{_format_hosts(deaf)}: containers would get no GPU. These hosts have `isolation: true`, and the plugin's only device "
            "list strategy there is `envvar`. Set `flags.plugin.deviceListStrategy: [volume-mounts]` in its configuration, "
            "or one of CDI's."
        )
    without = [host.name for host, _, labels in places if expected.is_unconfigured(config, labels)]
    if without:
        sentences.append(
            f"{_format_hosts(without)}: no file of `cluster.plugin.configs` applies: their nodes have no label {LABEL}, and no file is named `{DEFAULT}`. The plugin runs there with every setting at its default. Set the label "
            f"(`labels`), or name one of the files `{DEFAULT}`, too."
        )
    return sentences


def _ignored_reason(strategies: Sequence[str], host: Host, node: Node) -> str:
    """Why none of these strategies, all CDI's, gives containers their devices on this node; "" where one does."""
    gate, minor = minors.GATES["DevicePluginCDIDevices"], minors.minor(node.kubelet)
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


def _format_hosts(hosts: Sequence[str]) -> str:
    return few(hosts, NAMED)
