"""A user's template of containerd's configuration: whether the nvidia runtime is in what k3s or RKE2 makes of it. Pure."""

from __future__ import annotations

import re

from gpunode.errors import CannotPlan
from gpunode.links.runtime.containerd.config_toml import containerd_toml

BASE = re.compile(r"\{\{-?\s*template\s+\"base\"")
# What the products' own templates put the runtimes in with that they find; the second until 2023.
FOUND = re.compile(r"\.ExtraRuntimes\b|\.NvidiaRuntimes\b|\.ContainerRuntimes\b")
NVIDIA = re.compile(r"""^[ \t]*\[\s*plugins\..*\.runtimes\.["']?nvidia["']?\s*\]""", re.MULTILINE)


def merged(text: str, path: str, product: str, *, default: bool, works: bool) -> str:
    """The template with the nvidia runtime. `works`: the configuration that was made of it is right.

    One that has the product's own template in it stays: the runtime comes with that. A plain file is merged like
    containerd's own; in any other no place is safe.
    """
    own = NVIDIA.search(text)
    if BASE.search(text) or FOUND.search(text):
        if own and not works:
            line = text.count("\n", 0, own.start()) + 1
            raise CannotPlan(
                f"{path}:{line}: defines the nvidia runtime, which {product} adds itself: with both, containerd does not "
                "start",
                hint="Take this table and its options out of the template, then run again; it was not touched.",
            )
        return text
    if "{{" not in text:
        return containerd_toml(text, default=default, path=path, second="version = 3" in text)
    if works:
        return text
    raise CannotPlan(
        f"{path}: neither has this template the runtimes that {product} finds nor is there a place for nvidia's that is safe",
        hint='Begin it with {{ template "base" . }} and leave in it what differs from it, then run again; '
        "it was not touched.",
    )
