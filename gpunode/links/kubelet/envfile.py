"""An environment file, read as systemd reads it for EnvironmentFile=. Pure.

systemd.exec(5), and src/basic/env-file.c for what is missing there: where a quote ends the value may go on, quoted text
may span lines, and a backslash at the end of a line takes the line's end away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WHITE, NEWLINE = " \t\n\r", "\n\r"
ESCAPED = '"\\`$'  # within double quotes; before all else a backslash stays
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One of the file: `start` and `stop` are where its text begins and ends, `end` where more can be put into its value."""

    name: str
    value: str
    start: int
    end: int
    stop: int
    closed: bool  # False: a quote lasts until the end of the file


def read(text: str) -> tuple[Assignment, ...]:
    """All assignments, in their order; of one name the last one counts. Other lines are ignored."""
    found, at = [], 0
    while at < len(text):
        if text[at] in WHITE:
            at += 1
        elif text[at] in "#;":
            at = _comment(text, at)
        else:
            line = _until(text, at, NEWLINE)
            equals = text.find("=", at, line)
            if equals < 0:
                at = line
                continue
            one = _assignment(text, at, equals)
            if NAME.fullmatch(one.name):
                found.append(one)
            at = one.stop
    return tuple(found)


def _assignment(text: str, start: int, equals: int) -> Assignment:
    at = end = equals + 1
    value, closed = "", True
    while at < len(text):  # before a value, or after a quote in it
        char = text[at]
        if char in NEWLINE:
            break
        if char in WHITE:
            at += 1
        elif char in "\"'":
            part, at, closed = _quoted(text, at + 1, char)
            value, end = value + part, at - 1 if closed else at
        else:
            part, at, last = _plain(text, at)
            value, end = value + part, last or end
            break
    return Assignment(text[start:equals].rstrip(WHITE), value, start, end, at, closed)


def _plain(text: str, at: int) -> tuple[str, int, int]:
    """A value without a quote before it, up to the end of its line: what it is, where it ends, and where its last
    character does (0: it has none)."""
    value, end, length = "", 0, 0
    while at < len(text) and text[at] not in NEWLINE:
        char = text[at]
        at += 1
        if char == "\\":
            if at < len(text):
                if text[at] not in NEWLINE:
                    value, end = value + text[at], at + 1
                at += 1
            length = len(value)
            continue
        value += char
        if char not in WHITE:
            end, length = at, len(value)
    return value[:length], at, end


def _quoted(text: str, at: int, quote: str) -> tuple[str, int, bool]:
    """Text in quotes, where it ends, and whether the quote is closed."""
    value = ""
    while at < len(text):
        char = text[at]
        at += 1
        if char == quote:
            return value, at, True
        if char == "\\" and quote == '"' and at < len(text):
            after = text[at]
            at += 1
            value += after if after in ESCAPED else "" if after == "\n" else f"\\{after}"
        else:
            value += char
    return value, at, False


def _comment(text: str, at: int) -> int:
    """Where a comment ends: a backslash at its end makes the next line a part of it (until systemd 254)."""
    while at < len(text) and text[at] not in NEWLINE:
        at += 2 if text[at] == "\\" else 1
    return at


def _until(text: str, at: int, characters: str) -> int:
    return next((n for n in range(at, len(text)) if text[n] in characters), len(text))
