"""The device plugin's image, written by `gpunode plugin image` on the lab's Python."""

import tempfile
from pathlib import Path

from . import cache
from .builds import CHECKOUT
from .docker import docker
from .process import run
from .slot import Slot

GPUNODE = CHECKOUT / ".venv/bin/gpunode"


def archive(slot: Slot, base: str) -> Path:
    """The image's archive; its name changes with its content."""
    from gpunode.links.plugin import image  # `down` has only Python's own modules

    parts = [CHECKOUT / "gpunode" / name for name in ("links/plugin/image", *image.PARTS)]
    inputs: list[str | Path] = [Path(__file__), *parts, base]

    def build(folder: Path) -> None:
        with tempfile.NamedTemporaryFile(dir=cache.root(), suffix=".tar") as file:
            docker(slot, "save", "-o", file.name, base)
            name = f"--name=gpunode-deviceplugin:{cache.key(inputs)}"
            run([GPUNODE, "plugin", "image", f"--base={file.name}", name, f"--to={folder / 'plugin.tar'}"])

    return cache.entry("plugin", inputs, build) / "plugin.tar"
