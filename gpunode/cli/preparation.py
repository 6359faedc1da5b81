"""Commands before the first run: `gpunode init` and `gpunode keys`."""

import re
import sys
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options
from gpunode.errors import InventoryError, UsageError
from gpunode.local import files as localfile

if TYPE_CHECKING:
    from gpunode.inventory.starter import Starter
    from gpunode.model import Cluster

ARCHIVE = Path("plugin.tar")  # as the README names it
SSH_CONFIG = "~/.ssh/config"
WAYS = "Choose `--from ssh` (~/.ssh/config), `--from cluster` (a kubeconfig's nodes), or `--hosts 'gpu-[01:04]'`."


def init(
    inventory: options.InventoryPath = options.INVENTORY,
    source: Annotated[
        str | None,
        typer.Option("--from", help="ssh, cluster, or the path of an ssh configuration.", metavar="SOURCE"),
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="Hosts to list; names and ranges.", metavar="NAMES")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", "-l", help="Take only these hosts of the source; names and globs.", metavar="NAMES"
        ),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", help="The hosts' ssh user, if ssh does not know it.", metavar="NAME")
    ] = "",
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    json: options.Json = False,
) -> None:
    """Write a first inventory, commented and valid: from ssh's configuration, from a kubeconfig's nodes, from names, or from
    your answers. Never overwrites a file; connects to no host.

    Example: gpunode init --from ssh --limit 'gpu-*'
    """
    from gpunode import report
    from gpunode.commands import init as start
    from gpunode.inventory import starter
    from gpunode.model import Cluster

    if localfile.exists(inventory):
        raise UsageError(
            f"{inventory} exists already; nothing was written",
            hint="Name another file: `gpunode init FILE`.",
        )
    if source and hosts:
        raise UsageError("--from and --hosts exclude each other", hint=WAYS)
    place = kubeconfig and kubeconfig.parent.resolve() / kubeconfig.name
    cluster = Cluster(str(place) if place else None, context)
    known = start.from_names(hosts) if hosts else _from(source or "", cluster) if source else None
    if known is None:
        if json or not sys.stdin.isatty():
            raise UsageError("no source of hosts is named, and there is no terminal to ask on", hint=WAYS)
        known, user = _ask(cluster, user)
    known = start.limit_hosts(known, limit or ())
    known = replace(
        start.in_context(known, cluster),
        user=user,
        archive=str(ARCHIVE) if (inventory.parent / ARCHIVE).is_file() else "",
    )
    _write(inventory, starter.text(known))
    many = f"{len(known.hosts)} host{'' if len(known.hosts) == 1 else 's'}"
    then = "gpunode plan" if inventory == options.usual() else f"gpunode plan {inventory}"
    report.make(json=json, quiet=False).total(
        f"Wrote {inventory}: {many} from {known.source}.{_note_left(known)} Read it, then run `{then}`.",
        {"inventory": str(inventory), "hosts": len(known.hosts)},
    )


def _note_left(known: "Starter") -> str:
    """A sentence about options of ssh that the inventory cannot hold; "" without any."""
    options = dict.fromkeys(option for host in known.hosts for option in host.left)
    if not options:
        return ""
    return f" No key of it holds {', '.join(options)}: connections read {SSH_CONFIG}, write them there."


def _from(source: str, cluster: "Cluster") -> "Starter":
    from gpunode.commands import init as start

    if source == "cluster":
        return start.from_cluster(cluster)
    return start.from_ssh() if source == "ssh" else start.from_ssh(Path(source))


def _ask(cluster: "Cluster", user: str) -> "tuple[Starter, str]":
    """The user's answers: where the hosts come from, and the ssh user."""
    from gpunode.commands import init as start

    typer.echo("Which hosts? Names and ranges such as gpu-[01:04], or `ssh` for ~/.ssh/config, or", err=True)
    answer = typer.prompt("`cluster` for the nodes of the kubeconfig", err=True).strip()
    known = _from(answer, cluster) if answer in ("ssh", "cluster") else start.from_names(answer)
    user = user or typer.prompt(
        "ssh user (empty: as ssh is configured)", default="", show_default=False, err=True
    )
    return known, user.strip()


