"""Commands that inspect hosts and change none: `verify`, `accept`, `support-bundle`, `status`, `top` and `lint`."""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import session

if TYPE_CHECKING:
    from gpunode.engine.overview import Overview


@visits_hosts
def verify(
    *,
    common: options.Common,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the free GPUs.")] = True,
    html: options.Html = None,
    junit: options.JUnit = None,
) -> int:
    """Check every host's chain, link by link: PCI, module, library, NVML, toolkit, runtime, kubelet, node, plugin, capacity,
    pod. Names the first broken link, its cause and its fix. Then checks the work on the GPUs.

    Changes no host. Runs a pod on every free GPU (one more where pods share GPUs) and removes it again; --no-run skips this.
    Exit code 4 if nothing is broken, but you have no right to read a host or the cluster, or to run these pods. Where no pod
    can run, it runs a container from an image on the host instead. With more than three hosts, a host without a broken link has one line.

    Example: gpunode verify inventory.yaml --limit gpu-03
    """
    from gpunode.commands import verify as verification

    with session(common, html, junit) as work:
        return verification.verify(work, run=run)


@visits_hosts
def accept(
    *,
    common: options.InCluster,
    level: Annotated[
        options.Level,
        typer.Option(
            "--level",
            help="quick: half a minute; standard: up to three minutes.",
            metavar=options.LEVELS,
            case_sensitive=False,
        ),
    ] = "standard",
    on_host: Annotated[
        bool,
        typer.Option(
            "--on-host",
            help="Measure over SSH on the hosts, without Kubernetes; the default without a plugin in the inventory.",
        ),
    ] = False,
    html: options.Html = None,
    junit: options.JUnit = None,
    yes: Annotated[  # noqa: ARG001 - for scripts that give it to every command
        bool, typer.Option("--yes", "-y", help="No effect: accept asks nothing, and disturbs no pod.")
    ] = False,
) -> int:
    """Measure every free GPU and judge its figures: memory, computation, PCIe, NVLink, clocks, ECC.

    Runs one pod with all free GPUs on each node, and removes it again. Names and skips GPUs in use. Compares the figures with
    the model's and with the fleet's median. The result is valid for 30 days (`accept` in the inventory); verify reads it. A
    kubeconfig is enough; then --limit and --exclude take nodes. Exit code 0 only if each host has a measured GPU and none
    failed.

    Example: gpunode accept inventory.yaml --limit gpu-01 --level quick
    """
    from gpunode.commands import accept as acceptance
    from gpunode.errors import UsageError

    if on_host and common.alone:
        raise UsageError("--on-host needs an inventory", hint="Name yours: its hosts are reached over SSH.")
    with session(common, html, junit) as work:
        return acceptance.accept(work, level, on_host=on_host)


@visits_hosts
def support_bundle(
    *,
    common: options.Common,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The archive.", metavar="FILE", show_default="gpunode-support-TIME.tar.gz"
        ),
    ] = None,
) -> int:
    """Collect everything for a bug report in one archive, without secrets: verify's and plan's lines, facts of the hosts,
    nodes, the plugin's logs and states, events, the inventory, records of runs, versions.

    Changes nothing and runs no pod. Replaces secrets by their size; names and addresses stay. Lists its files.

    Example: gpunode support-bundle inventory.yaml --limit gpu-03
    """
    from gpunode.commands.support_bundle import write_bundle
    from gpunode.report.lines import Lines

    path = output or Path(time.strftime("gpunode-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    with session(common) as work:
        return write_bundle(work, path, lambda out: Lines(quiet=True, out=out))


CLEAR = "\033[H\033[J"  # the screen, from its upper left corner on


@visits_hosts
def status(
    *,
    common: options.InCluster,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            "-w",
            help="Repeat every N seconds (2), until Ctrl-C.",
            metavar="[SECONDS]",
            min=0.5,
            max=86400,
        ),
    ] = None,
) -> int:
    """Show every GPU of the cluster: memory, utilisation, temperature, health, and the pods on it.

    Reads the device plugin's status through the API server: a kubeconfig is enough. Names nodes without the plugin. With an
    inventory, it also names processes outside Kubernetes that use GPUs, over SSH. Exit code 1 if a GPU is unhealthy or unknown,
    4 if you have no right to ask the plugins.

    Example: gpunode status --watch
    """
    from gpunode.commands.status import show_status
    from gpunode.model import Event

    hosts = not common.alone
    with session(common) as work:
        if sys.stderr.isatty() and not common.json:
            work.reporter.event(Event("stage", None, "asking the cluster and its device plugins"))
        if watch is None:
            return show_status(work, selected=common.selects, hosts=hosts)
        clear = CLEAR if not common.json and sys.stdout.isatty() else ""
        try:
            show_status(work, selected=common.selects, hosts=hosts)
            while True:
                time.sleep(watch)
                show_status(
                    work, selected=common.selects, hosts=hosts, fresh=lambda: typer.echo(clear, nl=False)
                )
        except KeyboardInterrupt:  # the way out of it, so nothing was interrupted
            typer.echo("", nl=bool(clear))  # behind the terminal's ^C
            return 0


