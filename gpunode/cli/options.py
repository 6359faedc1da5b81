"""Options that several commands share, each declared once."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gpunode.cli import completion

INVENTORY = Path(completion.USUAL)
VARIABLE = completion.VARIABLE  # names the usual inventory in the place of ./inventory.yaml
DEFAULT, ENVIRONMENT = "DEFAULT", "ENVIRONMENT"  # click's names of where a value comes from
FORKS = 64  # threads wait far more than they work: 64 hosts cost one core less than a second


def namespaced(value: str | None) -> str | None:
    """As Kubernetes has names of namespaces (RFC 1123 labels)."""
    if value is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise typer.BadParameter(f"{value}: a namespace has at most 63 of a-z, 0-9 and -")
    return value


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
        return self.origin == DEFAULT and not self.inventory.exists()


def origin(invocation: typer.Context) -> str:
    """Where the command's inventory comes from: DEFAULT, ENVIRONMENT, or the command line."""
    source = invocation.get_parameter_source("inventory")
    return source.name if source else DEFAULT


def usual() -> Path:
    """The inventory of commands that name none: $GPUNODE_INVENTORY, else ./inventory.yaml."""
    return Path(os.environ.get(VARIABLE) or INVENTORY)


BEFORE = 3  # of Common's options, as help lists them: the command's own come after these


def visits_hosts(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of its `common` (Common or InCluster) around its own, given to it as one value. The command's options that it
    declares before `common` follow the inventory, the others --exclude."""
    own = list(inspect.signature(command).parameters)
    kind_of_common = get_type_hints(command)["common"]
    names = [field.name for field in dataclasses.fields(kind_of_common) if field.name != "origin"]
    at = own.index("common")
    order = ["invocation", names[0], *own[:at], *names[1:BEFORE], *own[at + 1 :], *names[BEFORE:]]
    hints = {
        **get_type_hints(command, include_extras=True),
        **get_type_hints(kind_of_common, include_extras=True),
        "invocation": typer.Context,
    }
    defaults = {field.name: field.default for field in dataclasses.fields(kind_of_common)}
    defaults |= {name: one.default for name, one in inspect.signature(command).parameters.items()}

    @wraps(command)
    def run(invocation: typer.Context, **given: Any) -> None:
        common = kind_of_common(**{name: given.pop(name) for name in names}, origin=origin(invocation))
        command(common=common, **given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__annotations__ = {name: hints[name] for name in order}
    defaults["invocation"] = inspect.Parameter.empty  # typer gives it
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in order]
    )
    return run
