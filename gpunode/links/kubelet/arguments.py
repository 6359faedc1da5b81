"""A kubelet's arguments: values of flags, and whether a command is a kubelet's. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence


def flag(arguments: Sequence[str], name: str) -> str | None:
    """The value of a flag; the last one wins, as for the kubelet."""
    found = flags(arguments, name)
    return found[-1] if found else None


def flags(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """All values that a flag is given, as `--name=value` or `--name value`."""
    values = []
    for number, argument in enumerate(arguments):
        if argument.startswith((f"--{name}=", f"-{name}=")):
            values.append(argument.split("=", 1)[1])
        elif argument in (f"--{name}", f"-{name}") and number + 1 < len(arguments):
            values.append(arguments[number + 1])
    return tuple(values)


def has(arguments: Sequence[str], name: str) -> bool:
    """Whether a flag is there, with a value or without."""
    return any(re.match(rf"--?{re.escape(name)}(=|$)", argument) for argument in arguments)


def gates(arguments: Sequence[str]) -> dict[str, bool]:
    """The feature gates that arguments set; later ones win, gate by gate."""
    found = {}
    for value in flags(arguments, "feature-gates"):
        for part in value.split(","):
            name, _, state = part.partition("=")
            if name.strip():
                found[name.strip()] = state.strip().lower() in ("true", "t", "1")
    return found


def is_plain(words: Sequence[str]) -> bool:
    """True if this command is the kubelet itself, not a script or another program that starts it."""
    names = [word.rsplit("/", 1)[-1] for word in words[:2]]
    return names[:1] == ["kubelet"] or names == ["hyperkube", "kubelet"]


def ends_in_flags(words: Sequence[str]) -> bool:
    """True if the command ends with a kubelet's, which a container or another program starts."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    last = max((n for n, name in enumerate(names) if re.fullmatch(r"kubelet(-wrapper)?", name)), default=None)
    if last is None or names[last - 1 : last] == ["--name"]:
        return False
    return is_plain(words) or any(word.startswith("--") for word in words[last + 1 : last + 2])
