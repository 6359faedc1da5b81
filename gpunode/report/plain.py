"""What comes from hosts and from the cluster, as text: whatever it holds, a terminal shows it and does nothing."""

from __future__ import annotations

from typing import TypeAlias

from gpunode.redaction import redacted

Part: TypeAlias = str | tuple[str, str]  # text, and its style; the last of a line ends with its line end


def plain(text: str) -> str:
    """One line: without secrets, and with control and invisible characters (escape sequences, line ends, marks that turn
    the direction of writing) as Python writes them. A tab stays."""
    text = redacted(text)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\t" else _escaped(one) for one in text)


def lines(text: str) -> list[str]:
    """The lines of a text, each plain: secrets may go over several."""
    return [plain(line) for line in redacted(text).splitlines()]


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
