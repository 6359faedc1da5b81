"""The cluster's part of a command: the nodes that hosts are, labels, plugin, pods; told through the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gpunode.errors import ClusterError
from gpunode.model import Event, Host, Inventory, Outcome, PluginImage

if TYPE_CHECKING:
    from gpunode.cluster.api import Api
    from gpunode.cluster.nodes import Node
    from gpunode.cluster.vectoradd import NodeResult
    from gpunode.report import Report

REGISTER_SECONDS = 90.0  # a kubelet that was just started registers its node
PLUGIN_SECONDS = 180.0
PODS_SECONDS = 180.0

Changes: TypeAlias = dict[str, tuple[str | None, str | None]]  # label -> before, after


def connect(inventory: Inventory) -> Api:
    """The inventory's cluster, seen to answer. Raises ClusterError with the cause."""
    from gpunode.cluster.api import connect as api_of

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


def tells(report: Report) -> Callable[[str], None]:
    """A listener for the cluster room's sentences that leaves out repetitions."""
    said: list[str] = [""]

    def tell(sentence: str) -> None:
        if sentence != said[0]:
            said[0] = sentence
            report.event(Event("cluster", None, sentence))

    return tell


def wished(host: Host) -> dict[str, str]:
    """The labels gpunode keeps on the node of a host it provisioned."""
    from gpunode.cluster.nodes import GPU_LABEL, RUNTIME_LABEL

    runtime = {RUNTIME_LABEL: "class"} if host.runtime == "class" else {}
    return {GPU_LABEL: "true", **runtime, **host.labels}


def find(
    api: Api,
    hosts: Sequence[Host],
    hostnames: Mapping[str, str],
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Node], dict[str, str]]:
    """host → its node, waiting for those that are not registered or not Ready yet; and host → why there is none."""
    from gpunode.cluster import nodes

    end = time.monotonic() + seconds
    while True:
        found: dict[str, Node] = {}
        missing: dict[str, str] = {}
        everyone = nodes.every(api)
        for host in hosts:
            try:
                found[host.name] = nodes.of(host, everyone, hostnames.get(host.name, ""))
            except ClusterError as error:
                missing[host.name] = str(error)
        late = [*missing, *(name for name, node in found.items() if not node.ready)]
        if not late or time.monotonic() >= end:
            return found, missing
        tell(f"waiting for {', '.join(late[:5])} to be a Ready node")
        time.sleep(1)


def label(
    api: Api, hosts: Sequence[Host], found: Mapping[str, Node], *, dry_run: bool = False
) -> tuple[dict[str, Changes], dict[str, str]]:
    """Keep gpunode's labels on the hosts' nodes: host → what changed; and host → why it was refused."""
    from gpunode.cluster import nodes

    changed: dict[str, Changes] = {}
    conflicts: dict[str, str] = {}
    for host in hosts:
        if host.name in found:
            try:
                changed[host.name] = nodes.label(api, found[host.name], wished(host), dry_run=dry_run)
            except ClusterError as error:
                conflicts[host.name] = str(error)
    return changed, conflicts


def plan(
    api: Api, inventory: Inventory, hosts: Sequence[Host], hostnames: Mapping[str, str], report: Report
) -> int:
    """Show what the cluster side would change; returns how many objects and labels."""
    from gpunode.cluster import plugin

    rows: list[tuple[str, str]] = [
        (one.action, one.what)
        for one in plugin.plan(api, inventory.cluster.namespace, image_of(inventory))
        if one.action in ("created", "changed")
    ]
    found, _ = find(api, hosts, hostnames, seconds=0, tell=lambda _: None)
    changes, conflicts = label(api, hosts, found, dry_run=True)
    rows += [
        ("label", f"Node {found[host].name} {key}={after}")
        for host, labels in changes.items()
        for key, (_, after) in labels.items()
    ]
    for why in conflicts.values():
        report.note(f"✗ {why}")
    if rows:
        report.rows("cluster", ("change", "object"), rows)
    return len(rows)


