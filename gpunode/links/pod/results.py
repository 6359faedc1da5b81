"""Results of vectoradd by pod and by node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One pod's result on one GPU. `uuid` and `gpu` (the model) are "" where its image does not report them.

    `share`: MiB of a GPU's memory that it requested, 0 where unknown, None where it requested none. `limit`: MiB that the
    driver limited it to; None without a limit.
    """

    node: str
    pod: str
    uuid: str
    gpu: str
    passed: bool
    seconds: float
    why: str
    log: tuple[str, ...]
    limit: int | None = None
    share: int | None = None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """All results of one node. `wanted`: UUIDs that its pods should have seen, () where unknown. `uncovered`: GPUs that no pod saw; `users`: other pods with GPUs; `busy`: these have all.

    `divided`: several pods can have parts of one GPU; `shared`: by memory.
    """

    node: str
    results: tuple[Result, ...]
    uncovered: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    why: str = ""
    divided: bool = False
    shared: bool = False
    busy: bool = False
    wanted: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """At least one pod ran, all that ran passed, and only GPUs in use were excluded."""
        untested = self.uncovered and not self.users
        return bool(self.results) and not (self.why or untested) and all(r.passed for r in self.results)

    @property
    def together(self) -> str:
        """A GPU that two pods had at the same time, as pods keep theirs until all are done; "" for none."""
        pods: dict[str, set[str]] = {}
        for result in self.results:
            pods.setdefault(result.uuid, set()).add(result.pod)
        return next((uuid for uuid, several in pods.items() if uuid and len(several) > 1), "")


def failed(node: str, pod: str, why: str, seconds: float = 0.0) -> Result:
    """The result of a pod that reported no GPU."""
    return Result(node, pod, uuid="", gpu="", passed=False, seconds=seconds, why=why, log=())


def reported(log: str) -> list[dict[str, Any]]:
    """The GPUs in the JSON of the plugin's image, or its error; [] for other images and for a log without JSON."""
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
                return [dict(gpu) for gpu in answer["gpus"]] or [{"error": answer.get("error")}]
            except (ValueError, KeyError, TypeError):
                continue
    return []
