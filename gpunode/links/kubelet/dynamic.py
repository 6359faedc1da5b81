"""Kubelets that take their configuration from the API, as 1.11 to 1.23 can. Pure.

source: pkg/kubelet/kubeletconfig/checkpoint/store/fsstore.go (1.16): `assigned` is empty while the kubelet goes by its own file.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.links.kubelet.arguments import flag, gates
from gpunode.model import Facts

SINCE, GONE = 11, 24
ASSIGNED = "store/meta/assigned"


def source(facts: Facts, words: Sequence[str], minor: int) -> str | None:
    """The file that says which configuration of the API this kubelet goes by; None where it goes by its own."""
    folder = flag(words, "dynamic-config-dir")
    if not folder or not SINCE <= minor < GONE or gates(words).get("DynamicKubeletConfig") is False:
        return None
    path = f"{folder.rstrip('/')}/{ASSIGNED}"
    file = facts.files.get(path)
    return path if file is not None and (file.content or "").strip() else None
