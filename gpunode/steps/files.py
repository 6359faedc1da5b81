"""Whole files of a host, as changes."""

from __future__ import annotations

from typing import Literal

from gpunode.model import Expected, Facts, WriteFile
from gpunode.render import Unfit

# The GPU operator's toolkit container has its programs below this folder, and puts its entries back at every start.
OPERATOR = "/usr/local/nvidia/toolkit/"
WRITES_BACK = (
    "the GPU operator wrote the entry that is there, and writes it back while its toolkit is enabled"
)


def text(facts: Facts, path: str) -> str | None:
    """A file's text, None when it does not exist. One that is there and could not be read is no ground to plan on."""
    file = facts.files.get(path)
    if file is None or not file.exists:
        return None
    if file.content is None:
        raise Unfit(
            f"{path} cannot be planned on: {file.error or 'it is larger than 256 KiB or not UTF-8'}",
            hint="Look at the file on the host, then run again; it was not touched.",
        )
    return file.content


def write(
    facts: Facts,
    path: str,
    content: str,
    why: str,
    *,
    check: Literal["docker", "containerd", "systemd"] | None = None,
    expected: Expected | None = None,
) -> tuple[WriteFile, ...]:
    """Make the file hold this; () when it does already."""
    before = text(facts, path)
    if before == content:
        return ()
    return (WriteFile(path, content, why, before=before, check=check, expected=expected),)


def newer(facts: Facts, path: str, unit: str) -> bool:
    """Whether a file was changed after a unit became active, so that the unit has not seen it."""
    file, state = facts.files.get(path), facts.units.get(unit)
    if file is None or file.mtime is None or state is None or state.active_since is None:
        return False
    # Written while the clock was ahead, a file is newer than every process to come: no evidence, and no end of restarts.
    return state.active_since < file.mtime <= facts.time
