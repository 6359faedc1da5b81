"""How many links of the hosts' chains were checked, as a sentence and as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from gpunode.model import Layer, Verdict
from gpunode.wording import few

CHAIN: tuple[Layer, ...] = get_args(Layer)[2:]  # `ssh` and `container` are there only where others cannot be
NAMED = 5

Chains = Mapping[str, Sequence[Verdict]]  # by host


def broken(chains: Chains) -> dict[str, Layer]:
    """Host -> its first broken link, of hosts that have one."""
    found = (
        (host, [link.layer for link in links if link.status == "broken"]) for host, links in chains.items()
    )
    return {host: layers[0] for host, layers in found if layers}


def unchecked(links: Iterable[Verdict]) -> tuple[Layer, ...]:
    """The links that were not checked, in causal order."""
    judged = {link.layer for link in links if link.status != "unknown"}
    return tuple(layer for layer in CHAIN if layer not in judged)


def sentence(chains: Chains) -> str:
    """`1 of 3 hosts broken: gpu-03 (module); 2 hosts OK: 10 of 11 links checked; not checked: pod`."""
    bad = broken(chains)
    alike: dict[tuple[Layer, ...], list[str]] = {}
    for host, links in chains.items():
        if host not in bad:
            alike.setdefault(unchecked(links), []).append(host)
    parts = []
    if bad:
        named = few([f"{host} ({layer})" for host, layer in bad.items()], NAMED)
        parts.append(f"{len(bad)} of {_hosts(len(chains))} broken: {named}")
    good = f"{_hosts(len(chains) - len(bad))} OK: "
    if len(alike) == 1:
        (missing,) = alike
        parts.append(good + _checked(missing, "; "))
    elif alike:
        each = (f"{few(hosts, NAMED)}: {_checked(missing, ', ')}" for missing, hosts in alike.items())
        parts.append(good + "; ".join(each))
    return "; ".join(parts)


def numbers(chains: Chains) -> dict[str, object]:
    """The same as JSON values; `not_checked` is layer -> count of hosts."""
    missing = Counter(layer for links in chains.values() for layer in unchecked(links))
    total = len(CHAIN) * len(chains)
    return {
        "hosts": len(chains),
        "broken": len(broken(chains)),
        "links": total,
        "checked": total - missing.total(),
        "not_checked": dict(missing),
    }


def _checked(missing: Sequence[Layer], mark: str) -> str:
    words = f"{len(CHAIN) - len(missing)} of {len(CHAIN)} links checked"
    return f"{words}{mark}not checked: {', '.join(missing)}" if missing else words


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"
