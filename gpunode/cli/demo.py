"""`gpunode demo`: the whole job on simulated hosts and a simulated cluster."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options

if TYPE_CHECKING:
    from gpunode.model import Fault

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
)


Hosts = Annotated[
    int | None, typer.Option("--hosts", help="Number of hosts to simulate.", min=1, max=1000, metavar="N")
]
Rehearsed = Annotated[
    Path | None,
    typer.Option(
        "--inventory", help="Rehearse this inventory: hosts are invented to match it.", metavar="FILE"
    ),
]


@app.callback()
def demo(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="No pauses for reading.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the commands' full output.")] = False,
    break_: Annotated[
        str | None,
        typer.Option(
            "--break",
            help="At the end break one host; verify finds it and provision fixes it: module, nouveau, nova, kernel, "
            "library, xid, toolkit, runtime, stopped, daemon.json, config.toml, gate, image.",
            metavar="LINK",
            autocompletion=options.complete_faults,
        ),
    ] = None,
    hosts: Hosts = None,
    inventory: Rehearsed = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Leave it running under a name, and print commands to try. `gpunode demo start` does so without the show.",
        ),
    ] = False,
) -> None:
    """See the whole job in a minute: bare hosts become verified GPU nodes. Hosts and cluster are simulated; nothing but
    Python is needed. To try commands yourself: `gpunode demo start`; the other commands below are for demos that run.

    Example: gpunode demo --break library
    """
    if context.invoked_subcommand is None:
        from gpunode.sim.command import play

        try:
            fault = None if break_ is None else _fault(break_, "--break ")
            code = play(fast=fast, verbose=verbose, fault=fault, hosts=hosts, inventory=inventory, keep=keep)
        except KeyboardInterrupt:
            typer.echo("gpunode: interrupted; the simulated hosts are gone, nothing is left", err=True)
            os._exit(130)  # what `main` prints on an interrupt holds for real hosts only
        raise typer.Exit(code)


Name = Annotated[
    str | None,
    typer.Argument(
        help="A running demo; optional if there is only one, or one of this folder.", metavar="NAME"
    ),
]


@app.command("start", short_help="Start a demo of bare hosts without the show; it runs until `stop`.")
def start(hosts: Hosts = None, inventory: Rehearsed = None) -> None:
    """Start a demo of bare hosts at once, without the show, and print commands to try. It runs until `gpunode demo stop`.

    Example: gpunode demo start --hosts 6
    """
    from gpunode.sim.command import start as start_demo

    start_demo(hosts=hosts, inventory=inventory)


@app.command("list")
def list_demos() -> None:
    """Show the running demos.

    Example: gpunode demo list
    """
    from gpunode.sim import registry
    from gpunode.wording import several

    lines = [
        f"{kept.name}  {several(len(kept.states), 'host')}  {kept.folder}  begun in {kept.begun}"
        for kept in registry.list_kept()
    ]
    typer.echo("\n".join(lines) or "no demo is running; `gpunode demo start` starts one")


@app.command("break", short_help="Break one host of a running demo; verify finds the fault.")
def break_host(
    link: Annotated[
        str,
        typer.Argument(
            help="The link to break.",
            metavar="LINK",
            autocompletion=options.complete_faults,
            show_default=False,
        ),
    ] = "",
    name: Name = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Break this host; default: the first host suitable for the fault.", metavar="HOST"
        ),
    ] = None,
) -> None:
    """Break one host of a running demo, and name the host; verify finds the fault. LINK: module, nouveau, nova, kernel, library,
    xid, toolkit, runtime, stopped, daemon.json, config.toml, gate, image.

    Example: gpunode demo break toolkit --host h100-01
    """
    from gpunode.sim import registry

    fault = _fault(link, "break ", "`--host` chooses the host.")
    kept = registry.find(name)
    broke = registry.break_host(kept, link, host)
    typer.echo(
        f"On {broke} {fault.cause}. In {kept.folder}: `gpunode verify inventory.yaml --limit {broke}`."
    )


def _fault(name: str, option: str, more: str = "") -> "Fault":
    """The chain's fault of this name. Raises UsageError where there is none; `option`: what stands before the name."""
    from difflib import get_close_matches

    from gpunode.engine.chain import FAULTS
    from gpunode.errors import UsageError

    if name in FAULTS:
        return FAULTS[name]
    what = f"{option}{name}: no fault of the demo has this name" if name else "what to break is not named"
    near = [f"Did you mean {each}? " for each in get_close_matches(name, FAULTS, 1)]
    raise UsageError(what, hint=f"{''.join(near)}Choose one of {', '.join(FAULTS)}. {more}".rstrip())


@app.command("add")
def add(
    name: Name = None,
    hosts: Annotated[int, typer.Option("--hosts", help="How many.", min=1, max=100, metavar="N")] = 1,
) -> None:
    """Add bare hosts to a running demo and its inventory.

    Example: gpunode demo add --hosts 3
    """
    from gpunode.sim import registry

    kept = registry.find(name)
    group, names = registry.add_hosts(kept, hosts)
    typer.echo(
        f"added {', '.join(names)} as group {group}. "
        f"In {kept.folder}: `gpunode provision inventory.yaml --limit {group}`."
    )


@app.command("stop", short_help="End a running demo and remove its folder.")
def stop(name: Name = None) -> None:
    """End a running demo and remove its folder. Without a name: those started in this folder, or the one in whose
    folder you are. Also removes folders of killed demos. Other users' demos stay, and those with a run under way.

    Example: gpunode demo stop
    """
    from gpunode.errors import GpunodeError
    from gpunode.sim import registry

    busy = {kept.name: why for kept in registry.choose(name) if (why := kept.busy)}
    idle = [kept.name for kept in registry.choose(name) if kept.name not in busy]
    lines = [f"ended {folder}" for each in idle for folder in registry.stop(each)]
    lines += [] if name else [f"removed {folder}: a killed demo left it" for folder in registry.sweep()]
    lines += (
        []
        if name
        else [
            f"{kept.name} runs on, begun in {kept.begun}: `gpunode demo stop {kept.name}` ends it"
            for kept in registry.list_kept()
            if kept.name not in busy
        ]
    )
    if lines or not busy:
        typer.echo("\n".join(lines) or "no demo was kept running")
    if busy:
        raise GpunodeError(
            "\n".join(f"{each} was not stopped: {why}" for each, why in busy.items()),
            hint="End the command first by Ctrl-C, or wait for its end.",
        )
