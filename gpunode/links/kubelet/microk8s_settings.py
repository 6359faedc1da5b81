"""MicroK8s: where its snap keeps the arguments of its services, as it reads them. Pure.

source: canonical/microk8s, microk8s-resources/{default-args,wrappers} and the patch for kubelite (ReadArgsFromFile).
"""

from __future__ import annotations

from gpunode.model import Facts
from gpunode.planning import services

DATA, COMMON = "/var/snap/microk8s/current", "/var/snap/microk8s/common"
ARGS = f"{DATA}/args/"
UNIT = "snap.microk8s.daemon-kubelite.service"  # kubelet and, on most nodes, control plane in one process
CONTAINERD = "snap.microk8s.daemon-containerd.service"
KUBELET, KUBELITE = f"{ARGS}kubelet", f"{ARGS}kubelite"


def is_node(facts: Facts) -> bool:
    """Whether the host has it."""
    return services.is_loaded(facts, UNIT)


def is_server(facts: Facts) -> bool:
    """Whether the host is of the control plane: a worker's kubelite is configured by the snap to start none."""
    file = facts.files.get(KUBELITE)
    text = file.content or "" if file else ""  # one that cannot be read counts as a server's
    return is_node(facts) and "--start-control-plane=false" not in arguments(text)


def arguments(text: str) -> tuple[str, ...]:
    """The arguments of a file: one or more a line, quotes dropped, the snap's folders filled in."""
    found: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            bare = line.replace('"', "").replace("'", "")
            found += [_filled(word) for word in bare.split(" ") if word]
    return tuple(found)


def _filled(word: str) -> str:
    for name, value in (("SNAP_DATA", DATA), ("SNAP_COMMON", COMMON)):
        word = word.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return word
