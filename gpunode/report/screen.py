"""The terminal, and the only way for words to it: no markup is read in them, and no control character gets through."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gpunode.report.pipe import closed
from gpunode.report.plain import Part, plain


class _Console(Console):
    def on_broken_pipe(self) -> None:
        closed(self.file)


def screen(*, stderr: bool = False) -> Console:
    """Where words are printed."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def words(*parts: Part) -> Text:
    """What is printed. A line end at the very end of a part is one, any other is shown as a character."""
    found = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        end = "\n" if text.endswith("\n") else ""
        found.append(plain(text.removesuffix("\n")) + end, style)
    return found
