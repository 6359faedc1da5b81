"""Which nodes of the cluster the hosts are, and their labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from gpunode import converge
from gpunode.cluster import identity, images, nodes, rivals
from gpunode.cluster.api import Api
from gpunode.cluster.api import connect as api_of
from gpunode.cluster.caution import cautions
from gpunode.cluster.identity import ANOTHER_MACHINE
from gpunode.cluster.nodes import GPU_LABEL, RUNTIME_LABEL, Node
from gpunode.cluster.reason import Reason, of
from gpunode.errors import ClusterError
from gpunode.model import Facts, Host, Inventory, Outcome, PluginImage
from gpunode.rollout.listener import Fleet, Listener

REGISTER_SECONDS = 90.0  # a kubelet that was just started registers its node
AT_ONCE = 16  # nodes that are labelled side by side

WITHOUT_PLUGIN = (
    "The cluster is left out, since the inventory names no `cluster.plugin`: no device plugin is deployed, no node is labelled "
    "and no pod is run. For the whole job add `cluster: {plugin: {archive: plugin.tar}}`; docs/deviceplugin.md says how to "
    "make that file."
)

Troubles: TypeAlias = dict[str, ClusterError]  # host -> what keeps it from its part in the cluster


def connect(inventory: Inventory) -> Api:
    """The inventory's cluster, seen to answer. Raises ClusterError with the cause."""
    api = api_of(inventory.cluster)
    api.version()
    return api


def image_of(inventory: Inventory) -> PluginImage:
    """The plugin's image, or a refusal that says where to name it."""
    if inventory.cluster.plugin is None:
        raise ClusterError(
            f"{inventory.path} names no image of the device plugin",
            hint="Set cluster.plugin.image, or cluster.plugin.archive to a `docker save` file that gpunode loads "
            "onto the nodes; docs/deviceplugin.md says how to build it.",
        )
    return inventory.cluster.plugin


def wished(host: Host) -> dict[str, str]:
    """The labels gpunode keeps on the node of a host it provisioned."""
    runtime = {RUNTIME_LABEL: "class"} if host.runtime == "class" else {}
    return {GPU_LABEL: "true", **runtime, **host.labels}


def find(
    api: Api,
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Node], Troubles]:
    """host → its node, waiting for those that are not registered or not Ready yet; and host → why there is none."""
    end = time.monotonic() + seconds
    while True:
        found: dict[str, Node] = {}
        missing: Troubles = {}
        everyone = nodes.every(api)
        for host in hosts:
            try:
                found[host.name] = identity.of(host, everyone, facts.get(host.name))
            except ClusterError as error:
                missing[host.name] = error
        twice = identity.shared(found)
        found, missing = (
            {name: node for name, node in found.items() if name not in twice},
            {**missing, **twice},
        )
        hoped = [name for name, error in missing.items() if not isinstance(error, identity.Mistaken)]
        late = [*hoped, *(name for name, node in found.items() if not node.ready)]
        if not late or time.monotonic() >= end:
            return found, missing
        tell(f"waiting for {', '.join(late[:5])} to be a Ready node")
        time.sleep(1)


def find_or_ask(api: Api, work: Fleet, tell: Callable[[str], None]) -> tuple[dict[str, Node], Troubles]:
    """host → its node, for commands that need nothing else of the hosts: only those of which neither name nor
    address is a node's are asked for their own name, as `provision` asks all."""
    found, missing = find(api, work.hosts, {}, seconds=0, tell=tell)
    strangers = [host for host in work.hosts if host.name in missing and not host.node]
    if not strangers:
        return found, missing
    outcomes = work.each(converge.look, strangers)
    facts = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts}
    for outcome in outcomes:
        if outcome.facts is None:
            error = missing[outcome.host]
            missing[outcome.host] = ClusterError(
                f"{error.message}, and it could not be asked for its own name: {outcome.error}",
                hint=error.hint,
            )
    asked = [host for host in strangers if host.name in facts]
    named, still = find(api, asked, facts, seconds=0, tell=tell)
    still = {
        outcome.host: no_node(outcome, still[outcome.host]) for outcome in outcomes if outcome.host in still
    }
    found |= named
    twice = identity.shared(found)
    missing = {name: error for name, error in missing.items() if name not in named} | still | twice
    return {name: node for name, node in found.items() if name not in twice}, missing


def no_node(outcome: Outcome, error: ClusterError) -> ClusterError:
    """Why a host that was looked at is no node: a host that is refused need not become one."""
    if outcome.error is None:
        return error
    return ClusterError(
        f"{outcome.host}: {outcome.error}; it is no node of the cluster either", hint=outcome.hint
    )


def missing(error: ClusterError) -> Reason:
    """Why a host has no node."""
    return of(ANOTHER_MACHINE if isinstance(error, identity.Mistaken) else "no-node", error)


def label(api: Api, pairs: Iterable[tuple[Host, Node | None]]) -> Troubles:
    """Keep gpunode's labels on the hosts' nodes; host → why it was refused."""

    def one(pair: tuple[Host, Node | None]) -> tuple[str, ClusterError | None]:
        host, node = pair
        try:
            if node is not None:
                nodes.label(api, node, wished(host))
        except ClusterError as error:
            return host.name, error
        return host.name, None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {host: error for host, error in pool.map(one, pairs) if error is not None}


def warn(
    api: Api, inventory: Inventory, hosts: Sequence[Host], found: Mapping[str, Node], listener: Listener
) -> None:
    """Tell of other device plugins, and of what the plugin's image and configuration would come to without a word."""
    for rival, count in rivals.every(api).items():
        listener.note(
            f"{rival}, on {count} node{'s' if count > 1 else ''}, offers NVIDIA GPUs too. Where two device plugins run on a "
            "node, the one that started last wins: remove that one first; running pods keep their GPUs."
        )
    members = [
        (host, node, {**node.labels, **wished(host)}) for host in hosts if (node := found.get(host.name))
    ]
    for caution in cautions(inventory.cluster.plugin_config, members):
        listener.note(caution)
    if floating := images.floating(image_of(inventory)):
        listener.note(floating)
