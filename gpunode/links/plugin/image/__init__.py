"""The device plugin's image, written without docker: a base that the user names, and one layer on top.

The archive is OCI's layout with docker's `manifest.json`, so `docker load`, `ctr images import`, podman and skopeo take it.
The same base and the same gpunode make the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gpunode.links.plugin.image import archive, registry, wheels
from gpunode.links.plugin.image.base import opened
from gpunode.links.plugin.image.layer import layer

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # the image's architecture -> that of the wheels
REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/-]*(?::[0-9]+/[a-z0-9._/-]+)?:[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Written:
    """What is in the archive. `digest` is the image's id: of its configuration."""

    file: Path
    name: str
    platform: str
    python: str
    digest: str


def write(base: str, to: Path, *, name: str, arch: str, folder: Path | None = None) -> Written:
    """Write the plugin's image on `base` (an archive, an OCI layout, or an image in a registry by its digest) to `to`.

    The libraries are those of requirements.lock, from `folder` or by pip, checked by hash.
    Raises GpunodeError where the base, a library or the file cannot be used; `to` is then as it was.
    """
    with TemporaryDirectory(prefix="gpunode-base-") as scratch:
        place = Path(base)
        if not place.exists() and (wanted := registry.reference(base)):
            place = Path(scratch) / "base"
            registry.fetch(wanted, arch, place)
        return _write(place, base, to, name=name, arch=arch, folder=folder)


def _write(place: Path, base: str, to: Path, *, name: str, arch: str, folder: Path | None) -> Written:
    with opened(place, arch, base) as under:
        with TemporaryDirectory(prefix="gpunode-wheels-") as scratch:
            fetched = wheels.fetch(Path(scratch), python=under.python, machine=MACHINES[arch], folder=folder)
            top = layer(fetched)
        digest = archive.write(to, under, top, name=name)
    return Written(to, name, f"linux/{arch}", under.python, digest)
