"""The proof: vectoradd on the GPUs of nodes, a row for each of them, and which hosts it verifies."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.engine import nodes
from gpunode.engine.cells import ForPrograms
from gpunode.engine.listener import Listener, problem, progress
from gpunode.engine.member import Member, Members
from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.links.pod import run as pods
from gpunode.links.pod import run_pod as once
from gpunode.links.pod.manifest import ARGS
from gpunode.links.pod.requests import Target
from gpunode.links.pod.results import NodeResult, Result
from gpunode.model import Inventory, PluginImage
from gpunode.wording import lines

PODS_SECONDS = 180.0


def vectoradd(
    api: Api,
    inventory: Inventory,
    targets: Sequence[Target],
    tell: OnProgress,
    *,
    image: str | None = None,
    holder: str = "",
) -> tuple[NodeResult, ...]:
    """Run it on the free GPUs of the nodes; `image`: another one than the plugin's. `holder`: of the cluster's lease."""
    return pods.run(
        api,
        targets,
        namespace=inventory.cluster.namespace,
        image=PluginImage(image) if image else nodes.image_of(inventory),
        seconds=PODS_SECONDS,
        tell=tell,
        args=() if image else ARGS,
        config=inventory.cluster.plugin_config,
        holder=holder,
        schedulers=nodes.schedulers(api, inventory),
    )


def run_sample(session: Session, *, image: str | None, logs: bool) -> int:
    """Run it on the free GPUs of a session's hosts, and tell; the exit code. `logs`: with each pod's log."""
    listener, tell = session.listener, progress(session.listener)
    api = nodes.connect(session.inventory)
    members = nodes.identify(api, session, tell)
    for one in members:
        problem(listener, one.host.name, one.reason)
    rights.demand(api, rights.of_proof(session.inventory.cluster.namespace))
    targets = [Target(member.node.name) for member in members if member.node]
    results = vectoradd(api, session.inventory, targets, tell, image=image)
    show(results, listener)
    if logs:
        for ran in [ran for result in results for ran in result.results]:
            listener.rows("log", ("node", "pod", "log"), [(ran.node, ran.pod, line) for line in ran.log])
    wrong = any(member.reason for member in members) or not all(result.passed for result in results)
    return 1 if wrong else 0


def run_nvidia_smi(session: Session, *, image: str | None) -> int:
    """Run nvidia-smi in a pod on one of the session's nodes, and report what it wrote; the exit code."""
    listener, tell = session.listener, progress(session.listener)
    api = nodes.connect(session.inventory)
    able = nodes.find_gpu_nodes(api, session, tell)
    if not able:
        return 1
    ran = once.run(
        api,
        able,
        namespace=session.inventory.cluster.namespace,
        image=PluginImage(image) if image else nodes.image_of(session.inventory),
        seconds=PODS_SECONDS,
        tell=tell,
        config=session.inventory.cluster.plugin_config,
        schedulers=nodes.schedulers(api, session.inventory),
    )
    if ran.log:
        listener.rows(
            "log",
            ("node", "pod", "log"),
            [(ForPrograms(ran.node), ForPrograms(ran.pod), line) for line in ran.log.splitlines()],
        )
    if ran.why:
        where = f" on {ran.node}" if ran.node else ""
        listener.problem(
            Problem(
                "", f"pod {ran.pod}{where}: {ran.why}", fix=lines(("The pod is deleted again.", ran.fix), " ")
            )
        )
    return 1 if ran.why else 0


def report_verdicts(members: Members, listener: Listener) -> None:
    """Report a row per host: whether it is verified, and what shows it."""
    rows = [
        (member.host.name, member.node.name if member.node else "", *verdict(member)) for member in members
    ]
    listener.rows("verified", ("host", "node", "result", "proof"), rows)


def verdict(one: Member) -> tuple[str, str]:
    """Whether a host is verified, and what shows it."""
    result, uuids = one.result, one.target.uuids if one.target else ()
    parts = sum(uuid.startswith("MIG-") for uuid in uuids)
    kinds = [(len(uuids) - parts, "GPU"), (parts, "MIG device")]
    several = [f"{number} {kind}{'' if number == 1 else 's'}" for number, kind in kinds if number]
    count = " and ".join(several) or "0 GPUs"
    if one.wrong:
        return "not verified", one.wrong.what.splitlines()[0]
    if one.outcome and not one.host_ok:
        return "not verified", f"{one.outcome.status}: {one.outcome.why}".splitlines()[0]
    if result is None:
        return "not verified", f"{count} offered; no pod was run on them"
    if one.in_use:
        return "not verified", f"nothing to change; in use, not proven now: {result.why}"
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


def show(results: Sequence[NodeResult], listener: Listener) -> None:
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
    listener.rows("vectoradd", ("node", "uuid", "gpu", "result", "pods", "seconds", "why"), rows)
    for result in results:
        if result.why and not (result.busy and result.uncovered):  # the rows show who uses them
            listener.problem(Problem("", result.why, "pod", result.node))
