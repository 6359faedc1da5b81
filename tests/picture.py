"""docs/run.svg, the picture of a run on top of the README: `make picture` writes it, from a demo's own output."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs/run.svg"
WIDTH = 100
FIRST, END = "Break. ", "That was the demo"


def shown(output: str) -> str:
    """The demo's part with a broken link and its repair, without the live view's lines."""
    lines = [
        line.rpartition("\r")[2] for line in output.splitlines() if not re.search(r"\x1b\[[?\d]*[KAlh]", line)
    ]
    texts = [Text.from_ansi(line).plain for line in lines]
    first, end = (
        next(at for at, text in enumerate(texts) if text.startswith(words)) for words in (FIRST, END)
    )
    return "\n".join(lines[first:end]).strip()


def main() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", "gpunode", "demo", "--fast", "--break", "runtime"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(shown(done.stdout)))
    console.save_svg(str(PICTURE), title="gpunode", unique_id="run")


if __name__ == "__main__":
    main()
