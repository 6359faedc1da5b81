"""The hosts of a first inventory: from ssh's configuration, a cluster's nodes, or names."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpunode.cluster.api.kubeconfig import choose_context
from gpunode.engine import nodes
from gpunode.errors import ClusterError, NoConnection, UsageError
from gpunode.host.ssh_options import Options
from gpunode.inventory.expand import expand_range
from gpunode.inventory.starter import Entry, Starter
from gpunode.links import node as cluster_nodes
from gpunode.links.node import Node
from gpunode.local import files as localfile
from gpunode.model import Cluster, Inventory, Ssh

ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
SSH_CONFIG = Path("~/.ssh/config")
SSH_KEYS = {
    "user": "user",
    "port": "port",
    "key": "identityfile",
    "jump": "proxyjump",
    "known_hosts": "userknownhostsfile",
}
OPTIONS = {**SSH_KEYS, "host_key_check": "stricthostkeychecking"}


def from_ssh(file: Path = SSH_CONFIG) -> Starter:
    """The hosts that ssh knows by name, without the jump hosts of others; of another file than ssh's own with what it sets: connections do not read it."""
    from gpunode.host.ssh_options import aliases, jump_hosts

    try:
        place = localfile.full(str(file))
        names, jumps = aliases(place), jump_hosts(place)
    except OSError as error:
        raise UsageError(
            f"{error.filename or file} cannot be read: {error.strerror}",
            hint="`--from cluster` takes a kubeconfig's nodes, `--from FILE` another ssh configuration, --hosts names.",
        ) from error
    own = place.absolute() == SSH_CONFIG.expanduser()
    return Starter(
        str(file),
        tuple(Entry(name) if own else _copy_options(name, place) for name in names if name not in jumps),
        jumps=tuple(name for name in names if name in jumps),
    )


def from_cluster(cluster: Cluster) -> Starter:
    """The cluster's nodes with GPUs, or all if none is known to have any; without the control plane. A node that ssh does not know
    by name gets its address."""
    inventory = Inventory("", (), cluster)
    api = nodes.connect(inventory)
    there = [node for node in cluster_nodes.fetch(api) if not any(role in node.labels for role in ROLES)]
    known = [node for node in there if _has_gpus(node)]
    aliases: set[str] = set()
    with suppress(UsageError):
        ours = from_ssh()
        aliases = {*(host.name for host in ours.hosts), *ours.jumps}
    entries = tuple(
        Entry(node.name, "" if node.name in aliases else _address(node, there)) for node in known or there
    )
    return Starter(
        f"the nodes of {api.access.context} (only hosts that have joined)",
        entries,
        context=api.access.context,
    )


def from_names(text: str) -> Starter:
    """Hosts by name or range, separated by commas or spaces."""
    wanted = text.replace(",", " ").split()
    try:
        return Starter("names", tuple(Entry(name) for part in wanted for name in expand_range(part)))
    except ValueError as error:
        raise UsageError(str(error), hint="Write ranges as gpu-[01:04].") from error


def limit_hosts(known: Starter, limit: Sequence[str]) -> Starter:
    """The starter with the hosts that match one of the names or globs; all without any. Raises UsageError if none is left."""
    globs = [part.strip() for entry in limit for part in entry.split(",") if part.strip()]
    left = tuple(
        host for host in known.hosts if not globs or any(fnmatchcase(host.name, glob) for glob in globs)
    )
    if not left:
        why = f"none of {len(known.hosts)} hosts matches --limit" if known.hosts else "no host is there"
        raise UsageError(
            f"{known.source}: {why}", hint="Name the hosts: `gpunode init --hosts 'gpu-[01:04]'`."
        )
    return replace(known, hosts=left)


def in_context(known: Starter, cluster: Cluster) -> Starter:
    """The starter with the kubeconfig's context, if there is one."""
    with suppress(ClusterError):
        _, context = choose_context(cluster)
        return replace(known, context=context, kubeconfig=cluster.kubeconfig or "")
    return known


def _copy_options(name: str, file: Path) -> Entry:
    """The host's entry from the file, with the options that no key of an inventory holds. Raises UsageError for a file that ssh cannot read."""
    from gpunode.host.ssh.config import Config

    try:
        options, usual = (Config(path).options(Ssh(name)) for path in (file, Path(os.devnull)))
    except NoConnection as error:
        raise UsageError(error.message, hint=error.hint) from error

    def value(option: str) -> str:
        values = [value for value in options.get(option, ()) if value not in usual.get(option, ())]
        return values[0] if values and values[0].lower() != "none" else ""

    values = {key: value(option) for key, option in SSH_KEYS.items()}
    if " " in values["known_hosts"]:  # several; the key takes one
        values["known_hosts"] = ""
    if value("stricthostkeychecking") in ("true", "yes"):
        values["host_key_check"] = "strict"
    values["jump"], beyond = _jump(values["jump"], options, file) if values["jump"] else ("", ())
    # ssh derives updatehostkeys from the others.
    held = {"hostname", "updatehostkeys", *(option for key, option in OPTIONS.items() if values.get(key))}
    left = tuple(option for option in options if option not in held and options[option] != usual.get(option))
    return Entry(
        name, value("hostname"), tuple((key, text) for key, text in values.items() if text), left + beyond
    )


def _jump(jump: str, options: Options, file: Path) -> tuple[str, tuple[str, ...]]:
    """A host's jump host with the user, address and port that the file sets for it; or its name and its section's, if the file sets
    more for it than for the host. `options`: the host's. "" for a chain, which is named as an option."""
    from gpunode.host.ssh.config import Config
    from gpunode.host.ssh_options import jump_host

    if "," in jump:
        return "", ()
    try:
        ssh = jump_host(Ssh(""), jump)
    except NoConnection:
        return "", ()
    its, usual = (Config(path).options(ssh) for path in (file, Path(os.devnull)))
    own = {option for option in its if its[option] not in (usual.get(option), options.get(option))}
    if own - {"hostname", "user", "port", "updatehostkeys"}:
        return jump, (f"Host {ssh.address}",)
    address, user = its.get("hostname", [ssh.address])[0], ssh.user or ""
    port = str(ssh.port or "")
    if its.get("user") != usual.get("user"):
        user = its["user"][0]
    if its.get("port") != usual.get("port"):
        port = its["port"][0]
    place = f"[{address}]" if ":" in address else address
    return f"{f'{user}@' if user else ''}{place}{f':{port}' if port else ''}", ()


def _has_gpus(node: Node) -> bool:
    """Whether a label or a resource shows NVIDIA GPUs: of gpunode, a device plugin, or node feature discovery."""
    vendor = any(key.startswith("feature.node.kubernetes.io/pci-") and "10de" in key for key in node.labels)
    return bool(vendor or cluster_nodes.GPU_LABEL in node.labels or node.capacity)


def _address(node: Node, there: Sequence[Node]) -> str:
    """Its first address that is not its name, and no other node's; "" for none."""
    others = {address for other in there if other.name != node.name for address in other.addresses}
    return next((address for address in node.addresses if address != node.name and address not in others), "")
