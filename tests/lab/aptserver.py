"""The web servers of the lab's packages: NVIDIA's repositories on one port, the distribution's part on another.

They are two, so that a test can take NVIDIA's away while the rest of apt's sources stay.
"""

import os
import sys
from pathlib import Path

from . import builds, cache, packages, process
from .slot import Slot

NVIDIA = 8080
DISTRIBUTION = 8081


def up(slot: Slot) -> Path:
    """Serve what packages/ builds, and return the folder with it; servers that run see new content at once."""
    folder = packages.repository(cache.root(), builds.go(builds.TOOLKIT), os.uname().release)
    link, new = slot.state / "apt", slot.state / "apt.new"
    new.unlink(missing_ok=True)
    new.symlink_to(folder)
    new.rename(link)
    start(slot)
    _serve(slot, "http-distribution", DISTRIBUTION, link / "os")
    return folder


def start(slot: Slot) -> None:
    """Start the server of NVIDIA's repositories, unless it runs."""
    _serve(slot, "http-nvidia", NVIDIA, slot.state / "apt")


def stop(slot: Slot) -> None:
    """Stop the server of NVIDIA's repositories."""
    process.stop(slot.state, "http-nvidia")


def sources(slot: Slot) -> str:
    """The hosts' apt source of what their distribution's kernel would bring: its headers."""
    return (
        f"Types: deb\nURIs: http://{slot.gateway}:{DISTRIBUTION}/\nSuites: ./\n"
        "Signed-By: /usr/share/keyrings/lab-kernel.asc\n"
    )


def _serve(slot: Slot, name: str, port: int, folder: Path) -> None:
    server = [sys.executable, "-m", "http.server", "--bind", slot.gateway, "--directory", str(folder)]
    process.start(slot.state, name, [*server, str(port)])
