"""A Python that lies anywhere, laid out as python-build-standalone's install_only archives are; and hosts that need it."""

import hashlib
import tarfile
from pathlib import Path

from .. import cache, machine
from ..api import Node

NAME = "python.tar.gz"
HIDDEN = "/usr/lib/lab"  # where a host's own Python lies, for what is written in it
_LIBRARY = Path("/usr/lib/python3.11")
_OLD = "import sys;sys.version_info=(3,5,2);sys.version='3.5.2 (default)';exec(sys.argv[1])"


def build() -> Path:
    """A folder with the archive, of this machine's Debian: its interpreter finds its library beside it."""

    def make(folder: Path) -> None:
        with tarfile.open(folder / NAME, "w:gz", compresslevel=1) as tar:
            tar.add("/usr/bin/python3.11", "python/bin/python3.11")
            link = tarfile.TarInfo("python/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
            tar.addfile(link)
            tar.add(_LIBRARY, "python/lib/python3.11", filter=_needed)

    return cache.entry("python-build", [Path(__file__), machine.versions(["libpython3.11-stdlib"])], make)


def wish(address: str) -> dict[str, str]:
    """The inventory's `python`, where the folder is served at the address."""
    digest = hashlib.sha256((build() / NAME).read_bytes()).hexdigest()
    return {"url": f"{address}/{NAME}", "sha256": digest}


def hide(node: Node) -> None:
    """Take the host's Python from where gpunode looks for one."""
    node.exec(["sh", "-ec", f"mkdir -p {HIDDEN}; mv /usr/bin/python3.11 {HIDDEN}; rm /usr/bin/python3"])


def old(node: Node) -> None:
    """Its only Python says that it is 3.5, as the one of Ubuntu 16.04 does."""
    hide(node)
    lines = ("#!/bin/sh", "shift 3", f'exec {HIDDEN}/python3.11 -I -S -c "{_OLD}" "$@"')
    node.write("/usr/bin/python3.5", "\n".join(lines) + "\n")
    node.exec(["sh", "-ec", "chmod 755 /usr/bin/python3.5; ln -s python3.5 /usr/bin/python3"])


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without tests, caches, and what Debian keeps elsewhere."""
    parts = set(Path(member.name).parts)
    return None if parts & {"__pycache__", "test", "dist-packages", "EXTERNALLY-MANAGED"} else member
