"""`gpunode keys`: the keys that sign NVIDIA's packages."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.errors import UsageError

NAMES = {"driver": "nvidia-driver.asc", "toolkit": "nvidia-toolkit.asc"}


def keys(
    system: Annotated[
        str,
        typer.Argument(
            help="The hosts' system as NVIDIA names it: debian12, ubuntu2404, rhel9.",
            metavar="SYSTEM",
            show_default=False,
        ),
    ] = "",
    driver: Annotated[
        str,
        typer.Option(help="The driver's key from this address or file, not from NVIDIA.", metavar="PLACE"),
    ] = "",
    toolkit: Annotated[
        str, typer.Option(help="The toolkit's key from this address or file.", metavar="PLACE")
    ] = "",
    to: Annotated[Path, typer.Option(help="The folder that gets the files.", metavar="FOLDER")] = Path(),
    fingerprint: options.Fingerprints = None,
    arch: Annotated[str, typer.Option(help="The hosts' architecture: amd64 or arm64.")] = "amd64",
    json: options.Json = False,
) -> None:
    """Fetch the two keys that sign NVIDIA's packages, check their fingerprints, and write them beside the inventory.

    Prints the `repositories` that the inventory needs. A key with another fingerprint is refused, wherever it comes from. Where
    gpunode knows only the last digits of one, so is any key whose whole fingerprint you do not give.

    Example: gpunode keys debian12
    """
    from gpunode import report
    from gpunode.links.plugin.image import MACHINES
    from gpunode.packages import repositories
    from gpunode.packages.keys import ADDRESSES, key

    if arch not in MACHINES:
        raise UsageError(f"--arch {arch}: no such architecture", hint=f"Choose one of {', '.join(MACHINES)}.")
    if not to.is_dir():
        raise UsageError(f"--to {to}: no such folder", hint="Make it, or name another.")
    try:
        sources = repositories.signed(system, arch)
    except LookupError as error:
        near = get_close_matches(re.sub(r"[^a-z0-9]", "", system.lower()), str(error).split(", "), 1)
        raise UsageError(
            f"{system}: the keys of this system are not known" if system else "no system is named",
            hint=f"Did you mean {near[0]}? Known are {error}." if near else f"Choose one of {error}.",
        ) from None
    places = {"driver": driver, "toolkit": toolkit}
    given = fingerprint or []
    wanted = [place for one in sources if (place := places[one.purpose] or one.key_uri).startswith(ADDRESSES)]
    if wanted and not json:
        typer.echo(f"Fetching {' and '.join(wanted)}", err=True)
    found = {one.purpose: key(one, places[one.purpose], given) for one in sources}  # all, or none is written
    files = {purpose: to / NAMES[purpose] for purpose in found}
    for purpose, each in found.items():
        try:
            files[purpose].write_text(each.text, encoding="ascii", errors="replace")
        except OSError as error:
            raise UsageError(f"{files[purpose]} cannot be written: {error.strerror}") from error
    listener = report.make(json=json, quiet=False)
    listener.rows(
        "key",
        ("purpose", "file", "fingerprint", "uri"),
        [(one.purpose, str(files[one.purpose]), found[one.purpose].fingerprint, one.uri) for one in sources],
    )
    if given and all(len(one.fingerprint) == repositories.WHOLE for one in sources):
        listener.note(
            "--fingerprint was not used: gpunode knows the whole fingerprint of both keys, and only that one counts."
        )
    mine = {each: f", fingerprint: {each}" for each in given}
    lines = [
        f'    {one.purpose}: {{uri: "{one.uri}", key: {files[one.purpose]}{mine.get(found[one.purpose].fingerprint, "")}}}'
        for one in sources
    ]
    for line in ("For the inventory's `defaults`, or a group:", "", "  repositories:", *lines):
        listener.note(line)
