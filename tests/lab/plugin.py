"""The device plugin's image, built from the project's own Dockerfile on the lab's Python."""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import cache
from .builds import CHECKOUT
from .docker import docker
from .process import run
from .slot import Slot


def archive(slot: Slot, base: str) -> Path:
    """The image as `docker save` writes it; its name changes with its content."""
    source = CHECKOUT / "gpunode/deviceplugin"
    inputs: list[str | Path] = [Path(__file__), source, CHECKOUT / "gpunode/share", base]

    def build(folder: Path) -> None:
        name = f"gpunode-deviceplugin:{cache.key(inputs)}"
        with tempfile.TemporaryDirectory(dir=cache.root()) as context:
            # Debian's Python: what fills the context fetches libraries, locked by hash, with its interpreter's pip
            run(["/usr/bin/python3", "-m", "gpunode.deviceplugin.image", context], cwd=CHECKOUT)
            docker(slot, "build", f"--build-arg=BASE={base}", "--network=none", "-t", name, context)
        docker(slot, "save", "-o", folder / "plugin.tar", name)

    return cache.entry("plugin", inputs, build) / "plugin.tar"
