"""From labelled nodes to proven GPUs: the plugin deployed, every GPU offered, vectoradd on each, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpunode.cli import cluster
from gpunode.errors import ClusterError
from gpunode.model import Host, Inventory, Outcome, PluginImage

if TYPE_CHECKING:
    from gpunode.cluster.api import Api
    from gpunode.cluster.offer import Expected
    from gpunode.cluster.plugin import Rollout
    from gpunode.cluster.results import NodeResult, Result, Target
    from gpunode.report import Report


def bring_up(
    api: Api,
    inventory: Inventory,
    hosts: Sequence[Host],
    outcomes: Sequence[Outcome],
    report: Report,
    *,
    run: bool,
) -> int:
    """Label the nodes of the hosts that are right, deploy the plugin, wait for every GPU, run vectoradd on each, and say
    which hosts are verified; of the others, why not.

    Returns the exit code, in which those others do not count.
    """
    from gpunode.cluster import expected, mig, plugin

    tell = cluster.tells(report)
    good = {outcome.host: outcome for outcome in outcomes if outcome.status in ("right", "changed")}
    left = {
        outcome.host: ClusterError(f"{outcome.status}: {outcome.error}")
        for outcome in outcomes
        if outcome.host not in good
    }
    chosen = [host for host in hosts if host.name in good]
    facts = {name: outcome.facts for name, outcome in good.items() if outcome.facts}
    found, missing = cluster.find(api, chosen, facts, seconds=cluster.REGISTER_SECONDS, tell=tell)
    changed = [node.name for host, node in found.items() if _driver_changed(good[host])]
    renew = plugin.uids(api, inventory.cluster.namespace, changed)  # before labels bring new ones
    conflicts = cluster.label(api, chosen, found)
    troubles: cluster.Troubles = {**missing, **conflicts}
    names = {host: node.name for host, node in found.items() if host not in conflicts}
    config = inventory.cluster.plugin_config
    set_now = {host.name: cluster.wished(host) for host in chosen}  # after the nodes were read
    labels = {host: {**node.labels, **set_now[host]} for host, node in found.items()}
    targets = {
        name: expected.target(config, names[name], seen.gpus, labels[name])
        for name in names
        if (seen := good[name].facts)
    }
    partly: cluster.Troubles = {}
    if names:
        rollout = plugin.deploy(
            api,
            inventory.cluster.namespace,
            cluster.image_of(inventory),
            config,
            inventory.cluster.plugin_voice,
            seconds=cluster.PLUGIN_SECONDS,
            tell=tell,
            only=list(names.values()),
            renew=renew,
            hopeless=[names[host] for host in names if _no_driver(good[host])],
        )
        troubles |= {host: error for host in names if (error := _without(good[host], names[host], rollout))}
        units = {
            host: expected.units(config, seen.gpus, labels[host])
            for host in targets
            if (seen := good[host].facts)
        }
        partly |= {  # the rest of their GPUs is waited for and tried
            host: ClusterError(f"{names[host]}: {one.what}", hint=one.fix)
            for host in units
            if host not in troubles and (seen := good[host].facts)
            if (one := mig.trouble(config, seen.gpus, labels[host])) and one.missing
        }
        troubles |= {host: error for host, error in partly.items() if units[host] is None}
        counts: dict[str, Expected] = {
            names[host]: count or len(seen.gpus)
            for host, count in units.items()
            if host not in troubles and (seen := good[host].facts)
        }
        late = offered(api, inventory, counts, tell)
        troubles |= {host: late[node] for host, node in names.items() if node in late}
    for host, error in {**partly, **troubles}.items():
        report.problem(error, host)
    ready = [target for host, target in targets.items() if host not in troubles]
    results = vectoradd(api, inventory, ready, report) if run and ready else ()
    show(results, report)
    troubles = {**partly, **troubles}
    by_node = {result.node: result for result in results}
    report.rows(
        "verified",
        ("host", "node", "result", "proof"),
        [
            (
                host.name,
                names.get(host.name, ""),
                *_verdict(
                    troubles.get(host.name) or left.get(host.name),
                    by_node.get(names.get(host.name, "")),
                    targets[host.name].uuids if host.name in targets else (),
                ),
            )
            for host in hosts
        ],
    )
    return 0 if not troubles and all(result.passed for result in results) else 1


def offered(
    api: Api, inventory: Inventory, counts: Mapping[str, Expected], tell: Callable[[str], None]
) -> cluster.Troubles:
    """Wait, for all nodes together, until each offers what is expected of it: node → why it does not."""
    from gpunode.cluster import offer

    troubles: cluster.Troubles = {}
    end = time.monotonic() + cluster.PLUGIN_SECONDS
    for node, count in counts.items():
        left = max(0.0, end - time.monotonic())
        # A configuration may make of them what cannot be told from here, e.g. MIG devices.
        unknown = inventory.cluster.plugin_config and isinstance(count, int)
        try:
            offer.wait_allocatable(
                api,
                node,
                None if unknown else count,
                namespace=inventory.cluster.namespace,
                seconds=left,
                tell=tell,
                waited=cluster.PLUGIN_SECONDS - left,
            )
        except ClusterError as error:
            troubles[node] = error
    return troubles


def _without(outcome: Outcome, node: str, rollout: Rollout) -> ClusterError | None:
    """Why this host's GPUs are not waited for."""
    trouble = next((row.trouble for row in rollout.rows if row.node == node and row.trouble), "")
    if trouble:
        return ClusterError(f"{node}: {trouble}")
    words = _no_driver(outcome)
    return ClusterError(f"{outcome.host}: {words}", hint="`gpunode verify` says why.") if words else None


