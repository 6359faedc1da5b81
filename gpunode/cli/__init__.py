"""The command line: options in, exit code out. The only place that imports typer.

Heavy libraries are imported by the commands that use them, so that `--help` and completion stay fast.
"""

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer
from typer.main import get_command_name

from gpunode import __version__
from gpunode.cli import (
    demo,
    history,
    hosts,
    inspection,
    manual,
    output,
    plain_values,
    plugin,
    preparation,
    run,
    share,
    suggestions,
    why,
)
from gpunode.errors import GpunodeError, InventoryError, UsageError
from gpunode.wording import BUG

EPILOG = (
    "Exit codes: 0 success · 1 a host or link is broken · 2 usage or inventory · 3 only unreachable hosts · "
    "4 refused or declined, rights missing, or nothing to undo (undo) · 5 changes pending (plan --exit-code, verify) · 6 changes pending, some hosts unchecked · "
    "7 the error (explain) or the cause (why) is unknown · 8 paused, hosts left · 130 interrupted · 141 output closed early"
)

PATH = "Check this path where you named it: in an option, a variable or the inventory."
CHANGING = ("provision", "resume", "undo", "forget", "cordon-gpu", "uncordon-gpu", "share")  # hosts
AGAIN = 0.01  # seconds: by then the finalizer has ended
INTERRUPTED = 130  # what typer, too, makes of an interrupt: it lets no KeyboardInterrupt through

plain_values.install()
app = typer.Typer(
    name="gpunode",
    cls=suggestions.Root,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich costs a third of the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="Write a first inventory.")(preparation.init)
app.command(short_help="Fetch and check the keys that sign NVIDIA's packages.")(preparation.keys)
app.command(short_help="Show what provision would change, and why.")(hosts.plan)
app.command(short_help="Make every host a verified GPU node.")(hosts.provision)
app.command(short_help="Check each host's chain from PCI to a CUDA pod.")(inspection.verify)
app.command(short_help="Measure every free GPU and judge its figures.")(inspection.accept)
app.command(short_help="Show the cluster's GPUs: memory, use, health, pods.")(inspection.status)
app.command(short_help="Show the fleet, its run and its hosts on one screen.")(inspection.top)
app.command(short_help="End a run after its batch; resume continues it.")(history.pause)
app.command(short_help="Continue with the unfinished hosts of the last provision.")(hosts.resume)
app.command(short_help="Show what an upgrade of Kubernetes would break on the hosts.")(inspection.lint)
app.command(short_help="End a hanging apply on hosts.")(hosts.abort)
app.command(short_help="Remove gpunode from hosts.")(hosts.forget)
app.command(short_help="Label nodes with the model of their GPUs.")(hosts.label)
app.command(short_help="Take one GPU out of scheduling.")(hosts.cordon_gpu)
app.command(short_help="Return a GPU that cordon-gpu took out.")(hosts.uncordon_gpu)
app.command(short_help="Collect everything for a bug report, without secrets.")(inspection.support_bundle)
app.command(short_help="List this operator's recorded runs.")(history.history)
app.command(short_help="Show a recorded run: plan, answers, results, times.")(history.show)
app.command(short_help="Undo a recorded run's changes.")(history.undo)
app.command(short_help="Explain an error: whose fault it is, what to do next.")(why.explain)
app.add_typer(why.app, name="why", short_help="Explain a symptom: a pod, a node, a GPU.")
app.add_typer(plugin.app, name="plugin", short_help="The device plugin: image, deploy, status, remove.")
app.add_typer(share.app, name="share", short_help="Share GPUs by memory: the scheduler picks the GPU.")
app.add_typer(run.app, name="run")
app.command("help", short_help="Show a page of the documents.")(manual.show)
app.add_typer(demo.app, name="demo", short_help="Try everything on simulated hosts and a simulated cluster.")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gpunode {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Turns hosts reachable over SSH into verified NVIDIA GPU nodes of a Kubernetes cluster.

    Write an inventory with `gpunode init`, read its `gpunode plan`, and run `gpunode provision`. `gpunode demo` shows it all
    without a host or a cluster.
    """


def main() -> None:
    """Run the command line. Anything but an expected failure is a bug: its last line says where to report it."""
    try:
        _run()
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
        typer.echo(f"gpunode: this is a bug in gpunode.\n  {BUG}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        _report_interrupt()


def _run() -> None:
    """Expected failures become a message and an exit code."""
    output.prepare()
    atexit.register(_ignore_signals)
    signal.signal(signal.SIGALRM, _end)
    sys.unraisablehook = _repeat_lost_interrupt
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _end)
    _load_only(sys.argv[1:2])
    try:
        app()
    except InventoryError as error:  # lines as a compiler's: an editor jumps to file:line:column
        typer.echo(output.plain(error), err=True)
        sys.exit(error.exit_code)
    except GpunodeError as error:
        typer.echo(f"gpunode: {output.plain(error)}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if _is_folder_gone(error):
            typer.echo(
                "gpunode: this folder no longer exists\n  Change to another folder, then run it again.",
                err=True,
            )
            raise SystemExit(UsageError.exit_code) from error
        if error.filename and error.strerror:  # a path that a user named; stdout has none
            text = output.plain(GpunodeError(f"{error.filename}: {error.strerror}", hint=PATH))
            typer.echo(f"gpunode: {text}", err=True)
            raise SystemExit(UsageError.exit_code) from error
        why = output.unwritable()
        if why is None:
            raise
        typer.echo(f"gpunode: cannot write the report: {why}", err=True)
        raise SystemExit(1) from error


def _report_interrupt() -> NoReturn:
    _ignore_signals()
    line = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C, perhaps behind a question
    goes_on = " A change in progress continues on its host: the next run follows it, `gpunode abort` ends it"
    command = "".join(sys.argv[1:2])
    pods = "; test pods are removed" if command in (*CHANGING, "verify", "accept", "run") else ""
    more = goes_on if command in CHANGING else ""
    typer.echo(f"{line}gpunode: interrupted{pods}.{more}", err=True)
    sys.stdout.flush()
    os._exit(INTERRUPTED)  # an orderly exit would wait for the threads: they follow their hosts to the end


def _is_folder_gone(error: OSError) -> bool:
    """True if this is since the current folder was removed, as that of a demo that has ended."""
    if not isinstance(error, FileNotFoundError) or Path(str(error.filename or "")).is_absolute():
        return False
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _load_only(named: Sequence[str]) -> None:
    """Leave `app` the command or group that is named first, if it is one: typer makes all that it has, a twentieth of a plan. `help`
    shows any of them."""
    commands = [
        each
        for each in app.registered_commands
        if each.callback and (each.name or get_command_name(each.callback.__name__)) in named
    ]
    groups = [each for each in app.registered_groups if each.name in named]
    if (commands or groups) and "help" not in named:
        app.registered_commands, app.registered_groups = commands, groups


def _ignore_signals() -> None:
    """All is done and reported. While Python ends it has no handlers, and a signal would replace the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _repeat_lost_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt again, soon: Python drops what a handler raises within a finalizer or a weak reference's callback, and goes on."""
    if lost.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    else:
        sys.__unraisablehook__(lost)


def _end(*_: object) -> NoReturn:
    """End as after Ctrl-C, with pods and connections cleaned up; a second signal does not stop that."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
