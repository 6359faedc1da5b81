"""The pod: vectoradd passes on every free GPU, and with isolation a pod that asks for no GPU sees none."""

from collections.abc import Sequence
from dataclasses import replace

from gpunode.links.pod.vectoradd import NodeResult, Result
from gpunode.model import Verdict
from gpunode.wording import Advice, Command, few, lines


def judge_pod(result: NodeResult, reported: str = "", unlimited: str = "") -> Verdict:
    """vectoradd passed on every GPU that is not in use.

    `reported`: what the plugin reports about unhealthy GPUs; `unlimited`: why shares of memory have no limits.
    """
    passed = [run for run in result.results if run.passed]
    users = f"; in use by {', '.join(result.users)}" if result.users else ""
    failed = [run for run in result.results if not run.passed]
    if failed:
        alike: dict[tuple[str, str], list[str]] = {}
        for run in failed:
            alike.setdefault((run.uuid, run.why), []).append(run.pod)
        cause = "\n".join(
            f"{few(pods, 3)}{f' on {uuid}' if uuid else ''}: {why}" for (uuid, why), pods in alike.items()
        )
        cause += f"\n{reported}" if reported else ""
        bad, tried = (len({run.pod for run in several}) for several in (failed, result.results))
        text = f"vectoradd failed in {bad} of {tried} pods"
        return Verdict.broken("pod", text, cause, Advice(Command("run vectoradd"), " shows the whole log"))
    if not passed:
        text = f"vectoradd was not run: {result.why or 'no GPU is free'}"
        return Verdict.unknown("pod", text) if result.users else Verdict.broken("pod", text)
    if not result.passed:
        missed = "vectoradd was not run on all"
        if result.uncovered:
            missed = f"no pod got {', '.join(result.uncovered)}"
        return Verdict.broken("pod", missed, result.why)
    where = ", ".join(dict.fromkeys(run.uuid or run.pod for run in passed))  # shares of a GPU: once
    return Verdict.ok(
        "pod", f"vectoradd passed on {where}{_together(result)}{_limits(passed, unlimited)}{users}"
    )


def judge_isolation(link: Verdict, problem: str) -> Verdict:
    """The link of a host with isolation: `problem` is what a pod that asks for no GPU showed; "" where it saw none."""
    if not problem:
        return replace(link, text=f"{link.text}; a pod that asks for none sees none")
    text = "a pod that asks for no GPU is not kept from them" if link.status == "ok" else link.text
    fix = Advice(
        Command("provision"), " sets what NVIDIA's runtime accepts; containers that run keep what they have"
    )
    return Verdict.broken("pod", text, lines((problem, link.cause)), link.fix or fix)


def _together(result: NodeResult) -> str:
    """Whether two pods were seen to share a GPU, on a node where they can; "" elsewhere."""
    if not result.divided:
        return ""
    if result.together:
        return f"; two pods at the same time on {result.together}"
    return "; no two pods shared a GPU: too little is known to be free"


def _limits(passed: Sequence[Result], unlimited: str) -> str:
    """The memory limits that pods with a share of memory saw; "" without such pods. An exceeded limit fails the pod."""
    shares = [run for run in passed if run.share is not None]
    loose = list(dict.fromkeys(share.uuid or share.pod for share in shares if share.limit is None))
    sizes = ", ".join(dict.fromkeys(f"{share.limit} MiB" for share in shares if share.limit is not None))
    why = f": {unlimited}" if unlimited else ", see the plugin's log"
    if sizes and loose:
        return (
            f"; the driver held some to their share of memory: {sizes}, but none on {', '.join(loose)}{why}"
        )
    if sizes:
        return f"; the driver held each to its share of memory: {sizes}"
    return f"; shares of memory are not limited by the driver{why}" if loose else ""
