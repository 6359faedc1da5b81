"""Man pages and completion out of the command line, as docs/reference: `python -m tests.manual ARCHIVE` writes them for a release.

`tar -xf gpunode-share.tar.xz -C ~/.local` brings them where man, bash and fish look.
"""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer._completion_shared import get_completion_script

from gpunode import __version__
from gpunode.cli import EPILOG, app
from tests.reference import option, sections, walk

COMPLETIONS = {
    "bash": "bash-completion/completions/gpunode",
    "zsh": "zsh/site-functions/_gpunode",
    "fish": "fish/vendor_completions.d/gpunode.fish",
}


def roff(text: str) -> str:
    """Text that man prints as it is: no request, no hyphen or quote of typography."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.splitlines())


def page(name: str, command: Any, others: list[str]) -> str:
    """The man page of a command: `name` with its words, gpunode plugin deploy. `others`: pages to see."""
    about, example = sections(command)
    title, _, rest = about.partition("\n\n")
    shown = [option(param) for param in command.params if not param.hidden and param.name != "help"]
    arguments = " ".join(text.strip("`") for text, *_ in shown if not text.startswith("`-"))
    parts = [
        f'.TH "{name.replace(" ", "-").upper()}" 1 "" "gpunode {__version__}"',
        f".SH NAME\n{roff(name.replace(' ', '-'))} \\- {roff(' '.join(title.split()))}",
        f".SH SYNOPSIS\n.B {roff(name)}\n[OPTIONS] {roff(arguments)}",
    ]
    if rest:
        parts.append(".SH DESCRIPTION\n" + roff(rest).replace("\n\n", "\n.PP\n"))
    if shown:
        rows = (
            f".TP\n.B {roff(names.replace('`', ''))}\n{roff(does)}"
            + (f" Default: {roff(default)}." if default else "")
            for names, default, does in shown
        )
        parts.append(".SH OPTIONS\n" + "\n".join(rows))
    if example:
        parts.append(f".SH EXAMPLE\n.nf\n{roff(' '.join(example.split()))}\n.fi")
    codes = EPILOG.removeprefix("Exit codes: ").replace(" · ", "\n.br\n")
    parts.append(f".SH EXIT STATUS\n{codes}")
    parts.append(".SH SEE ALSO\n" + ", ".join(f"\\fB{roff(text)}\\fR(1)" for text in others))
    return "\n".join(parts) + "\n"


def files() -> Iterator[tuple[str, str]]:
    """Every file of the archive: its path below share/, its text."""
    root = typer.main.get_command(app)
    commands = dict(walk(root, ("gpunode",)))
    names = [name.replace(" ", "-") for name in commands]
    yield "man/man1/gpunode.1", page("gpunode", root, names)
    for name, command in commands.items():
        yield f"man/man1/{name.replace(' ', '-')}.1", page(name, command, ["gpunode"])
    for shell, path in COMPLETIONS.items():
        yield (
            path,
            get_completion_script(prog_name="gpunode", complete_var="_GPUNODE_COMPLETE", shell=shell) + "\n",
        )


def main(archive: Path) -> None:
    with tarfile.open(archive, "w:xz") as opened:
        for path, text in sorted(files()):
            member = tarfile.TarInfo(f"share/{path}")
            content = text.encode()
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
