"""`gpunode demo` from its options to its end: which hosts, which fault, the show, and whether it runs on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from gpunode.errors import UsageError
from gpunode.sim import faults, kept
from gpunode.sim.demo import Demo, room
from gpunode.sim.host import kinds
from gpunode.sim.rehearsal import rehearsal
from gpunode.sim.show import REPORT, Show, ending, farewell


def play(
    *, fast: bool, verbose: bool, fault: str | None, hosts: int | None, inventory: Path | None, keep: bool
) -> int:
    """The exit code. Raises UsageError before anything starts, for options that exclude each other and for a fault that none
    of the hosts can have."""
    if fault is not None:
        known(fault, "--break ")
    if hosts is not None and inventory is not None:
        raise UsageError(
            "--hosts and --inventory exclude each other: an inventory says which hosts there are"
        )
    machines = kinds.fleet(hosts) if hosts else kinds.usual()
    described: tuple[Any, ...] = ()
    whole = True
    if inventory is not None:
        read = rehearsal(inventory)
        for words in read.left_out:
            print(f"{inventory}: {words}")
        machines, described = read.machines, (read.groups, read.cluster, read.files)
        whole = read.cluster["plugin"] is not None
    possible = [name for name in faults.possible(machines) if whole or name != "image"]  # the plugin's image
    if fault is not None and fault not in possible:
        raise UsageError(
            f"--break {fault}: it can happen to none of these hosts; "
            f"choose one of {', '.join(possible) or 'others: nothing here can be broken'}"
        )
    with Demo(machines, *described) as demo:
        code = Show(demo, fast=fast, verbose=verbose).play(fault)
        report = None if keep else _kept_report(demo)
        if keep:
            name = kept.free_name()
            demo.keep(name)
            print(farewell(demo, name))
    if not keep:
        print(ending(code, report, whole=whole))
    return code


def _kept_report(demo: Demo) -> Path | None:
    """The run's page, moved out of the folder that goes; None if there is none."""
    page = demo.folder / REPORT
    if not page.exists():
        return None
    descriptor, name = tempfile.mkstemp(prefix="gpunode-report-", suffix=".html", dir=room())
    with os.fdopen(descriptor, "wb") as copy:
        copy.write(page.read_bytes())
    return Path(name)


def known(fault: str, option: str) -> None:
    """Raises UsageError where there is no such fault. `option`: what stands before it on the command line."""
    if fault not in faults.FAULTS:
        what = f"{option}{fault}: there is no such break" if fault else "what to break is not named"
        where = " Its host is named by --host, where you choose it." if option == "break " else ""
        raise UsageError(what, hint=f"Choose one of {', '.join(faults.FAULTS)}.{where}")
