"""`gpunode explain`: from the line of an error to its cause."""

from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.errors import UsageError


def explain(
    text: Annotated[
        list[str],
        typer.Argument(
            help="A line of a log, or a code such as `xid 79`; `-` reads lines from stdin.",
            metavar="TEXT|CODE",
            show_default=False,
        ),
    ],
    json: options.Json = False,
) -> None:
    """Explain an error of the driver, a runtime, the kubelet, the device plugin or CUDA: what happened, whose fault it is
    (hardware, driver, application, system, configuration), what to do next, and the source.

    Reads only gpunode's tables: exit code 7 for an unknown line. A line that does not prove one cause has the fault `unknown`
    (exit code 7), and `next` says how to find its cause.

    Example: gpunode explain 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'
    """
    from gpunode import report
    from gpunode.commands import explain as explanations
    from gpunode.local import files

    lines = files.text(Path("/dev/stdin")) if text == ["-"] else " ".join(text)
    if not lines.strip():
        raise UsageError("there is no text to explain", hint="Write `gpunode explain xid 79`.")
    raise typer.Exit(explanations.explain(report.make(json=json, quiet=False), lines))
