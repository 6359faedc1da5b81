"""The only way to the terminal: text is printed without markup and without control characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpunode.report.pipe import closed
from gpunode.report.plain import Part, plain

# Where a line's text begins, after its indentation, name, sign and second name.
_HEAD = re.compile(r" *(?:[^ ]{1,20} {2,})?(?:[-+~!=✓✗·] +)?(?:[^ ]{1,12} {2,})?")
_WORD = re.compile(r" *(?:`[^`]*`[^ ]*|[^ ]+)")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        closed(self.file)


def screen(*, stderr: bool = False) -> Console:
    """The console for stdout or stderr."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def words(*parts: Part) -> Text:
    """The parts as one text. A newline at the end of a part ends the line, any other is shown escaped."""
    found = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        end = "\n" if text.endswith("\n") else ""
        found.append(plain(text.removesuffix("\n")) + end, style)
    return found


def wrapped(text: Text, width: int) -> Text:
    """The text with lines of at most `width` cells, broken between words and indented to where their text begins.

    A command in backquotes stays on one line if it fits; a longer word is left to the terminal.
    """
    if cell_len(max(text.plain.split("\n"), key=cell_len)) <= width:
        return text
    return Text("\n").join(
        part for line in text.split("\n", allow_blank=True) for part in _parts(line, width)
    )


def _parts(line: Text, width: int) -> Iterator[Text]:
    head = _HEAD.match(line.plain)
    indent = head.end() if head and head.end() <= width // 2 else 2
    column, breaks = indent, []
    for word in _pieces(line.plain, indent, width - indent):
        if column + cell_len(word[0]) > width and column > indent:
            breaks.append(word.end() - len(word[0].lstrip()))
            column = indent + cell_len(word[0].lstrip())
        else:
            column += cell_len(word[0])
    first, *rest = line.divide(breaks)
    for part in (first, *(Text(" " * indent).append_text(part) for part in rest)):
        part.rstrip()
        yield part


def _pieces(line: str, start: int, room: int) -> Iterator[re.Match[str]]:
    """The words of a line with the spaces before them; commands in backquotes are one word if there is room for them."""
    for found in _WORD.finditer(line, start):
        if cell_len(found[0].strip()) <= room:
            yield found
        else:
            yield from re.compile(r" *[^ ]+").finditer(line, found.start(), found.end())