def _write(path: Path, text: str) -> None:
    """Write a valid file that must not exist. Raises UsageError, also for one that gpunode could not read."""
    from gpunode import inventory as inventories

    with TemporaryDirectory() as folder:
        draft = Path(folder, "inventory.yaml")
        draft.write_text(text, encoding="utf-8")
        try:
            inventories.load(draft, keys=False)
        except InventoryError as error:
            raise UsageError(
                "\n".join(
                    problem.replace(str(draft), f"{path} as it would be") for problem in error.problems
                ),
                hint="Nothing was written.",
            ) from None
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


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
        typer.Option(
            help="Take the driver's key from this address or file instead of NVIDIA.", metavar="PLACE"
        ),
    ] = "",
    toolkit: Annotated[
        str,
        typer.Option(
            help="Take the toolkit's key from this address or file instead of NVIDIA.", metavar="PLACE"
        ),
    ] = "",
    to: Annotated[Path, typer.Option(help="The folder for the files.", metavar="FOLDER")] = Path(),
    fingerprint: options.Fingerprints = None,
    arch: Annotated[
        str, typer.Option(help="The hosts' architecture: amd64 or arm64.", metavar="NAME")
    ] = "amd64",
    json: options.Json = False,
) -> None:
    """Fetch the two keys that sign NVIDIA's packages, check their fingerprints, and write them beside the inventory.

    Prints the `repositories` that the inventory needs. Refuses a key with another fingerprint, wherever it comes from. Where
    gpunode knows only the last digits of a fingerprint, give the whole one with --fingerprint.

    Example: gpunode keys debian12
    """
    from gpunode import report
    from gpunode.links.plugin.image import MACHINES
    from gpunode.packages import repositories
    from gpunode.packages.keys import ADDRESSES, read_key

    if arch not in MACHINES:
        raise UsageError(f"--arch {arch}: no such architecture", hint=f"Choose one of {', '.join(MACHINES)}.")
    if not to.is_dir():
        raise UsageError(f"--to {to}: no such folder", hint="Make it, or name another.")
    try:
        sources = repositories.signed_repositories(system, arch)
    except LookupError as error:
        near = get_close_matches(re.sub(r"[^a-z0-9]", "", system.lower()), str(error).split(", "), 1)
        raise UsageError(
            f"{system}: the keys of this system are not known" if system else "no system is named",
            hint=f"Did you mean {near[0]}? Known are {error}." if near else f"Choose one of {error}.",
        ) from None
    places = {"driver": driver, "toolkit": toolkit}
    fingerprints = fingerprint or []
    wanted = [
        place
        for source in sources
        if (place := places[source.purpose] or source.key_uri).startswith(ADDRESSES)
    ]
    if wanted and not json:
        typer.echo(f"Fetching {' and '.join(wanted)}", err=True)
    checked = {
        source.purpose: read_key(source, places[source.purpose], fingerprints) for source in sources
    }  # all, or none is written
    files = {purpose: to / NAMES[purpose] for purpose in checked}
    for purpose, each in checked.items():
        try:
            files[purpose].write_text(each.text, encoding="ascii", errors="replace")
        except OSError as error:
            raise UsageError(f"{files[purpose]} cannot be written: {error.strerror}") from error
    reporter = report.make(json=json, quiet=False)
    reporter.rows(
        "key",
        ("purpose", "file", "fingerprint", "uri"),
        [
            (source.purpose, str(files[source.purpose]), checked[source.purpose].fingerprint, source.uri)
            for source in sources
        ],
    )
    if fingerprints and all(len(source.fingerprint) == repositories.WHOLE for source in sources):
        reporter.note(
            "--fingerprint was not used: gpunode uses the whole fingerprints that it knows of both keys."
        )
    mine = {each: f", fingerprint: {each}" for each in fingerprints}
    lines = [
        f'    {source.purpose}: {{uri: "{source.uri}", key: {files[source.purpose]}{mine.get(checked[source.purpose].fingerprint, "")}}}'
        for source in sources
    ]
    for line in ("For the inventory's `defaults`, or a group:", "", "  repositories:", *lines):
        reporter.note(line)
