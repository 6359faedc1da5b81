"""What plans disturb, in words: what is interrupted, and what becomes of the work there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpunode.model import Disturbed, Outcome
from gpunode.wording import few

NAMED = 5  # pods and processes of a host
HOSTS = 10
BATCHES = 5


def sentence(found: Disturbed) -> str:
    """`reboot, driver packages; nobody works there`; without names, so that equal plans read alike."""
    if not found.what:
        return "nobody"
    reboot = "reload of the modules, or a reboot where the GPUs stay in use" if found.reload else "reboot"
    return f"{found.what.words(reboot)}; {_treatment(found)}"


def whose(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A headline, and a line for each host on which work is interrupted; nothing where there is none."""
    busy = [(one.host, one.disturbs) for one in outcomes if one.disturbs and _victims(one.disturbs)]
    if not busy:
        return
    gpus = [asks for _, found in busy for asks in (found.pods or {}).values() if asks]
    parts = [_count(len(busy), "host"), _count(len(gpus), "GPU pod")]
    others = sum(len(found.pods or {}) for _, found in busy) - len(gpus)
    processes = sum(len(found.processes) for _, found in busy)
    parts += [_count(others, "other pod")] if others else []
    parts += [f"{processes} process{'' if processes == 1 else 'es'}"] if processes else []
    order = ", unless --batch says otherwise one host at a time per group" if len(busy) > 1 else ""
    yield f"{', '.join(parts)}{order}"
    for host, found in busy[:HOSTS]:
        yield f"{host}: {few(_victims(found), NAMED)}"
    if len(busy) > HOSTS:
        yield f"and {len(busy) - HOSTS} more hosts"


def batches(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A line for each of the first batches with changes: its hosts, and what is interrupted there."""
    busy = [(number, changes, words) for number, _, changes, _, words in rows if changes]
    for number, changes, words in busy[:BATCHES]:
        yield f"{number}.  {few(changes, NAMED)}{': ' if words else ''}{'; '.join(words)}"
    if rest := [len(changes) for _, changes, _ in busy[BATCHES:]]:
        more = "1 more batch" if len(rest) == 1 else f"{len(rest)} more batches"
        yield f"and {more}, {_count(max(rest), 'host')}{'' if len(rest) == 1 else ' each at most'}"


def _treatment(found: Disturbed) -> str:
    minutes = f"{found.timeout / 60:g} min at most"
    if found.pods is None:
        waits = found.processes and found.work in ("wait", "drain")
        first = f"processes outside Kubernetes waited for, {minutes}; " if waits else ""
        return f"{first}which pods work there is not known"
    if not found.anybody:
        return "nobody works there"
    return {
        "stays": "work there continues",
        "wait": f"cordoned first, work on GPUs waited for, {minutes}",
        "drain": f"drained first, {minutes}",
        "kill": "cordoned first, work ends with it",
    }[found.work]


def _victims(found: Disturbed) -> list[str]:
    if not found.anybody:
        return []
    pods = [_pod(name, asks, found.standstill.get(name)) for name, asks in (found.pods or {}).items()]
    return [*pods, *(str(one) for one in found.processes)]


def _pod(name: str, asks: Mapping[str, int], standstill: str | None) -> str:
    more = [_amounts(asks)] if asks else []
    more += [f"does not run: {standstill}"] if standstill else []
    return f"{name} ({', '.join(more)})" if more else name


def _amounts(asks: Mapping[str, int]) -> str:
    """A unit of another resource is a share, some memory or a part of a GPU: it is named as the pod names it."""
    return ", ".join(
        _count(amount, "GPU") if name == "nvidia.com/gpu" else f"{amount} of {name}"
        for name, amount in asks.items()
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
