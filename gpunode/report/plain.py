"""Text from hosts and clusters, safe for a terminal; and the program's end when its output is no longer read."""

import os
import re
from collections.abc import Iterator
from typing import IO, Any, NoReturn, TypeAlias

from gpunode.agent.redaction import redact
from gpunode.wording import brief

Part: TypeAlias = str | tuple[str, str]  # text with its style; a line's last part ends with a newline


class Indent(str):
    """What stands before the lines of a change; a page has less room for it than a terminal."""

    __slots__ = ()


INDENT = Indent(" " * 17)
CHANGE = ("~", "yellow")


def plain(text: str) -> str:
    """The text as one line: secrets redacted, control and invisible characters escaped as Python does. Tabs stay."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def lines(text: str) -> list[str]:
    """The lines of a text, each plain; secrets that span lines are redacted first."""
    return [plain(line) for line in redact(text).splitlines()]


def one_line(text: str) -> str:
    """The lines of a text on one: behind a whole sentence a space, else a semicolon."""
    return re.sub(r"(?<=[.!?]) *\n", " ", "\n".join(lines(text))).replace("\n", "; ")


def indent(text: str, margin: str) -> Iterator[str]:
    """The lines of a text, each plain, behind the margin; those of a here-document from column 0, with the commands
    before it: a shell reads its end only there."""
    inside, script = False, "<<'END'\n" in brief(text)
    for line in lines(brief(text)):
        inside |= script and line.startswith("kubectl ")
        yield line if inside else f"{margin}{line}"
        inside &= line != "END"


def line_style(line: str) -> str:
    """The style of a diff line."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")


CODE = 141  # 128 + SIGPIPE, as shells report it


def end_quietly(stream: IO[Any]) -> NoReturn:
    """Exit with 141. Drops the stream's buffer, or Python would print an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(CODE)
