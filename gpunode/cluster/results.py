"""What came of vectoradd: pod by pod, and node by node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A node, and the GPUs that it should have: every one not seen by a pod is named. () when not known.

    `pieces`: how many units of memory each GPU makes that is shared by it; () when not known.
    """

    node: str
    uuids: tuple[str, ...] = ()
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What one pod did. `uuid` and `gpu` (the model) are "" when its image does not tell.

    `share`: the MiB of a GPU's memory that it asked for, 0 where it is not known how many those are; None where it asked for
    none. `limit`: those that the driver held it to; None where it could have had all.
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
    """All pods of one node. `uncovered` are GPUs that no pod saw; `users` the pods that hold GPUs meanwhile.

    `divided`: several pods can have parts of one GPU; `shared`: by memory.
    """

    node: str
    results: tuple[Result, ...]
    uncovered: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    why: str = ""
    divided: bool = False
    shared: bool = False

    @property
    def passed(self) -> bool:
        """At least one pod ran, all that ran passed, and only GPUs that others use were left out."""
        left_out = self.uncovered and not self.users
        return bool(self.results) and not (self.why or left_out) and all(r.passed for r in self.results)

    @property
    def together(self) -> str:
        """A GPU of which two pods had a part at the same time, as pods keep theirs until all are done; "" for none."""
        pods: dict[str, set[str]] = {}
        for one in self.results:
            pods.setdefault(one.uuid, set()).add(one.pod)
        return next((uuid for uuid, several in pods.items() if uuid and len(several) > 1), "")


def reported(log: str) -> list[dict[str, Any]]:
    """The GPUs in the plugin image's JSON; [] for other images and for programs that did not come so far, but for what
    those say was wrong."""
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
                return [dict(gpu) for gpu in answer["gpus"]] or [{"error": answer.get("error")}]
            except (ValueError, KeyError, TypeError):
                continue
    return []
