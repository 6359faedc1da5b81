"""The record of an acceptance: what was measured on which GPUs, with which driver and kernel, and until when it counts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.acceptance.judge import Judgement, judge_tools, name_of, summarize
from gpunode.acceptance.stamp import Stamp, Verdict
from gpunode.contract.measurements import Measurements, as_json
from gpunode.errors import Problem


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A host's acceptance: its document, and a judgement for each GPU. `users`: pods whose GPUs were skipped. `why`: what could
    not be measured, "" for nothing. `missing`: GPUs that are not there or that pods cannot get, in words."""

    host: str
    document: Measurements | None = None
    judgements: tuple[Judgement, ...] = ()
    at: float = 0.0
    image: str = ""
    users: tuple[str, ...] = ()
    why: str = ""
    missing: str = ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why it is not accepted: GPU by GPU, then NVIDIA's programs."""
        failed = [each.problems for each in self.judgements if each.result == "failed"]
        tools = judge_tools(self.document) if self.document else ()
        fix = "`gpunode verify` names the broken link."
        silent = Problem("not-measured", self.why, "pod", fix=fix) if self.why else None
        missing = Problem("gpus-missing", self.missing, "capacity", fix=fix) if self.missing else None
        return (
            *filter(None, (silent, missing)),
            *(problem for problems in failed for problem in problems),
            *tools,
        )

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "failed"
        verdict = summarize(self.judgements)
        return "partly" if self.users and verdict == "accepted" else verdict

    def stamp(self, valid: float, *, required: bool = False) -> Stamp:
        """For `valid` seconds. Only of one with a document. `required`: by the inventory."""
        assert self.document is not None
        by_result: dict[str, list[str]] = {"accepted": [], "failed": [], "skipped": []}
        for judgement in self.judgements:
            by_result[judgement.result].append(name_of(judgement.gpu))
        accepted, failed = tuple(by_result["accepted"]), tuple(by_result["failed"])
        document = self.document
        if judge_tools(document) and not failed:  # NVIDIA's programs name no GPU
            accepted, failed = (), accepted
        return Stamp(
            document.level, self.verdict, self.at, self.at + valid, document.driver, document.kernel,
            self.image, tuple(dict.fromkeys(accepted)), tuple(dict.fromkeys(failed)), required,
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
