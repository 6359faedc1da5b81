"""Options that several commands share, each declared once."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import completion
from gpunode.local import files as localfile

INVENTORY = Path(completion.USUAL)
VARIABLE = completion.VARIABLE  # names the usual inventory in the place of ./inventory.yaml
DEFAULT, ENVIRONMENT = "DEFAULT", "ENVIRONMENT"  # click's names of where a value comes from
FORKS = 64  # threads wait far more than they work: 64 hosts cost one core less than a second


def namespaced(value: str | None) -> str | None:
    """As Kubernetes has names of namespaces (RFC 1123 labels)."""
    if value is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise typer.BadParameter(f"{value}: a namespace has at most 63 of a-z, 0-9 and -")
    return value


def whole(values: list[str] | None) -> list[str]:
    """Fingerprints as gpg prints them, without the spaces."""
    found = ["".join(value.split()).upper() for value in values or ()]
    for value in found:
        if not re.fullmatch(r"[0-9A-F]{40}", value):
            raise typer.BadParameter(f"{value}: a whole fingerprint has 40 of 0-9 and A-F")
    return found


InventoryPath = Annotated[
    Path,
    typer.Argument(help="The inventory file.", show_default=True, metavar="INVENTORY", envvar=VARIABLE),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="The cluster's kubeconfig, in the place of the inventory's.", metavar="FILE"
    ),
]
Context = Annotated[
    str | None, typer.Option("--context", help="The kubeconfig's context, in the place of the inventory's.")
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="The device plugin's namespace, in the place of the inventory's.",
        callback=namespaced,
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        "-l",
        help="Only these hosts or groups; names, globs, comma separated.",
        metavar="NAMES",
        autocompletion=completion.hosts,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        help="All but these hosts or groups.",
        metavar="NAMES",
        autocompletion=completion.hosts,
    ),
]
Fingerprints = Annotated[
    list[str] | None,
    typer.Option(
        "--fingerprint",
        help="Trust a key with this whole fingerprint, where gpunode knows only its end.",
        metavar="DIGITS",
        callback=whole,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines on stdout, never a question.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Only results and what is wrong: no progress (with --json, too), and with --yes no plan.",
    ),
]
Forks = Annotated[int, typer.Option("--forks", help="Hosts worked on at the same time.", min=1)]
AskSudo = Annotated[
    bool, typer.Option("--ask-sudo-password", "-K", help="Ask once for the sudo password of all hosts.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Also write the report to this file, for a browser.", metavar="FILE"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@dataclasses.dataclass(frozen=True, slots=True)
class Common:
    """The options of every command that visits hosts: which hosts, how they are visited, how it is reported."""

    inventory: InventoryPath = INVENTORY
    limit: Limit = None
    exclude: Exclude = None
    json: Json = False
    quiet: Quiet = False
    forks: Forks = FORKS
    ask_sudo: AskSudo = False
    origin: str = DEFAULT  # of `inventory`; no option


@dataclasses.dataclass(frozen=True, slots=True)
class Deploys(Common):
    """The options of every command that also changes the device plugin, which --limit does not divide."""

    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            "-l",
            help="Only these hosts or groups; names, globs, comma separated. The plugin's configuration is the whole "
            "cluster's: it changes on all nodes.",
            metavar="NAMES",
            autocompletion=completion.hosts,
        ),
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class InCluster(Common):
    """The options of every command for which a kubeconfig is enough: without an inventory, the cluster's GPU nodes are
    its hosts."""

    kubeconfig: Kubeconfig = None
    context: Context = None
    namespace: Namespace = None

    @property
    def alone(self) -> bool:
        """Whether no inventory is named, and the usual one is not there. One that is named has to be there."""
        return self.origin == DEFAULT and not localfile.exists(self.inventory)


def origin(invocation: typer.Context) -> str:
    """Where the command's inventory comes from: DEFAULT, ENVIRONMENT, or the command line."""
    source = invocation.get_parameter_source("inventory")
    return source.name if source else DEFAULT


def usual() -> Path:
    """The inventory of commands that name none: $GPUNODE_INVENTORY, else ./inventory.yaml."""
    return Path(os.environ.get(VARIABLE) or INVENTORY)
