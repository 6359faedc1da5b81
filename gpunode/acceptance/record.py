"""The record of an acceptance: what was measured on which GPUs, with which driver and kernel, and until when it counts."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from gpunode.acceptance.judge import Judgement, Verdict, judge_tools, summarize
from gpunode.contract.measurements import Measurements, as_json
from gpunode.errors import Problem
from gpunode.wording import few, several

KIND, VERSION = "gpunode-acceptance", 1
ANNOTATION = "gpunode.dev/accepted"  # of the node: a Stamp
VALID = 30 * 86400.0  # seconds
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Stamp:
    """The record without its figures. `at`, `until`: seconds since the epoch. `image`: of the program, with its digest where that is
    known. `uuids`: of the accepted GPUs; `failed`: of those that were not."""

    level: str
    verdict: Verdict
    at: float
    until: float
    driver: str
    kernel: str
    image: str
    uuids: tuple[str, ...]
    failed: tuple[str, ...] = ()

    def text(self) -> str:
        """As the node's annotation has it."""
        times = {"at": _write_time(self.at), "until": _write_time(self.until)}
        return json.dumps({"kind": KIND, "version": VERSION, **asdict(self), **times})

    def why_void(self, *, now: float, driver: str, kernel: str, uuids: Collection[str]) -> str:
        """Why it does not hold for this host any more; "" where it does. "" for a driver or a kernel: not known. `uuids`: of the
        host's GPUs and MIG devices; none: not known."""
        if self.failed:
            return f"{few(self.failed, 2)} failed it"
        if now >= self.until:
            return f"it ran out {describe_age(now - self.until)}"
        if driver and driver != self.driver:
            return f"it was for driver {self.driver}, not {driver}"
        if kernel and kernel != self.kernel:
            return f"it was for kernel {self.kernel}, not {kernel}"
        missing = [uuid for uuid in uuids if uuid not in self.uuids]
        if missing:
            return f"it leaves out {few(missing, 2)}"
        return ""

    def with_earlier(self, earlier: Stamp | None) -> Stamp:
        """With GPUs that this run skipped and that `earlier`, which still holds, has; until the first of both ends."""
        if earlier is None or self.verdict != "partly":
            return self
        if earlier.why_void(now=self.at, driver=self.driver, kernel=self.kernel, uuids=()):
            return self
        kept = tuple(uuid for uuid in earlier.uuids if uuid not in self.uuids)
        until = min(self.until, earlier.until) if kept else self.until
        return replace(self, uuids=(*self.uuids, *kept), until=until)

    def describe(self, now: float) -> str:
        """`accepted 3 days ago (standard), valid until 2026-12-25`."""
        when = f"{describe_age(now - self.at)} ({self.level})"
        if self.failed:
            return f"not accepted {when}"
        return f"accepted {when}, valid until {time.strftime('%Y-%m-%d', time.gmtime(self.until))}"


def describe_age(seconds: float) -> str:
    """`3 days ago`, `5 hours ago`, `just now`."""
    for size, noun in ((DAY, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            return f"{several(int(seconds // size), noun)} ago"
    return "just now"


def read_stamp(text: str) -> Stamp | None:
    """The stamp in an annotation or a record; None for another version, or none."""
    try:
        document = json.loads(text)
        if (document["kind"], document["version"]) != (KIND, VERSION):
            return None
        return Stamp(
            level=str(document["level"]),
            verdict=document["verdict"],
            at=_read_time(document["at"]),
            until=_read_time(document["until"]),
            driver=str(document["driver"]),
            kernel=str(document["kernel"]),
            image=str(document["image"]),
            uuids=tuple(map(str, document["uuids"])),
            failed=tuple(map(str, document["failed"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A host's acceptance: its document, and a judgement for each GPU. `users`: pods whose GPUs were skipped. `why`: why there is
    no document, "" where there is one."""

    host: str
    document: Measurements | None = None
    judgements: tuple[Judgement, ...] = ()
    at: float = 0.0
    image: str = ""
    users: tuple[str, ...] = ()
    why: str = ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why it is not accepted: GPU by GPU, then NVIDIA's programs."""
        failed = [each.problems for each in self.judgements if each.result == "failed"]
        tools = judge_tools(self.document) if self.document else ()
        silent = (Problem("not-measured", self.why, "pod"),) if self.why else ()
        return (*silent, *(problem for problems in failed for problem in problems), *tools)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "failed"
        verdict = summarize(self.judgements)
        return "partly" if self.users and verdict == "accepted" else verdict

    def stamp(self, valid: float) -> Stamp:
        """For `valid` seconds. Only of one with a document."""
        assert self.document is not None
        by_result: dict[str, list[str]] = {"accepted": [], "failed": [], "skipped": []}
        for judgement in self.judgements:
            by_result[judgement.result].append(judgement.gpu.uuid)
        accepted, failed = tuple(by_result["accepted"]), tuple(by_result["failed"])
        if self.problems and not failed:  # NVIDIA's programs name no GPU
            accepted, failed = (), accepted
        document = self.document
        return Stamp(
            document.level, self.verdict, self.at, self.at + valid, document.driver, document.kernel,
            self.image, tuple(dict.fromkeys(accepted)), tuple(dict.fromkeys(failed)),
        )  # fmt: skip

    def as_json(self, node: str, stamp: Stamp) -> dict[str, Any]:
        """The whole record. `stamp`: this one's."""
        assert self.document is not None
        return {
            **json.loads(stamp.text()),
            "host": self.host,
            "node": node,
            "gpus": [_as_json(judgement) for judgement in self.judgements],
            "measurements": as_json(self.document),
        }


def _as_json(judgement: Judgement) -> dict[str, Any]:
    return {
        "uuid": judgement.gpu.uuid,
        "result": judgement.result,
        "problems": [
            {"code": problem.code, "what": problem.what, "cause": problem.cause, "fix": problem.fix}
            for problem in judgement.problems
        ],
        "remarks": list(judgement.remarks),
        "compared_with": judgement.basis,
    }


def join_documents(documents: Sequence[Measurements]) -> Measurements | None:
    """One document of several pods of one host; None without any. A GPU that several measured counts once."""
    if not documents:
        return None
    gpus = {gpu.uuid: gpu for document in documents for gpu in document.gpus}
    tools = {name: tool for document in documents for name, tool in document.tools.items()}
    first = documents[0]
    return Measurements(
        first.level,
        first.driver,
        first.cuda,
        first.kernel,
        max(document.seconds for document in documents),
        tuple(gpus.values()),
        tools,
        {name: why for name, why in first.not_measured_tools.items() if name not in tools},
    )


def _write_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _read_time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
