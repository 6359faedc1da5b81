"""What every command that visits hosts begins with: its options as an inventory, hosts, a report and a session."""

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.cli import options
from gpunode.errors import ClusterError, GpunodeError, InventoryError, UsageError
from gpunode.local import files as localfile
from gpunode.wording import Command

if TYPE_CHECKING:
    from gpunode.engine.reporter import Reporter
    from gpunode.engine.session import Session
    from gpunode.local.password import Password
    from gpunode.model import Host, Inventory
    from gpunode.report.page import Page

EXAMPLE = """\
cat > inventory.yaml <<'END'
groups:
  gpu:
    hosts: [gpu-01, gpu-02]     # names that ssh reaches
    ssh: {user: ops}            # may become root by sudo
# The cluster's part needs the device plugin's image, which `gpunode plugin image` writes:
# cluster: {plugin: {archive: plugin.tar}}
END"""


def load_inventory(path: Path, origin: str = "", *, by_option: bool = False) -> "Inventory":
    """The inventory. The usual one that is not there is explained by an example. `origin`: where its name comes from. `by_option`: the
    command's arguments are something else."""
    from gpunode import inventory as inventories

    if path == options.INVENTORY and not localfile.exists(path):
        command = [word for word in sys.argv[1:] if word != str(path) or origin == options.DEFAULT]
        file = "-i FILE" if by_option else "FILE"
        raise UsageError(
            f"there is no {path} in this folder",
            hint=f"Name yours: `{shlex.join(['gpunode', *command])} {file}`, or in ${options.VARIABLE}. "
            f"Or let `gpunode init` write one, or write it yourself:\n\n{EXAMPLE}",
        )
    try:
        return inventories.load(path)
    except InventoryError as error:
        from gpunode.engine import plan_file

        if plan_file.read(path) is not None:
            raise UsageError(
                f"{path} is a reviewed plan, not an inventory", hint=f"`gpunode provision {path}` applies it."
            ) from None
        if os.environ.get(options.VARIABLE) == str(path) and not localfile.exists(path):
            raise InventoryError(
                [f"{problem} (named by ${options.VARIABLE})" for problem in error.problems]
            ) from None
        raise


def load_inventory_of_runs(command: str, path: Path, origin: str) -> None:
    """Raises an error where there is no inventory whose runs the command means."""
    if path == options.INVENTORY and not localfile.exists(path):
        raise UsageError(
            f"there is no {path} in this folder, and a run is found by its inventory",
            hint=f"Name it: `gpunode {command} FILE`. `gpunode history` lists the runs; their records are in {localfile.runs_folder(path)}.",
        )
    load_inventory(path, origin)  # explains it


def in_cluster(common: options.InCluster) -> "Inventory":
    """The inventory, with the cluster that the options name; without a file, what the cluster itself says. A kubeconfig that is
    named and cannot be used is told before any mistake of the inventory."""
    from gpunode.cluster.api.kubeconfig import choose_context
    from gpunode.engine import nodes
    from gpunode.model import Cluster

    if common.kubeconfig:
        choose_context(Cluster(kubeconfig=str(common.kubeconfig), context=common.context))
    path = common.inventory
    alone = common.alone
    known = Cluster() if alone else load_inventory(path, common.origin).cluster
    if common.kubeconfig:  # its contexts are others than those of the inventory's
        known = replace(known, kubeconfig=str(common.kubeconfig), context=None)
    known = replace(
        known, context=common.context or known.context, namespace=common.namespace or known.namespace
    )
    return (
        nodes.inventory_of_cluster(known)
        if alone
        else replace(load_inventory(path, common.origin), cluster=known)
    )


def tell_origin(path: Path, origin: str, reporter: "Reporter") -> None:
    """Note which inventory is used, where the environment names another than the one in this folder."""
    here = options.INVENTORY
    if origin == options.ENVIRONMENT and localfile.exists(here) and not here.samefile(path):
        reporter.note(f"The inventory is {path}, named by ${options.VARIABLE}; ./{here} is not used.")


@contextmanager
def session(
    common: options.Common,
    html: Path | None = None,
    junit: Path | None = None,
    *,
    accepted: bool = False,
    choose: "Callable[[Inventory], tuple[Host, ...]] | None" = None,
) -> "Iterator[Session]":
    """A session over the selected hosts. Commands in its reports and errors name the inventory. `html`, `junit`: files that get
    the report, too, however the session ends. `accepted`: by --yes. `choose`: the hosts, in the place of --limit."""
    import logging

    from gpunode import inventory as inventories
    from gpunode import report
    from gpunode.engine import history
    from gpunode.engine.session import open_session

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its tracebacks go to stderr
    path = common.inventory
    inventory = (
        in_cluster(common)
        if isinstance(common, options.InCluster)
        else load_inventory(path, common.origin, by_option=isinstance(common, options.Named))
    )
    if choose is not None:
        hosts = choose(inventory)
    else:
        limit = history.expand_limit(common.limit or (), path, {host.name for host in inventory.hosts})
        hosts = inventories.select(inventory, limit, common.exclude or ())
    password = _password() if common.ask_sudo and hosts else None
    reporter = report.make(json=common.json, quiet=common.quiet, accepted=accepted)
    pages: list[Page] = []
    if html is not None or junit is not None:
        from gpunode.report import page as html_page
        from gpunode.report.junit import JUnit

        title = f"gpunode {sys.argv[1] if sys.argv[1:] else ''} · {inventory.path}"
        for kind, file in ((html_page.Page, html), (JUnit, junit)):
            if file is not None:
                pages.append(html_page.open_page(kind, reporter, file, title))
                named = "" if path == options.usual() else shlex.quote(str(path))
                pages[-1].resume = Command("resume").on(named)
                reporter = pages[-1]
    tell_origin(path, common.origin, reporter)
    if path != options.usual():
        reporter = report.Named(reporter, path)
    gc.freeze()  # all of it is needed to the end; what the visits leave is looked for as usual
    gc.set_threshold(700)
    try:
        with open_session(inventory, hosts, reporter, forks=common.forks, password=password) as work:
            yield work
    except GpunodeError as error:  # it goes past the report
        _name_rights(inventory, error, whole=common.json)
        if path != options.usual():
            error.problem = report.with_inventory(error.problem, path)
        for page in pages:
            page.add_failure(error.problem)
        raise
    finally:
        for page in pages:
            try:
                page.write()
            except OSError as error:
                raise GpunodeError(
                    f"{page.option} {page.path}: cannot be written: {error.strerror}"
                ) from error


def _name_rights(inventory: "Inventory", error: GpunodeError, *, whole: bool) -> None:
    """Let an error of a missing right name all that are missing; `whole`: with what is folded for people."""
    from gpunode.engine import nodes

    if isinstance(error, ClusterError):
        named = nodes.name_rights(inventory, error)
        error.problem, error.exit_code = named.problem, named.exit_code
    if whole:
        error.problem = replace(error.problem, fix=str(error.problem.fix))


def _password() -> "Password":
    import getpass
    import warnings

    from gpunode.local.password import Password

    try:
        with warnings.catch_warnings():  # of a terminal that is none: getpass says so itself
            warnings.simplefilter("ignore", getpass.GetPassWarning)
            text = getpass.getpass("sudo password on the hosts: ")
    except EOFError:
        text = ""
    if not text:
        raise UsageError(
            "no password was typed: nothing was contacted", hint="Leave out -K where sudo asks for none."
        )
    return Password(text)