def _no_driver(outcome: Outcome) -> str:
    """Why no plugin can find GPUs on the host; empty where one may."""
    seen = outcome.facts
    if seen and seen.smi_error:
        return f"nvidia-smi fails there: {seen.smi_error.strip().splitlines()[0]}"
    if seen and not seen.gpus and "nvidia" not in seen.modules:
        return "no nvidia module is loaded there"
    return ""


def _verdict(
    trouble: ClusterError | None, result: NodeResult | None, uuids: Sequence[str]
) -> tuple[str, str]:
    """Whether a host is verified, and what shows it."""
    parts = sum(uuid.startswith("MIG-") for uuid in uuids)
    kinds = [(len(uuids) - parts, "GPU"), (parts, "MIG device")]
    several = [f"{number} {kind}{'' if number == 1 else 's'}" for number, kind in kinds if number]
    count = " and ".join(several) or "0 GPUs"
    if trouble:
        return "not verified", trouble.message.splitlines()[0]
    if result is None:
        return "not verified", f"{count} offered; no pod was run on them"
    if not result.passed:
        failed = [one.why for one in result.results if not one.passed]
        return "not verified", result.why or (failed or [f"no pod saw {', '.join(result.uncovered)}"])[0]
    seen = dict.fromkeys(one.uuid or one.pod for one in result.results)
    if not uuids:  # MIG devices that are not known
        return "verified", f"vectoradd passed on {', '.join(seen)}"
    if result.uncovered or len(seen) < len(uuids):
        where = f"in a share of {', '.join(seen)}" if result.shared else f"on {', '.join(seen)}"
        users = f"; in use by {', '.join(result.users)}" if result.users else ""
        return "verified", f"{len(seen)} of {count} tested: vectoradd passed {where}{users}"
    return "verified", f"{count}, vectoradd passed on each"


def _driver_changed(outcome: Outcome) -> bool:
    from gpunode.model import KernelModule, Packages, Reboot

    return any(isinstance(change, (KernelModule, Packages, Reboot)) for change in outcome.applied)


def vectoradd(
    api: Api,
    inventory: Inventory,
    targets: Sequence[Target],
    report: Report,
    *,
    image: str | None = None,
) -> tuple[NodeResult, ...]:
    """Run it on the free GPUs of the nodes."""
    from gpunode.cluster import vectoradd as pods

    return pods.run(
        api,
        targets,
        namespace=inventory.cluster.namespace,
        image=PluginImage(image) if image else cluster.image_of(inventory),
        seconds=cluster.PODS_SECONDS,
        tell=cluster.tells(report),
        args=() if image else pods.ARGS,
        config=inventory.cluster.plugin_config,
    )


def show(results: Sequence[NodeResult], report: Report) -> None:
    """Report a row per GPU, with the number of pods that were on it, and why a node has none."""
    alike: dict[tuple[str, ...], list[Result]] = {}
    for one in (one for result in results for one in result.results):
        end = "passed" if one.passed else "failed"
        alike.setdefault((one.node, one.uuid or one.pod, end, one.why), []).append(one)
    rows: list[tuple[object, ...]] = [
        (node, ran[0].uuid, ran[0].gpu, end, len(ran), max(one.seconds for one in ran), why)
        for (node, _, end, why), ran in alike.items()
    ]
    rows += [
        (
            result.node,
            uuid,
            "",
            "not covered",
            0,
            None,
            f"in use by {', '.join(result.users)}" if result.users else "",
        )
        for result in results
        for uuid in result.uncovered
    ]
    report.rows("vectoradd", ("node", "uuid", "gpu", "result", "pods", "seconds", "why"), rows)
    for result in results:
        if result.why:
            report.problem(ClusterError(f"{result.node}: {result.why}"))
