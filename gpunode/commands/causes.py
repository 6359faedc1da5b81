"""A fleet by cause: what is broken, each once, with its hosts and one fix for all of them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.engine.reporter import Reporter
from gpunode.inventory.starter import ranges
from gpunode.model import Verdict
from gpunode.wording import Advice, Command, common


class HostNames(tuple[str, ...]):
    """For people with ranges: `gpu-[01:12], gpu-20`."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(ranges(self))


def report_causes(chains: Mapping[str, Sequence[Verdict]], reporter: Reporter) -> None:
    """A row for each cause, or right that is missing, that of most hosts first; none of one host alone: its chain has it."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Verdict] = {}
    for host, chain in chains.items():
        for link in chain:
            if link.status == "broken" or link.lacks_right:
                key = (link.layer, common(_headline(link), host), common(link.fix, host))
                groups.setdefault(key, []).append(host)
                first.setdefault(key, link)
    if len({host for hosts in groups.values() for host in hosts}) > 1:
        rows = [
            (
                _headline(first[key]) if len(hosts) == 1 else key[1],
                key[0],
                len(hosts),
                HostNames(hosts),
                fix_for_all(first[key].fix, hosts),
            )
            for key, hosts in groups.items()
        ]
        ordered = sorted(rows, key=lambda row: -row[2])
        reporter.rows("cause", ("cause", "layer", "hosts", "names", "fix"), ordered)


def _headline(link: Verdict) -> str:
    """The link's text, and the first line of its cause."""
    return ": ".join(filter(None, (link.text, link.cause.partition("\n")[0])))


def fix_for_all(fix: str, hosts: Sequence[str]) -> str:
    """The fix of the first of these hosts, for all of them."""
    name, *others = hosts
    if not others:
        return fix
    limit = f"--limit {shlex.quote(','.join(ranges(hosts)))}"
    parts = fix.parts if isinstance(fix, Advice) else (fix,)
    return Advice(*_for_all(parts, name, limit))


def _for_all(parts: Sequence[str | Command], host: str, limit: str) -> Iterator[str | Command]:
    for part in parts:
        if isinstance(part, Command):
            options = part.options.replace(f"--limit {host}", limit)
            yield replace(part, options=options, does=common(part.does, host))
        else:
            yield common(part, host)