def bring_up(
    api: Api,
    inventory: Inventory,
    hosts: Sequence[Host],
    outcomes: Sequence[Outcome],
    report: Report,
    *,
    run: bool,
) -> int:
    """Label the nodes, deploy the plugin, wait for every GPU, run vectoradd on each. Returns the exit code."""
    from gpunode.cluster import plugin

    tell = tells(report)
    good = {outcome.host: outcome for outcome in outcomes}
    chosen = [host for host in hosts if host.name in good]
    hostnames = {name: outcome.facts.hostname for name, outcome in good.items() if outcome.facts}
    found, missing = find(api, chosen, hostnames, seconds=REGISTER_SECONDS, tell=tell)
    changed = [node.name for host, node in found.items() if _driver_changed(good[host])]
    renew = plugin.uids(api, inventory.cluster.namespace, changed)  # before labels bring new ones
    _, conflicts = label(api, chosen, found)
    troubles = [*missing.values(), *conflicts.values()]
    found = {host: node for host, node in found.items() if host not in conflicts}
    if not found:
        for trouble in troubles:
            report.note(f"✗ {trouble}")
        return 1
    names = [node.name for node in found.values()]
    rollout = plugin.deploy(
        api,
        inventory.cluster.namespace,
        image_of(inventory),
        seconds=PLUGIN_SECONDS,
        tell=tell,
        only=names,
        renew=renew,
    )
    bad = {row.node: row.trouble for row in rollout.rows if row.trouble}
    troubles += [f"{node}: {trouble}" for node, trouble in bad.items()]
    expected: dict[str, tuple[str, ...]] = {}
    end = time.monotonic() + PLUGIN_SECONDS  # of all nodes together
    for host in chosen:
        seen = good[host.name].facts
        if host.name in found and seen is not None and seen.smi_error:
            said = seen.smi_error.strip().splitlines()[0]
            troubles.append(f"{host.name}: nvidia-smi fails there: {said}\n  `gpunode verify` says why.")
        elif host.name in found and found[host.name].name not in bad and seen is not None:
            uuids = tuple(gpu.uuid for gpu in seen.gpus)
            try:
                plugin.wait_allocatable(
                    api,
                    found[host.name].name,
                    len(uuids),
                    namespace=inventory.cluster.namespace,
                    seconds=max(0.0, end - time.monotonic()),
                    tell=tell,
                )
                expected[found[host.name].name] = uuids
                report.note(f"✓ {found[host.name].name} offers {len(uuids)} GPUs")
            except ClusterError as error:
                troubles.append(str(error))
    for trouble in troubles:
        report.note(f"✗ {trouble}")
    if not run:
        return 1 if troubles else 0
    results = vectoradd(api, inventory, expected, report) if expected else ()
    show(results, report)
    return 0 if not troubles and all(result.passed for result in results) else 1


def _driver_changed(outcome: Outcome) -> bool:
    from gpunode.model import KernelModule, Packages, Reboot

    return any(isinstance(change, (KernelModule, Packages, Reboot)) for change in outcome.applied)


def vectoradd(
    api: Api,
    inventory: Inventory,
    expected: Mapping[str, Sequence[str]],
    report: Report,
    *,
    image: str | None = None,
) -> tuple[NodeResult, ...]:
    """Run it on the free GPUs of the nodes: node → the UUIDs it should have."""
    from gpunode.cluster import vectoradd as pods

    return pods.run(
        api,
        [pods.Target(node, tuple(uuids)) for node, uuids in expected.items()],
        namespace=inventory.cluster.namespace,
        image=image or image_of(inventory).reference,
        seconds=PODS_SECONDS,
        tell=tells(report),
        args=() if image else pods.ARGS,
    )


def show(results: Sequence[NodeResult], report: Report) -> None:
    """Report a row per GPU, and why a node has none."""
    rows: list[tuple[object, ...]] = [
        (one.node, one.uuid, one.gpu, "passed" if one.passed else "failed", one.seconds, one.why)
        for result in results
        for one in result.results
    ]
    rows += [
        (
            result.node,
            uuid,
            "",
            "not covered",
            None,
            f"in use by {', '.join(result.users)}" if result.users else "",
        )
        for result in results
        for uuid in result.uncovered
    ]
    report.rows("vectoradd", ("node", "uuid", "gpu", "result", "seconds", "why"), rows)
    for result in results:
        if result.why:
            report.note(f"✗ {result.node}: {result.why}")
