"""docker's daemon.json: set some keys, leave every other byte as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # parses one string at an offset
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.planning.files import at

RUNTIME = {"path": "nvidia-container-runtime", "args": []}
HINT = "Fix the file by hand (dockerd reads it too), then run again; it was not touched."


@dataclass(frozen=True, slots=True)
class Member:
    """A key of a JSON object, with the positions of key and value in the text."""

    key: str
    at: int
    start: int
    end: int
    value: Any


def daemon_json(
    text: str, *, default: bool, path: str = "/etc/docker/daemon.json", more: Mapping[str, str] | None = None
) -> str:
    """The file with the nvidia runtime, as the default runtime if `default`; and with `more` (name -> binary), where it
    does not have them."""
    if not text.strip():
        text = "{}\n"
    document = _parse(text, path)
    start = text.index("{")
    if default and document.get("default-runtime") != "nvidia":
        text = _set(text, start, "default-runtime", "nvidia")
    runtimes = document.get("runtimes")
    if not isinstance(runtimes, dict | None):
        raise CannotPlan(f"{path}: `runtimes` is not an object of runtimes by name", hint=HINT)
    if not runtimes or not _is_nvidia(runtimes.get("nvidia")):
        own = _member(text, start, "runtimes")
        if own is None or own.value is None:
            text = _set(text, start, "runtimes", {"nvidia": RUNTIME})
        else:
            text = _set(text, own.start, "nvidia", RUNTIME)
    for name, binary in (more or {}).items():
        own = _member(text, start, "runtimes")
        if name != "nvidia" and own is not None and name not in own.value:
            text = _set(text, own.start, name, {"path": binary, "args": []})
    return text


def _is_nvidia(runtime: object) -> bool:
    """Whether a runtime entry starts NVIDIA's, by name or from where its package puts it."""
    return isinstance(runtime, dict) and runtime.get("path") in (
        "nvidia-container-runtime",
        "/usr/bin/nvidia-container-runtime",
    )


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise CannotPlan(f"{path} does not parse\nit is nested too deeply", hint=HINT) from None
    except json.JSONDecodeError as error:
        where = at(path, text, error.pos)
        raise CannotPlan(f"{path} does not parse\n{where}: not valid JSON: {error.msg}", hint=HINT) from None
    except ValueError as error:  # a number of more than 4300 digits
        raise CannotPlan(f"{path} does not parse\nnot valid JSON: {error}", hint=HINT) from None
    if not isinstance(document, dict):
        raise CannotPlan(f"{at(path, text, 0)}: not a JSON object", hint=HINT)
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


def _member(text: str, offset: int, key: str) -> Member | None:
    """The member of the object at `offset` that counts: dockerd takes the last of a name."""
    return next((m for m in reversed(tuple(_members(text, offset))) if m.key == key), None)


def _set(text: str, offset: int, key: str, value: object) -> str:
    """The object at `offset` with this member: its value replaced, or the member added after the last one."""
    members = list(_members(text, offset))
    written = json.dumps(value)
    present = _member(text, offset, key)
    if present is not None:
        return text[: present.start] + written + text[present.end :]
    entry = f"{json.dumps(key)}: {written}"
    if members:
        last = members[-1]
        return f"{text[: last.end]},{_gap(text, last.at)}{entry}{text[last.end :]}"
    close = text.index("}", offset)
    outer = text[text.rfind("\n", 0, offset) + 1 : offset]
    indent = re.match(r"\s*", outer)[0]  # type: ignore[index]  # matches always
    line = _newline(text) + indent
    return f"{text[: offset + 1]}{line}  {entry}{line}{text[close:]}"


def _gap(text: str, offset: int) -> str:
    """What separates a further member from the one at `offset`: its own line's start, or a space."""
    start = text.rfind("\n", 0, offset)
    lead = text[start + 1 : offset]
    return f"{_newline(text)}{lead}" if start >= 0 and not lead.strip() else " "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
