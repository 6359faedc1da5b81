"""`gpunode demo`: the whole job on simulated hosts and a simulated cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gpunode.errors import UsageError

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def demo(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="No pauses for reading.")] = False,
    break_: Annotated[
        str | None,
        typer.Option(
            "--break",
            help="At the end break one host, let verify find it and provision fix it: xid, module, library, nouveau, "
            "toolkit, runtime, stopped, daemon.json, config.toml, gate, image.",
            metavar="LINK",
        ),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option("--hosts", help="Number of hosts to simulate.", min=1, max=1000)
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(
            "--inventory", help="Rehearse this inventory: hosts are invented to match it.", metavar="FILE"
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running, and print commands to try.")
    ] = False,
) -> None:
    """See the whole job in a minute: bare hosts become verified GPU nodes. Hosts and cluster are simulated; nothing but
    Python is needed.

    Example: gpunode demo --break library
    """
    if context.invoked_subcommand is None:
        raise typer.Exit(_show(fast=fast, fault=break_, hosts=hosts, inventory=inventory, keep=keep))


@app.command("stop")
def stop() -> None:
    """End every demo that was kept running, and remove its folder.

    Example: gpunode demo stop
    """
    from gpunode.sim import demo as demos

    folders = demos.stop()
    typer.echo("\n".join(f"ended {folder}" for folder in folders) or "no demo was kept running")


def _show(*, fast: bool, fault: str | None, hosts: int | None, inventory: Path | None, keep: bool) -> int:
    from gpunode.sim import faults
    from gpunode.sim.demo import Demo
    from gpunode.sim.host import kinds
    from gpunode.sim.show import Show, ending, farewell

    if fault is not None and fault not in faults.FAULTS:
        raise UsageError(f"--break {fault}: choose one of {', '.join(faults.FAULTS)}")
    if hosts is not None and inventory is not None:
        raise UsageError(
            "--hosts and --inventory exclude each other: an inventory says which hosts there are"
        )
    machines = kinds.fleet(hosts) if hosts else kinds.usual()
    described: tuple[Any, ...] = ()
    whole = True
    if inventory is not None:
        from gpunode.sim.rehearsal import rehearsal

        read = rehearsal(inventory)
        for words in read.left_out:
            typer.echo(f"{inventory}: {words}")
        machines, described = read.machines, (read.groups, read.cluster, read.files)
        whole = read.cluster["plugin"] is not None
    possible = [
        name for name in faults.possible(machines) if whole or name != "image"
    ]  # which is the plugin's
    if fault is not None and fault not in possible:
        raise UsageError(
            f"--break {fault}: it can happen to none of these hosts; "
            f"choose one of {', '.join(possible) or 'others: nothing here can be broken'}"
        )
    try:
        with Demo(machines, *described) as demo:
            code = Show(demo, fast=fast).play(fault)
            if keep:
                demo.keep()
                typer.echo(farewell(demo))
        if not keep:
            typer.echo(ending(code, whole=whole))
    except KeyboardInterrupt:
        typer.echo("gpunode: interrupted; the simulated hosts are gone, nothing is left", err=True)
        os._exit(130)  # what `main` prints on an interrupt holds for real hosts only
    return code
