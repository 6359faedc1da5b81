"""The layer on top of the base: the plugin, the scheduler extender, their contract and their libraries, as a tar file."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gpunode

PACKAGE = Path(gpunode.__file__).parent
PARTS = (
    "contract",
    "deviceplugin",
    "share",
)  # without gpunode/__init__.py: a namespace package, nothing else of gpunode
ROOT = "app"
# A wheel's files that belong beside its packages; its programs are not needed.
PLACED = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.+)")
PROGRAMS = re.compile(r"[^/]+\.data/")


def layer(wheels: list[Path]) -> bytes:
    """The layer, the same bytes for the same input: sorted, every time 0, owned by root, no compression."""
    files = dict([*_own(), *(file for wheel in wheels for file in _unpacked(wheel))])
    folders = {str(parent) for name in files for parent in Path(name).parents if parent.name}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(folders | set(files)):
            member = tarfile.TarInfo(name)
            content = files.get(name)
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            else:
                member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content or b""))
    return out.getvalue()


def _own() -> Iterator[tuple[str, bytes]]:
    """gpunode's part: Python alone, not what it is generated from."""
    for part in PARTS:
        for path in (PACKAGE / part).rglob("*.py"):
            yield f"{ROOT}/gpunode/{path.relative_to(PACKAGE).as_posix()}", path.read_bytes()


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            placed = PLACED.fullmatch(name)
            if not name.endswith("/") and (placed or not PROGRAMS.match(name)):
                yield f"{ROOT}/{placed[1] if placed else name}", archive.read(name)
