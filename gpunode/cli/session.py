"""What every command that visits hosts begins with: inventory, selection, connections, report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.cli import options
from gpunode.errors import Declined, GpunodeError, UsageError

if TYPE_CHECKING:
    from gpunode.converge import Visit
    from gpunode.model import Event, Host, Inventory, Outcome
    from gpunode.password import Password
    from gpunode.report import Report

EXAMPLE = """\
cat > inventory.yaml <<'END'
groups:
  gpu:
    hosts: [gpu-01, gpu-02]     # names that ssh reaches
    ssh: {user: ops}            # may become root by sudo
# The cluster's part needs the device plugin's image; docs/deviceplugin.md says how to build and save it:
# cluster: {plugin: {archive: plugin.tar}}
END"""


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command over the hosts that were selected."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    visits: dict[str, Visit]
    report: Report
    forks: int

    def each(
        self,
        story: Callable[[Visit, Callable[[Event], None]], Outcome],
        hosts: Sequence[Host] | None = None,
        *,
        batch: int | None = None,
        max_fail: int | None = None,
    ) -> list[Outcome]:
        """Tell `story` of every host at once; outcomes in the inventory's order."""
        from gpunode import fleet
        from gpunode.model import Outcome

        hosts = self.hosts if hosts is None else hosts
        done: dict[str, Outcome] = {}
        with self.report.live(hosts):
            for item in fleet.run(
                hosts,
                lambda host, tell: story(self.visits[host.name], tell),
                forks=self.forks,
                batch=batch,
                max_fail=max_fail,
            ):
                if isinstance(item, Outcome):
                    done[item.host] = item
                    self.report.finished(item)
                else:
                    self.report.event(item)
        return [done[host.name] for host in hosts]


def loaded(path: Path) -> Inventory:
    """The inventory. The usual one that is not there is explained by an example."""
    from gpunode import inventory as inventories

    if path == options.INVENTORY and not path.exists():
        words = [word for word in sys.argv[1:] if word != str(path)]
        raise UsageError(
            f"there is no {path} in this folder",
            hint=f"Name yours: `{shlex.join(['gpunode', *words])} FILE`. Or write one here:\n\n{EXAMPLE}",
        )
    return inventories.load(path)


@contextmanager
def session(
    path: Path,
    *,
    limit: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    json: bool = False,
    quiet: bool = False,
    forks: int,
    ask_sudo: bool = False,
) -> Iterator[Session]:
    """Load the inventory, select hosts, and close every connection at the end."""
    import logging

    from gpunode import inventory as inventories
    from gpunode import reach, report
    from gpunode.converge import Visit

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its tracebacks go to stderr

    inventory = loaded(path)
    hosts = inventories.select(inventory, limit or (), exclude or ())
    password = _password() if ask_sudo else None
    dialer = None
    if any(host.connection == "ssh" for host in hosts):
        from gpunode.ssh import Dialer

        dialer = Dialer(proven=password is not None)

    def dial(host: Host) -> reach.Connection:
        if host.connection == "local" or dialer is None:
            return reach.Local()
        return dialer.connect(host)

    visits = {host.name: Visit(host, dial, inventory.cluster.plugin, password) for host in hosts}
    told = report.make(json=json, quiet=quiet)
    if path != options.INVENTORY:
        told = report.Named(told, path)
    try:
        yield Session(inventory, hosts, visits, told, forks)
    except GpunodeError as error:  # the report is not told of it
        if path != options.INVENTORY:
            error.message, error.hint = report.named(error.message, path), report.named(error.hint, path)
        raise
    finally:
        for visit in visits.values():
            visit.close()
        if dialer is not None:
            dialer.close()


def _password() -> Password:
    import getpass

    from gpunode.password import Password

    try:
        text = getpass.getpass("sudo password on the hosts: ")
    except EOFError:
        text = ""
    if not text:
        raise UsageError(
            "no password was typed: nothing was contacted", hint="Leave out -K where sudo asks for none."
        )
    return Password(text)


def accepted(report: Report, question: str, *, yes: bool) -> None:
    """Raise Declined unless somebody says yes to what was shown, or has said so beforehand."""
    if not yes and not report.ask(question):
        raise Declined(
            "cancelled; nothing of what was shown was changed",
            hint="Accept with `y`, or give --yes where nobody can answer.",
        )


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The worst of the outcomes as the documented exit code; changes that wait are not judged here."""
    statuses = {outcome.status for outcome in outcomes}
    if "failed" in statuses:
        return 1
    if statuses & {"refused", "declined"}:
        return 4
    return 3 if "unreachable" in statuses else 0
