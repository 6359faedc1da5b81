"""One run of a command over the selected hosts: their visits, and the reporter."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from gpunode.engine import fleet
from gpunode.engine.fleet import Planner, Visit
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import Reporter
from gpunode.host import openssh, reach
from gpunode.local.password import Password
from gpunode.model import Host, Inventory, OnEvent, Outcome


@dataclass(frozen=True, slots=True)
class Session:
    """The hosts of one run, in the inventory's order."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    visits: Mapping[str, Visit]
    reporter: Reporter
    forks: int

    @property
    def planners(self) -> dict[str, Planner]:
        """Host → its planner, where the command has one of its own and has probed the host."""
        return {name: visit.planner for name, visit in self.visits.items() if visit.planner}

    def each(
        self,
        task: Callable[[Visit, OnEvent], Outcome],
        hosts: Sequence[Host] | None = None,
        *,
        plans: bool = True,
    ) -> list[Outcome]:
        """Run `task` on every host, `forks` at a time; outcomes in the order of `hosts`. Not `plans`: the command plans nothing,
        so a host that is not in its desired state is reported as one that differs."""
        hosts = self.hosts if hosts is None else hosts
        return [outcome for part in self.in_parts(task, hosts, plans=plans) for outcome in part]

    def in_parts(
        self,
        task: Callable[[Visit, OnEvent], Outcome],
        hosts: Sequence[Host],
        ends_part: Callable[[Collection[str]], bool] = lambda _: False,
        *,
        plans: bool = True,
    ) -> Iterator[list[Outcome]]:
        """As `each`, in parts: those that are done whenever `ends_part` is true of them. The tasks of the others go on meanwhile."""

        def visit_host(host: Host, emit: OnEvent) -> Outcome:
            visit = self.visits[host.name]
            try:
                return task(visit, emit)
            finally:
                # A thousand open connections are more than a process may have
                if len(self.hosts) > self.forks:
                    visit.close()

        items = fleet.run(hosts, visit_host, forks=self.forks)
        while hosts:
            done: dict[str, Outcome] = {}
            with self.reporter.live(hosts):
                for item in items:
                    if isinstance(item, Outcome):
                        done[item.host] = item
                        differs = item.status == "planned" and not plans
                        self.reporter.outcome(replace(item, status="differs") if differs else item)
                    else:
                        self.reporter.event(item)
                    if done and ends_part(done):
                        break
            part = [host for host in hosts if host.name in done]
            hosts = [host for host in hosts if host.name not in done]
            yield [done[host.name] for host in part]

    def for_each_host(
        self,
        task: Callable[[Visit, OnEvent], Outcome],
        members: Sequence[Member] | None = None,
        *,
        plans: bool = True,
    ) -> Members:
        """The members (None: one for every host) with the outcomes of `task`, reported as `each` does."""
        members = [Member(host) for host in self.hosts] if members is None else members
        outcomes = self.each(task, [member.host for member in members], plans=plans)
        return tuple(
            replace(member, outcome=outcome) for member, outcome in zip(members, outcomes, strict=True)
        )


class Dialer(Protocol):
    def connect(self, host: Host) -> reach.Connection: ...

    def close(self) -> None: ...


@contextmanager
def open_session(
    inventory: Inventory,
    hosts: tuple[Host, ...],
    reporter: Reporter,
    *,
    forks: int,
    password: Password | None = None,
) -> Iterator[Session]:
    """A session; each host is dialled when it is first asked, and every connection is closed at the end."""
    kinds = {host.connection for host in hosts}
    dialers: dict[str, Dialer] = {}
    if "ssh" in kinds:
        from gpunode.host import ssh  # imports paramiko

        dialers["ssh"] = ssh.Dialer(proven=password is not None)
    if "openssh" in kinds:
        dialers["openssh"] = openssh.Dialer(proven=password is not None)

    def dial(host: Host) -> reach.Connection:
        dialer = dialers.get(host.connection)
        return reach.Local() if dialer is None else dialer.connect(host)

    visits = {host.name: Visit(host, dial, inventory.cluster.plugin, password) for host in hosts}
    try:
        yield Session(inventory, hosts, visits, reporter, forks)
    finally:
        for visit in visits.values():
            visit.close()
        for dialer in dialers.values():
            dialer.close()
