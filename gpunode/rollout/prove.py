"""The proof: vectoradd on the GPUs of nodes, a row for each of them, and which hosts it verifies."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster import vectoradd as pods
from gpunode.cluster.api import Api
from gpunode.cluster.results import NodeResult, Result, Target
from gpunode.cluster.watch import Tell
from gpunode.errors import ClusterError
from gpunode.model import Inventory, PluginImage
from gpunode.rollout.listener import Listener
from gpunode.rollout.member import Member
from gpunode.rollout.nodes import image_of

PODS_SECONDS = 180.0


def vectoradd(
    api: Api, inventory: Inventory, targets: Sequence[Target], tell: Tell, *, image: str | None = None
) -> tuple[NodeResult, ...]:
    """Run it on the free GPUs of the nodes; `image`: another one than the plugin's."""
    return pods.run(
        api,
        targets,
        namespace=inventory.cluster.namespace,
        image=PluginImage(image) if image else image_of(inventory),
        seconds=PODS_SECONDS,
        tell=tell,
        args=() if image else pods.ARGS,
        config=inventory.cluster.plugin_config,
    )


def verdict(one: Member) -> tuple[str, str]:
    """Whether a host is verified, and what shows it."""
    result, uuids = one.result, one.aim.uuids if one.aim else ()
    parts = sum(uuid.startswith("MIG-") for uuid in uuids)
    kinds = [(len(uuids) - parts, "GPU"), (parts, "MIG device")]
    several = [f"{number} {kind}{'' if number == 1 else 's'}" for number, kind in kinds if number]
    count = " and ".join(several) or "0 GPUs"
    if not one.good:
        return "not verified", f"{one.outcome.status}: {one.outcome.error}".splitlines()[0]
    if one.wrong:
        return "not verified", one.wrong.words.splitlines()[0]
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
        if result.why:
            listener.problem(ClusterError(f"{result.node}: {result.why}"))
