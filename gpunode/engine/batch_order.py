"""The order of hosts, and which go together. Each batch is finished, to its proof, before the next begins."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gpunode.errors import UsageError
from gpunode.model import Host


@dataclass(frozen=True, slots=True)
class Size:
    """A number of hosts, or a percentage of those that change: rounded down, but at least one."""

    number: int
    percent: bool = False

    @property
    def text(self) -> str:
        return f"{self.number}{'%' if self.percent else ''}"

    def of(self, total: int) -> int:
        return max(1, total * self.number // 100) if self.percent else self.number

    @classmethod
    def parse(cls, text: str, option: str = "--batch") -> "Size":
        """`4` or `25%`. Raises UsageError for anything else, and for less than one."""
        digits = text.strip().removesuffix("%")
        percent = text.strip().endswith("%")
        if not re.fullmatch(r"[0-9]{1,6}", digits) or int(digits) < 1 or (percent and int(digits) > 100):
            raise UsageError(
                f"{option} {text}: not a number of hosts or a percentage",
                hint=f"Write `{option} 4` or `{option} 25%`.",
            )
        return cls(int(digits), percent)


def split_batches(
    hosts: Sequence[Host],
    disturbing: Collection[str],
    *,
    alone: Collection[str] = (),
    unchanged: Collection[str] = (),
    begun: Collection[str] = (),
    size: Size | None = None,
    canary: int = 0,
) -> tuple[tuple[Host, ...], ...]:
    """The batches of hosts, in order; each host is in one.

    `disturbing`: names of hosts whose work is interrupted. Without a size they go one at a time per group (the first that the
    inventory names for a host), and all others go first, together. A size applies to all hosts. The `canary` first hosts are a
    batch of their own; `unchanged` hosts do not count. Hosts in `alone` go one by one, at the end. Hosts that an earlier
    run has `begun` go first: later, more hosts than a batch holds would be disturbed at once.
    """
    lone = [(host,) for host in hosts if host.name in alone]
    hosts = sorted(
        (host for host in hosts if host.name not in alone), key=lambda host: host.name not in begun
    )
    quiet = [host for host in hosts if host.name not in disturbing]
    waves = [
        *([quiet] if quiet else []),
        *_one_per_group([host for host in hosts if host.name in disturbing]),
    ]
    order = sorted((host for wave in waves for host in wave), key=lambda host: host.name not in begun)
    first = [host for host in order if host.name not in unchanged][:canary]
    rest = [host for host in order if host not in first]
    if size is not None:
        step = size.of(len(order))
        waves = [rest[start : start + step] for start in range(0, len(rest), step)]
    elif first:
        early = {host.name for host in first}
        waves = [[host for host in wave if host.name not in early] for wave in waves]
    parts = [tuple(wave) for wave in ([first] if first else []) + waves if wave]
    return (
        *(batch for batch in lone if batch[0].name in begun),
        *parts,
        *(batch for batch in lone if batch[0].name not in begun),
    )


def _one_per_group(hosts: Sequence[Host]) -> list[list[Host]]:
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        groups.setdefault(host.groups[0] if host.groups else host.name, []).append(host)
    return [[host for host in wave if host] for wave in zip_longest(*groups.values())]
