"""The report as JSON lines on stdout: events and outcomes as they arrive, a summary last."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TextIO

from gpunode.agent.redaction import redact_values
from gpunode.cluster.objects.difference import DO, Difference
from gpunode.engine.shown import notes, status_of
from gpunode.errors import Problem
from gpunode.host import diff as diffs
from gpunode.model import Change, Disturbed, Event, Host, Outcome, Verdict
from gpunode.planning import writers
from gpunode.report.plain import end_quietly


class Lines:
    def __init__(self, *, quiet: bool, out: TextIO | None = None) -> None:
        self._quiet = quiet
        self._out = out  # None: stdout
        self._start = time.monotonic()

    @contextmanager
    def live(self, hosts: Sequence[Host]) -> Iterator[None]:  # noqa: ARG002 - nothing to draw
        yield

    def event(self, event: Event) -> None:
        if not self._quiet:
            self._write({"type": event.type, "host": event.host, "message": event.message, **event.data})

    def outcome(self, outcome: Outcome) -> None:
        self._write({"type": "outcome", **self._outcome(outcome)})

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool | None = None) -> None:
        for outcome in outcomes:
            steps = outcome.plan.steps if outcome.plan else ()
            reload = bool(outcome.disturbs and outcome.disturbs.reload)
            changes = [
                {
                    "step": step.step,
                    "kind": type(change).__name__,
                    "what": diffs.headline(change, reload=reload),
                    "why": change.why,
                    **({} if diff is False else {"diff": diffs.lines(change)}),
                    **_writer(outcome, change),
                }
                for step in steps
                for change in step.changes
            ]
            line = {
                "type": "plan",
                **self._outcome(outcome),
                "status": status_of(outcome),
                "changes": changes,
                "disturbs": _disturbs(outcome.disturbs) if outcome.disturbs else None,
                "notes": notes(outcome),
            }
            if outcome.facts and outcome.facts.unconfirmed:
                line["unconfirmed"] = [asdict(restart) for restart in outcome.facts.unconfirmed]
            self._write(line)

    def cluster(
        self,
        context: str,  # noqa: ARG002 - the inventory's, or the kubeconfig's own
        differences: Sequence[Difference],
        *,
        diff: bool | None = None,
    ) -> None:
        for difference in differences:
            line: dict[str, Any] = {
                "type": "cluster",
                "change": DO[difference.action],
                "object": difference.what,
            }
            if diff is not False:
                line["diff"] = difference.lines
            if difference.claims:
                line["claims"] = [{**asdict(claim), **_client(claim.manager)} for claim in difference.claims]
            if difference.node:
                line["node"] = difference.node
            if difference.untried:
                line["untried"] = difference.untried
            self._write(line)

    def failures(self, outcomes: Sequence[Outcome]) -> None:
        pass  # the error is in each outcome's line

    def links(self, host: str, links: Sequence[Verdict]) -> None:
        for link in links:
            names = ("layer", "status", "text", "cause", "fix")
            line = {"type": "link", "host": host, **{name: getattr(link, name) for name in names}}
            if link.problem and link.problem.code:
                line["code"] = link.problem.code
            if link.problem and link.problem.writers:
                line["writers"] = link.problem.writers
            self._write(line)

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        keys = [column.lower().replace(" ", "_") for column in columns]
        for row in rows:
            cells = [_disturbs(cell) if isinstance(cell, Disturbed) else cell for cell in row]
            self._write({"type": kind, **dict(zip(keys, cells, strict=True))})

    def problem(self, problem: Problem, host: str | None = None) -> None:
        code = {"code": problem.code} if problem.code else {}
        hosts = {"hosts": problem.hosts} if problem.hosts else {}
        self._write(
            {"type": "error", "host": host, "error": str(problem), "hint": problem.fix, **code, **hosts}
        )

    def note(self, text: str) -> None:
        self._write({"type": "note", "message": text})

    def ask(self, question: str) -> bool:  # noqa: ARG002 - programs cannot answer
        return False

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0, after: str = "") -> None:
        if after:
            self.note(after)
        counts = Counter[str](status_of(outcome) for outcome in outcomes)
        self.total("", {"hosts": len(outcomes), **counts, "cluster": cluster})

    def total(self, text: str, numbers: Mapping[str, object]) -> None:  # noqa: ARG002 - the numbers have it
        self._write({"type": "summary", **numbers, "seconds": round(time.monotonic() - self._start, 3)})

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        line: dict[str, Any] = {
            "host": outcome.host,
            "status": outcome.status,
            "seconds": round(outcome.seconds, 3),
        }
        if problem := outcome.problem:
            line |= {
                "error": problem.what,
                "hint": problem.fix,
                **({"code": problem.code} if problem.code else {}),
            }
        return line

    def _write(self, line: dict[str, Any]) -> None:
        try:
            out = self._out or sys.stdout
            out.write(json.dumps(redact_values(line), default=str) + "\n")
            out.flush()
        except BrokenPipeError:
            end_quietly(sys.stdout)


def _client(manager: str) -> dict[str, str]:
    writer = writers.of_manager(manager)
    return {"writer": writer.code} if writer else {}


def _writer(outcome: Outcome, change: Change) -> dict[str, Any]:
    writer = writers.of_change(outcome.facts, change)
    if outcome.facts is None or writer is None:
        return {}
    return {"writer": {**asdict(writer), "undone": writers.overwritten(outcome.facts, change)}}


def _disturbs(disturbed: Disturbed) -> dict[str, Any]:
    return {
        **asdict(disturbed.what),
        "reload": disturbed.reload,
        "anybody": disturbed.anybody,
        "work": disturbed.work,
        "timeout": disturbed.timeout,
        "pods": None if disturbed.pods is None else [_pod(disturbed, name) for name in disturbed.pods],
        "processes": [asdict(process) for process in disturbed.processes],
    }


def _pod(disturbed: Disturbed, name: str) -> dict[str, Any]:
    on = {gpu for user in disturbed.users if user.name == name for gpu in user.gpus}
    asks = (disturbed.pods or {})[name]
    gpus = sum(amount for resource, amount in asks.items() if resource.startswith("nvidia.com/"))
    standstill = disturbed.standstill.get(name, "")
    return {"name": name, "gpus": gpus, "asks": asks, "standstill": standstill, "on": sorted(on)}
