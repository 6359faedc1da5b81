"""An acceptance in short: its verdict, what it was for, and until when it counts. What a node's annotation has."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Literal, TypeAlias

from gpunode.contract.times import DAY, is_ahead, utc
from gpunode.contract.typed import read
from gpunode.wording import few, moment, several

KIND, VERSION = "gpunode-acceptance", 1

# Of a host; partly: some GPUs are in use; skipped: all
Verdict: TypeAlias = Literal["accepted", "partly", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """The record without its figures. `at`, `until`: seconds since the epoch. `image`: of the program, with its digest where that is
    known. `uuids`: of the accepted GPUs; `failed`: of those that were not. `required`: by the inventory, when it was made."""

    level: str
    verdict: Verdict
    at: float
    until: float
    driver: str
    kernel: str
    image: str
    uuids: tuple[str, ...]
    failed: tuple[str, ...] = ()
    required: bool = False

    def text(self) -> str:
        """As the node's annotation has it."""
        times = {"at": utc(self.at), "until": utc(self.until)}
        return json.dumps({"kind": KIND, "version": VERSION, **asdict(self), **times})

    def why_void(self, *, now: float, driver: str, kernel: str, uuids: Collection[str]) -> str:
        """Why it does not hold for this host any more; "" where it does. "" for a driver or a kernel: not known. `uuids`: of the
        host's GPUs and MIG devices; none: not known."""
        if self.verdict == "failed":
            return f"{few(self.failed, 2) or 'the host'} failed it"
        if self.is_ahead(now):
            return f"it is dated {moment(self.at)}, which is in the future: check the clocks of this computer and of the measuring computer"
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

    def is_ahead(self, now: float) -> bool:
        return is_ahead(utc(self.at), now)

    def meets(self, level: str) -> bool:
        """True if it was measured at this level, or at the longer one."""
        return self.level in (level, "standard")

    def replaces(self, earlier: "Stamp") -> bool:
        """False for a shorter run that found nothing, while the longer one before it still holds for the same GPUs."""
        if self.verdict == "failed" or self.meets(earlier.level):
            return True
        void = earlier.why_void(now=self.at, driver=self.driver, kernel=self.kernel, uuids=self.uuids)
        return bool(void)

    def with_earlier(self, earlier: "Stamp | None") -> "Stamp":
        """With GPUs that this run skipped and that `earlier`, which still holds and was as long, has; until the first of both ends."""
        if earlier is None or self.verdict != "partly" or not earlier.meets(self.level):
            return self
        if earlier.why_void(now=self.at, driver=self.driver, kernel=self.kernel, uuids=()):
            return self
        kept = tuple(uuid for uuid in earlier.uuids if uuid not in self.uuids)
        until = min(self.until, earlier.until) if kept else self.until
        return replace(self, uuids=(*self.uuids, *kept), until=until)

    def describe(self, now: float) -> str:
        """`accepted 3 days ago (standard), valid until 2026-12-25 12:00 CET`."""
        when = f"{describe_age(now - self.at)} ({self.level})"
        if self.verdict == "failed":
            return f"not accepted {when}"
        return f"accepted {when}, valid until {moment(self.until)}"


def describe_age(seconds: float) -> str:
    """`3 days ago`, `5 h ago`, `12 min ago`, `just now`."""
    if seconds >= DAY:
        return f"{several(int(seconds // DAY), 'day')} ago"
    if seconds >= 60.0:
        return f"{int(seconds // 3600)} h ago" if seconds >= 3600.0 else f"{int(seconds // 60)} min ago"
    return "just now"


def read_stamp(text: str) -> Stamp | None:
    """The stamp in an annotation or a record; None for another version, or none."""
    try:
        document = json.loads(text)
        if (document["kind"], document["version"]) != (KIND, VERSION):
            return None
        texts = {name: document[name].replace("Z", "+00:00") for name in ("at", "until")}
        times = {name: datetime.fromisoformat(text).timestamp() for name, text in texts.items()}
        stamp: Stamp = read(Stamp, {**document, **times}, "stamp")
        return stamp
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
