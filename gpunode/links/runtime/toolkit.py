"""The configuration of NVIDIA's container toolkit as data."""

from __future__ import annotations

from typing import Any

from gpunode.links.runtime.containerd.source import parse
from gpunode.links.runtime.typed import Kinds, check
from gpunode.model import Facts
from gpunode.planning import files

STRICT = {
    "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
    "accept-nvidia-visible-devices-as-volume-mounts": True,
}
KINDS: Kinds = {
    **{(key,): "switch" for key in STRICT},
    ("nvidia-container-runtime",): "table",
    ("nvidia-container-runtime", "mode"): "string",
    ("nvidia-container-runtime", "runtimes"): "strings",
}
HINT = "Fix the file by hand (NVIDIA's toolkit reads it too), then run again; it was not touched."


def read(facts: Facts) -> dict[str, Any]:
    """The host's file, each value that is read of its type; {} where there is none."""
    path = files.TOOLKIT_CONFIG
    text = files.text(facts, path) or ""
    data = parse(text, path, HINT)
    check(data, KINDS, text, path, HINT)
    return data