@visits_hosts
def top(
    *,
    common: options.InCluster,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            help="Seconds between updates; slow clusters are asked less often.",
            metavar="SECONDS",
            min=0.5,
            max=86400,
        ),
    ] = 2,
) -> int:
    """Show the fleet on one screen until q: its GPUs, the run under way with the time it needs, and every host, failures first.

    It follows a run that another terminal of this machine started. Keys: arrows choose a host; Enter shows its chain, p its
    pods, d its plan; l shows the run's record; b or Space pauses the run after its batch, and again lets it continue; /
    filters. Without a terminal it prints what `gpunode status` prints.

    Example: gpunode top inventory.yaml
    """
    from gpunode.commands.status import show_status

    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    terminal = terminal and not common.json
    with session(dataclasses.replace(common, ask_sudo=common.ask_sudo and not terminal)) as work:
        if not terminal:
            return show_status(work, selected=common.selects, hosts=not common.alone)
        from gpunode.commands.pause import toggle_pause
        from gpunode.commands.top import follow
        from gpunode.report import keyboard

        def act(key: str, host: str, seen: "Overview") -> list[str] | str:
            if key in "b ":
                return toggle_pause(None if common.alone else common.inventory)
            return _words(key, host, seen, common)

        keyboard.run(follow(work, selected=common.selects, recorded=not common.alone), act, interval=interval)
        os._exit(0)  # an orderly exit would wait for the cluster's answer


def _words(key: str, host: str, seen: "Overview", common: options.InCluster) -> list[str] | str:
    """The gpunode command that a key of `top` shows the output of; or why there is none."""
    if seen == type(seen)():  # before the first answer
        return "The hosts are still being read."
    if key == "l":
        return ["show", seen.run.id] if seen.run else "No run of this inventory is recorded on this machine."
    if not host:
        return "There is no host."
    file = [*([] if common.alone else [str(common.inventory)]), *(["-K"] if common.ask_sudo else [])]
    cluster = [] if common.kubeconfig is None else ["--kubeconfig", str(common.kubeconfig)]
    cluster += ["--context", common.context] if common.context else []
    cluster += ["--namespace", common.namespace] if common.namespace else []
    if key == "p":
        return ["status", *file, "--limit", host, *cluster]
    if common.alone:
        return ["why", "node", host, *cluster] if key == "enter" else "A plan needs an inventory."
    return [*(["plan"] if key == "d" else ["verify", "--no-run"]), *file, "--limit", host]


@visits_hosts
def lint(
    *,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="The version of Kubernetes to upgrade to; required.",
            metavar="1.NN",
            show_default=False,
        ),
    ] = "",
    common: options.Common,
) -> int:
    """Show what an upgrade of Kubernetes would break on the hosts: removed feature gates and flags, cgroup v1, dockershim, an
    outdated containerd, configurations no longer read. Changes nothing.

    Example: gpunode lint --target 1.36 inventory.yaml
    """
    from gpunode.cluster.api.kinds import FLOOR
    from gpunode.commands.lint import lint as lint_hosts
    from gpunode.errors import UsageError
    from gpunode.links.kubelet import minors

    minor = minors.minor(target)
    if minor is None or minor < FLOOR:
        wrong = (
            f"--target {target}: not a version of Kubernetes that gpunode knows"
            if target
            else "--target is missing"
        )
        raise UsageError(wrong, hint=f"Name the version to upgrade to, from 1.{FLOOR} on: `--target 1.36`.")
    with session(common) as work:
        return lint_hosts(work, minor)
