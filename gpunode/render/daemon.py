"""docker's daemon.json: set some keys, leave every other byte as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # parses one string at an offset
from typing import Any

from gpunode.render.unfit import Unfit, at

RUNTIME = {"path": "nvidia-container-runtime", "args": []}
HINT = "Mend the file by hand (dockerd reads it too), then run again; it was not touched."


@dataclass(frozen=True, slots=True)
class Member:
    """A key of a JSON object, and where it and its value stand in the text."""

    key: str
    at: int
    start: int
    end: int
    value: Any


def daemon_json(text: str, *, default: bool, path: str = "/etc/docker/daemon.json") -> str:
    """The file with the nvidia runtime in it, and with it as the default runtime if asked for."""
    if not text.strip():
        text = "{}\n"
    document = _parse(text, path)
    start = text.index("{")
    if default and document.get("default-runtime") != "nvidia":
        text = _set(text, start, "default-runtime", "nvidia")
    runtimes = document.get("runtimes", {})
    if not isinstance(runtimes, dict):
        raise Unfit(f"{path}: `runtimes` is not an object of runtimes by name", hint=HINT)
    if not _is_nvidia(runtimes.get("nvidia")):
        own = next((m for m in _members(text, start) if m.key == "runtimes"), None)
        if own is None:
            text = _set(text, start, "runtimes", {"nvidia": RUNTIME})
        else:
            text = _set(text, own.start, "nvidia", RUNTIME)
    return text


def _is_nvidia(runtime: object) -> bool:
    """Whether a runtime entry starts NVIDIA's, by name or from where its package puts it."""
    return isinstance(runtime, dict) and runtime.get("path") in (
        "nvidia-container-runtime",
        "/usr/bin/nvidia-container-runtime",
    )


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = at(path, text, error.pos)
        raise Unfit(f"{path} does not parse\n{where}: not valid JSON: {error.msg}", hint=HINT) from None
    if not isinstance(document, dict):
        raise Unfit(f"{at(path, text, 0)}: not a JSON object", hint=HINT)
    for member, first in _twice(text, len(text) - len(text.lstrip())):
        raise Unfit(
            f'{at(path, text, member.at)}: "{member.key}" stands here again, first on line '
            f"{text.count(chr(10), 0, first) + 1}; dockerd takes the last and says nothing",
            hint="Leave one of the two, then run again; the file was not touched.",
        )
    return document


def _space(text: str, offset: int) -> int:
    match = re.compile(r"\s*").match(text, offset)
    return match.end() if match else offset


def _members(text: str, offset: int) -> Iterator[Member]:
    """The members of the object that begins at `offset`; the text is known to be valid JSON."""
    offset = _space(text, offset + 1)
    while text[offset] != "}":
        key, end = scanstring(text, offset + 1, True)
        start = _space(text, _space(text, end) + 1)
        value, stop = json.JSONDecoder().raw_decode(text, start)
        yield Member(key, offset, start, stop, value)
        offset = _space(text, stop)
        if text[offset] == ",":
            offset = _space(text, offset + 1)


def _twice(text: str, offset: int) -> Iterator[tuple[Member, int]]:
    """Members whose key came before in the same object, in objects inside objects too."""
    seen: dict[str, int] = {}
    for member in _members(text, offset):
        if member.key in seen:
            yield member, seen[member.key]
        seen[member.key] = member.at
        if isinstance(member.value, dict):
            yield from _twice(text, member.start)


def _set(text: str, offset: int, key: str, value: object) -> str:
    """The object at `offset` with this member: its value replaced, or the member added after the last one."""
    members = list(_members(text, offset))
    written = json.dumps(value)
    for member in members:
        if member.key == key:
            return text[: member.start] + written + text[member.end :]
    entry = f"{json.dumps(key)}: {written}"
    if members:
        last = members[-1]
        return f"{text[: last.end]},{_gap(text, last.at)}{entry}{text[last.end :]}"
    close = text.index("}", offset)
    outer = text[text.rfind("\n", 0, offset) + 1 : offset]
    indent = re.match(r"\s*", outer)[0]  # type: ignore[index]  # matches always
    return f"{text[: offset + 1]}\n{indent}  {entry}\n{indent}{text[close:]}"


def _gap(text: str, offset: int) -> str:
    """What separates a further member from the one at `offset`: its own line's start, or a space."""
    start = text.rfind("\n", 0, offset)
    lead = text[start + 1 : offset]
    return f"\n{lead}" if start >= 0 and not lead.strip() else " "
