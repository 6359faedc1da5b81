"""Whether two starts of a kubelet differ in feature gates alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpunode.links.kubelet.gates import Gates
from gpunode.model import KubeletStart


def differ_only_in(before: KubeletStart, after: KubeletStart, gates: Gates) -> bool:
    """True if the gates are as desired afterwards, and everything else that the kubelet is started with is the same."""
    wished = {name: state for name, state in before.gates.items() if name not in gates}
    wished |= {name: state for name, state in gates.items() if state is not None}
    return after.gates == wished and (after is before or _else(before) == _else(after))


def _else(start: KubeletStart) -> object:
    """Everything that systemd and the kubelet read from the files, except gates."""
    variables = {name: _bare(value.split()) for name, value in start.variables.items()}
    config = {key: value for key, value in start.config.items() if key != "featureGates"}
    return _bare(start.words), {name: value for name, value in variables.items() if value}, config


def _bare(words: Iterable[str]) -> list[str]:
    """Words without the flag, and without the value that follows it."""
    found: list[str] = []
    skip = False
    for word in words:
        flag = re.match(r"[\"']*--?feature-gates(=|$)", word)
        if not flag and not skip:
            found.append(word)
        skip = bool(flag and not flag[1])
    return found
