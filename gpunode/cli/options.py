"""Options that several commands share, each declared once; what the shell completes of them; and the commands that take them."""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import typer
from typer.models import ArgumentInfo

from gpunode.local import files as localfile

INVENTORY = Path("inventory.yaml")
VARIABLE = "GPUNODE_INVENTORY"  # names the usual inventory in the place of ./inventory.yaml
# click's names of where a value comes from
DEFAULT, ENVIRONMENT, TYPED = "DEFAULT", "ENVIRONMENT", "COMMANDLINE"
FORKS = 64  # threads wait far more than they work: 64 hosts cost one core less than a second
LEADING = 3  # of a command's shared options, as help lists them: its own come after these


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Hosts and groups that begin like the last name of a list; nothing where the inventory cannot be read."""
    from gpunode import inventory as inventories
    from gpunode.errors import GpunodeError

    # The option that is being completed has no value yet, at which the parser leaves the arguments as they are.
    named = next((word for word in context.args if not word.startswith("-")), None)
    try:
        known = inventories.load(Path(named) if named else usual(), keys=False).hosts
    except GpunodeError:
        return []
    before, comma, last = incomplete.rpartition(",")
    names = dict.fromkeys([*(name for host in known for name in host.groups), *(host.name for host in known)])
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def complete_faults(incomplete: str) -> list[str]:
    """What `gpunode demo` can break."""
    from gpunode.engine.chain import FAULTS

    return [name for name in FAULTS if name.startswith(incomplete)]


def complete_samples(incomplete: str) -> list[str]:
    """What `gpunode run manifest` prints."""
    from gpunode.links.pod.samples import SAMPLES

    return [name for name in SAMPLES if name.startswith(incomplete)]


def check_namespace(value: str | None) -> str | None:
    """As Kubernetes has names of namespaces (RFC 1123 labels)."""
    if value is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise typer.BadParameter(f"{value}: a namespace has at most 63 of a-z, 0-9 and -")
    return value


def check_fingerprints(values: list[str] | None) -> list[str]:
    """Fingerprints as gpg prints them, without the spaces."""
    fingerprints = ["".join(value.split()).upper() for value in values or ()]
    for value in fingerprints:
        if not re.fullmatch(r"[0-9A-F]{40}", value):
            raise typer.BadParameter(f"{value}: a whole fingerprint has 40 of 0-9 and A-F")
    return fingerprints


InventoryPath = Annotated[
    Path,
    typer.Argument(
        help="The inventory file.",
        show_default=True,
        metavar="INVENTORY",
        envvar=VARIABLE,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="The cluster's kubeconfig; overrides the inventory's.", metavar="FILE"),
]
Context = Annotated[
    str | None,
    typer.Option("--context", help="The kubeconfig's context; overrides the inventory's.", metavar="NAME"),
]
PLUGINS: Mapping[str, Any] = {
    "help": "The device plugin's namespace; overrides the inventory's.",
    "metavar": "NAME",
    "callback": check_namespace,
}
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", **PLUGINS)]
NamespaceOfPlugin = Annotated[str | None, typer.Option("--namespace", **PLUGINS)]
ONLY = "Only these hosts or groups; names, globs, comma separated."
NAMES: Mapping[str, Any] = {"metavar": "NAMES", "autocompletion": complete_hosts}
Limit = Annotated[list[str] | None, typer.Option("--limit", "-l", help=ONLY, **NAMES)]
LimitOfDeployment = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        "-l",
        help=f"{ONLY} Does not narrow the plugin's configuration, which is cluster-wide.",
        **NAMES,
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Leave out these hosts or groups.", **NAMES)
]
Fingerprints = Annotated[
    list[str] | None,
    typer.Option(
        "--fingerprint",
        help="Trust the key with this full fingerprint, where gpunode knows only its end.",
        metavar="DIGITS",
        callback=check_fingerprints,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines on stdout, never a question.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only results, problems and questions. With --yes, omit the plan, except with --json.",
    ),
]
Forks = Annotated[
    int, typer.Option("--forks", help="Number of hosts to work on in parallel.", min=1, metavar="N")
]
AskSudo = Annotated[
    bool, typer.Option("--ask-sudo-password", "-K", help="Ask once for the sudo password of all hosts.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Also write the report to this file, for a browser.", metavar="FILE"),
]
JUnit = Annotated[
    Path | None,
    typer.Option(
        "--junit", help="Also write the results to this file, as JUnit XML for a CI.", metavar="FILE"
    ),
]
Level: TypeAlias = Literal["quick", "standard"]  # of an acceptance
LEVELS = "quick|standard"
Batch = Annotated[
    str | None,
    typer.Option(help="Finish N hosts, or N% of them, before the next batch starts.", metavar="N|N%"),
]
Canary = Annotated[
    int, typer.Option(help="Finish N hosts with changes before all others.", min=0, metavar="N")
]
Run = Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the GPUs at the end.")]
Taint = Annotated[
    bool,
    typer.Option(
        "--taint-until-verified",
        help="Taint new nodes, and nodes with a changed driver, toolkit or runtime, with gpunode.dev/unverified until their GPUs are verified: no pod starts there earlier.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Apply without asking.")]
Gpu = Annotated[
    str,
    typer.Argument(
        help="The GPU's node and index, as `gpunode status` shows them, or its UUID or the beginning of it.",
        metavar="NODE/INDEX|UUID",
        show_default=False,
    ),
]


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
    given: frozenset[str] = frozenset()  # the names of other parameters on the command line

    @property
    def selects(self) -> bool:
        """Whether some of the hosts are named."""
        return bool(self.limit or self.exclude)


@dataclasses.dataclass(frozen=True, slots=True)
class Deploys(Common):
    """The options of every command that also changes the device plugin, which --limit does not divide."""

    limit: LimitOfDeployment = None


@dataclasses.dataclass(frozen=True, slots=True)
class Named(Common):
    """The options of a command whose hosts are its arguments."""

    inventory: Annotated[
        Path,
        typer.Option(
            "--inventory",
            "-i",
            help="The inventory file.",
            metavar="FILE",
            envvar=VARIABLE,
        ),
    ] = INVENTORY
    limit: Annotated[list[str] | None, typer.Option(hidden=True)] = None
    exclude: Annotated[list[str] | None, typer.Option(hidden=True)] = None


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


@dataclasses.dataclass(frozen=True, slots=True)
class OfNodes(InCluster):
    """The options of a command that needs no host: a named kubeconfig is enough, whatever inventory is in this folder."""

    @property
    def alone(self) -> bool:
        return self.origin == DEFAULT and (
            self.kubeconfig is not None or not localfile.exists(self.inventory)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class OfPod(InCluster):
    """The options of a command about a pod, whose namespace is -n, as kubectl's."""

    namespace: NamespaceOfPlugin = None


