"""docs/run.svg, the picture of a run on top of the README: `make picture` writes it, from a demo's own output."""

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
BREAK, FIX, END = "Break. ", "Fix. ", "That was the demo"
LIVE = re.compile(r"\x1b\[[?\d]*[KAlh]| at work \(")


def shown(output: str) -> str:
    """The demo's part with a broken link and its repair: what is wrong, and how it ended."""
    lines = [line for line in output.splitlines() if not LIVE.search(line)]
    texts = [Text.from_ansi(line).plain for line in lines]
    first, fix, end = (
        next(at for at, text in enumerate(texts) if text.startswith(words)) for words in (BREAK, FIX, END)
    )
    results = next(at for at in range(end, 0, -1) if texts[at].startswith("HOST "))
    return "\n".join([*lines[first : fix + 2], *lines[results:end]]).strip()


def main() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", "gpunode", "demo", "--fast", "--verbose", "--break", "runtime"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(shown(done.stdout)))
    picture = console.export_svg(title="gpunode", unique_id="run")
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # fonts from elsewhere


if __name__ == "__main__":
    main()
