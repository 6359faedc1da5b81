"""The journal that gpunode keeps on a host: an entry for each change, with what was there before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an apply. `run`: of the operator's record, "" where it had none or an older gpunode wrote this; `by`: user@machine;
    `done`: it is known to be made. A file's has `path`, its state before and after (SHA-256; `-> TARGET` of a link; None: absent), how its
    original was, whose text `content` is, or `error` why it is not there, the `unit` that was to read it,
    and whether its folder was new. Others have `change` as the agent got it, and what they say of `before`
    and `after`."""

    apply: str
    run: str = ""
    by: str = ""
    time: float = 0.0  # seconds since the epoch
    kind: str = ""
    why: str = ""
    done: bool = False
    path: str = ""
    was: str | None = None
    wrote: str | None = None
    link: str | None = None
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    label: str | None = None  # SELinux's
    content: str | None = None
    error: str = ""
    unit: str = ""
    new_folder: bool = False
    change: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