def origin(invocation: typer.Context, name: str = "inventory") -> str:
    """Where the command's inventory, or another parameter, comes from: DEFAULT, ENVIRONMENT or TYPED."""
    source = invocation.get_parameter_source(name)
    return source.name if source else DEFAULT


def usual() -> Path:
    """The inventory of commands that name none: $GPUNODE_INVENTORY, else ./inventory.yaml."""
    return Path(os.environ.get(VARIABLE) or INVENTORY)


def visits_hosts(command: Callable[..., int]) -> Callable[..., None]:
    """The command with the options of its `common` around its own; it gets them as one value, and returns the exit code. Its
    own arguments come before the inventory; options that it declares before `common` follow it, the others --exclude."""
    parameters = inspect.signature(command).parameters
    own = list(parameters)
    hints = get_type_hints(command, include_extras=True)
    kind_of_common = hints["common"]
    names = [
        field.name for field in dataclasses.fields(kind_of_common) if field.name not in ("origin", "given")
    ]
    hints = {**hints, **_hints(kind_of_common), "invocation": typer.Context}
    first = [name for name in own if isinstance(getattr(hints[name], "__metadata__", "?")[0], ArgumentInfo)]
    own = [name for name in own if name not in first]
    at = own.index("common")
    leading = ["invocation", *first, names[0]]
    order = [*leading, *own[:at], *names[1:LEADING], *own[at + 1 :], *names[LEADING:]]
    defaults = {field.name: field.default for field in dataclasses.fields(kind_of_common)}
    defaults |= {name: parameter.default for name, parameter in parameters.items()}

    @wraps(command)
    def run(invocation: typer.Context, **given: Any) -> None:
        typed = frozenset(name for name in given if origin(invocation, name) == TYPED)
        shared = {name: given.pop(name) for name in names}
        common = kind_of_common(**shared, origin=origin(invocation), given=typed)
        raise typer.Exit(command(common=common, **given))

    kind = inspect.Parameter.KEYWORD_ONLY  # in any order with defaults and without
    run.__annotations__ = {name: hints[name] for name in order}
    defaults["invocation"] = inspect.Parameter.empty  # typer gives it
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in order]
    )
    return run


@cache
def _hints(kind: type[Common]) -> Mapping[str, Any]:
    """The types of a kind's options: to resolve them for each command takes a fifth of what loading the commands does."""
    return get_type_hints(kind, include_extras=True)
