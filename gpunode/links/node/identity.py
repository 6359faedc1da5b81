"""Whether a host is the node of its name. A name is only a claim. Pure.

The kubelet reports its machine from the files that a probe reads too (https://kubernetes.io/docs/reference/node/node-status/#info):
machine-id, the firmware's UUID, and the boot id, which no two running kernels share.
"""

from collections.abc import Mapping, Sequence

from gpunode.errors import ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links.node import Node
from gpunode.model import Facts, Host

ANOTHER_MACHINE = "another-machine"  # code: the node of a host's name is another machine, or several hosts claim it; waiting fixes neither


def find(host: Host, every: Sequence[Node], facts: Facts | None = None) -> Node:
    """The node that this host is: `nodes.of`, unless its facts tell it from that one.

    Raises ClusterError with the code ANOTHER_MACHINE, or none for an address that another machine has too, behind a gateway or a
    tunnel.
    """
    name = facts.hostname if facts else ""
    node = nodes.find(host, every, name)
    wrong = _differences(facts, node) if facts else []
    if not wrong:
        return node
    right = [node.name for node in every if facts and _equal(facts, node)]
    if not right and not host.node and node not in nodes.find_named(host, every, name):
        raise ClusterError(
            f"no node of the cluster has its hostname `{name or host.name}`; "
            f"{node.name}, which has its address {host.ssh.address}, is another machine",
            subject=host.name,
            hint=nodes.join(every),
        )
    way = (
        f"By its own files it is node `{right[0]}`: set `node: {right[0]}` in the inventory."
        if len(right) == 1
        else "Correct the hostname or the inventory's address; if it is a node under another name, name that with `node:`."
    )
    raise ClusterError(
        f"it claims node {node.name}, which is another machine: {' and '.join(wrong)} "
        f"{'is' if len(wrong) == 1 else 'are'} not this host's",
        subject=host.name,
        code=ANOTHER_MACHINE,
        hint=way,
    )


def find_shared(claims: Mapping[str, Node]) -> dict[str, Problem]:
    """Hosts that claim the same node, each with the problem that names them."""
    hosts: dict[str, list[str]] = {}
    for host, node in claims.items():
        hosts.setdefault(node.name, []).append(host)
    return {
        host: Problem(
            ANOTHER_MACHINE,
            f"{' and '.join(these)} of the inventory are one node, {node}",
            subject=host,
            fix="A machine is in the inventory once: take the other out, correct its address, or name its node with `node:`.",
        )
        for node, these in hosts.items()
        if len(these) > 1
        for host in these
    }


def _differences(facts: Facts, node: Node) -> list[str]:
    """What tells them apart. A kubelet in a container may have a machine-id of its own, and a machine that has rebooted
    since has another boot id: then the others decide."""
    if _same(facts.boot_id, node.boot_id):
        return []
    pairs = (
        ("machine-id", facts.machine_id, node.machine_id),
        ("system UUID", facts.product_uuid, node.system_uuid),
    )
    return [f"its {what}" for what, host, theirs in pairs if host and theirs and not _same(host, theirs)]


def _equal(facts: Facts, node: Node) -> bool:
    """Whether something says that they are one machine, and nothing that they are not."""
    same = _same(facts.boot_id, node.boot_id) or _same(facts.machine_id, node.machine_id)
    return same and not _differences(facts, node)


def _same(value: str, other: str) -> bool:
    return bool(value) and value.lower() == other.lower()
