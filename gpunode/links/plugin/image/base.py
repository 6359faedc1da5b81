"""The image to build on: an archive of `docker save`, an OCI archive, or a folder in OCI's layout."""

import gzip
import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gpunode.errors import UsageError
from gpunode.inventory.archive import LARGEST, blob_path
from gpunode.local import tars

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
CHUNK = 1 << 20  # bytes
MANIFESTS = 1000  # of an image for many platforms, with their attestations
BIN = ("usr/local/bin", "usr/bin")  # as in PATH
INTERPRETER = re.compile(r"python3\.(\d+)$")
MUSL = re.compile(r"(?:usr/)?lib/ld-musl-")
OLDEST = 10  # the minor version of Python 3 that the plugin needs
LINKS = 40  # that a kernel follows

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"  # of one name below; of all that is below in the folder

Open = Callable[[str], IO[bytes]]
Image = tuple[dict[str, Any], list[str]]  # configuration, names of the layers


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the base, as it is stored. `digest` has no `sha256:`."""

    name: str
    digest: str
    size: int
    compressed: bool


@dataclass(frozen=True, slots=True)
class Base:
    """An image of one platform. `python`: the minor version that `python3` starts, such as 3.11. `files`: what is in it, and what that
    links to, or ""."""

    config: dict[str, Any]
    layers: tuple[Layer, ...]
    python: str
    open: Open
    files: Mapping[str, str]


@contextmanager
def open_base(path: Path, arch: str, name: str = "") -> Iterator[Base]:
    """The base for linux/`arch`, readable within the context. `name`: what errors call it. Raises UsageError."""
    name = name or str(path)
    with ExitStack() as stack:
        try:
            base = _base(name, _opener(path, stack), arch)
        except tars.BROKEN:
            raise UsageError(
                f"{name} is no image archive, or was cut off",
                hint="Write one with `docker save -o FILE IMAGE`, `ctr images export FILE IMAGE` or skopeo.",
            ) from None
        except FileNotFoundError as error:
            raise UsageError(
                f"{name} cannot be read: no such file, and no image of a registry",
                hint="Name an image in a registry with host and digest: HOST/NAME@sha256:…. Or save it with `docker save -o FILE IMAGE` or skopeo, and use `--base FILE`.",
            ) from error
        except OSError as error:
            raise UsageError(
                f"{name} cannot be read: {error.strerror or error}",
                hint="Name an image archive, a folder in OCI's layout, or an image in a registry: HOST/NAME@sha256:…",
            ) from error
        yield base


def _opener(path: Path, stack: ExitStack) -> Open:
    """Opens what is in the archive or folder by its name. Raises KeyError or FileNotFoundError for what is not."""
    if not path.is_dir():
        return stack.enter_context(tars.open_archive(path)).open

    def inside(name: str) -> IO[bytes]:
        try:
            place = (path / name).resolve()
        except (ValueError, RuntimeError):  # a NUL, or links in a circle
            raise KeyError(name) from None
        if not place.is_relative_to(path.resolve()):
            raise UsageError(
                f"{path}: {name} leads out of the folder", hint="Save the image again, with all its layers."
            )
        return tars.regular(place)

    return inside


def _base(path: str, read: Open, arch: str) -> Base:
    try:
        images = list(_images(read, arch))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError, FileNotFoundError) as error:
        raise UsageError(
            f"{path} holds no complete image ({error!r})", hint="Save the image again, with all its layers."
        ) from None
    fitting = [image for platform, image in images if image and platform == f"linux/{arch}"]
    if not fitting:
        platforms = ", ".join(sorted({platform for platform, _ in images})) or "nothing"
        raise UsageError(
            f"{path} holds {platforms}, not linux/{arch}",
            hint="Save the base for the nodes' architecture, or choose that with --arch.",
        )
    if len(fitting) > 1:
        raise UsageError(f"{path} holds {len(fitting)} images for linux/{arch}", hint="Save one alone.")
    config, names = fitting[0]
    diffs = config["rootfs"]["diff_ids"]
    if len(diffs) != len(names):
        raise UsageError(
            f"{path} has {len(names)} layers, its configuration names {len(diffs)}", hint="Save it again."
        )
    layers, files = [], dict[str, str]()
    for name, diff in zip(names, diffs, strict=True):
        image, inside = _layer(path, read, name, diff)
        layers.append(image)
        files = over(files, inside)
    return Base(config, tuple(layers), _python(path, files), read, files)


def over(below: Mapping[str, str], layer: Mapping[str, str]) -> dict[str, str]:
    """The files of `below` with `layer` on top: its whiteouts hide files (OCI's image specification, layer.md)."""
    gone, emptied = set[str](), set[str]()
    for name in layer:
        folder, last = posixpath.split(name)
        if last == OPAQUE:
            emptied.add(folder)
        elif last.startswith(WHITEOUT):
            gone.add(posixpath.join(folder, last.removeprefix(WHITEOUT)))
    hidden = gone | emptied

    def stays(name: str) -> bool:
        above = {name[:at] for at, letter in enumerate(name) if letter == "/"} | {""}
        return name not in gone and not above & hidden

    kept = {name: link for name, link in below.items() if stays(name)}
    new = {name: link for name, link in layer.items() if not posixpath.basename(name).startswith(WHITEOUT)}
    return kept | new


def fits(descriptor: Mapping[str, Any], arch: str) -> bool:
    """Whether a manifest in an index may be that of linux/`arch`; one that names no platform is to be read."""
    platform = descriptor.get("platform") or {}
    return not platform or _platform(platform) == f"linux/{arch}"


def _images(read: Open, arch: str) -> Iterator[tuple[str, Image | None]]:
    """Each image by its platform: by docker's manifest where there is one, else by OCI's index.

    None: its index names another platform than linux/`arch`; such images are often not there.
    """

    def content(name: str) -> Any:
        with read(name) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"{name} has more than {LARGEST} bytes")
        return json.loads(text)

    try:
        entries = content("manifest.json")
    except (KeyError, FileNotFoundError):
        entries = []
    for entry in entries:
        config = content(entry["Config"])
        yield _platform(config), _image(config, entry["Layers"])
    if entries:
        return
    waiting = list(content("index.json")["manifests"])
    for entry in waiting:
        if len(waiting) > MANIFESTS:
            raise ValueError(f"more than {MANIFESTS} manifests")
        if not fits(entry, arch):
            if entry["platform"].get("architecture") != "unknown":  # an attestation
                yield _platform(entry["platform"]), None
            continue
        manifest = content(blob_path(entry["digest"]))
        if "manifests" in manifest:
            waiting += manifest["manifests"]
        else:
            config = content(blob_path(manifest["config"]["digest"]))
            layers = [blob_path(layer["digest"]) for layer in manifest["layers"]]
            yield _platform(config), _image(config, layers)


def _image(config: dict[str, Any], layers: list[str]) -> Image:
    """The image, of whose parts each has its type. Raises TypeError, and KeyError for a missing one."""
    inner = config.get("config") or {}
    texts = [*layers, *config["rootfs"]["diff_ids"], *(inner.get("Env") or [])]
    texts += [config[key] for key in ("architecture", "os", "variant") if config.get(key)]
    if not all(isinstance(text, str) for text in texts) or not isinstance(config.get("history") or [], list):
        raise TypeError("its configuration has other types")
    return config, layers


def _platform(config: dict[str, Any]) -> str:
    return f"{config.get('os', '?')}/{config.get('architecture', '?')}"


class _Hashed(io.RawIOBase):
    """A stream whose bytes are hashed and counted as they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self.size = stream, hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data

    def finish(self) -> str:
        while self.read(CHUNK):
            pass
        return self._hash.hexdigest()


def _layer(path: str, read: Open, name: str, diff: str) -> tuple[Layer, dict[str, str]]:
    """The layer, checked against its diff id, and the names of what is in it → what they link to, or ""."""
    try:
        with read(name) as file:
            magic = file.read(4)
        if magic == ZSTD:
            raise UsageError(
                f"{path}: layer {name} is compressed by zstd",
                hint="Save it with gzip: skopeo copy --dest-compress-format gzip …",
            )
        compressed = magic.startswith(GZIP)
        with read(name) as file:
            stored = _Hashed(file)
            whole = _Hashed(cast("IO[bytes]", gzip.GzipFile(fileobj=stored))).finish() if compressed else ""
            digest = stored.finish()
        if (whole := f"sha256:{whole or digest}") != diff:
            raise UsageError(
                f"{path}: layer {name} is damaged: its SHA-256 is {whole.partition(':')[2]}, the image names {diff.partition(':')[2]}",
                hint="Copy or save the base again.",
            )
        with read(name) as file:
            inside = {
                _place(name): f"/{member.linkname}" if member.islnk() else member.linkname
                for name, member in tars.Archive(file).members.items()
            }
    except (KeyError, FileNotFoundError):
        raise UsageError(
            f"{path} does not hold its layer {name}", hint="Save the image again, with all its layers."
        ) from None
    return Layer(name, digest, stored.size, compressed), inside


def read_files(base: Base, names: Collection[str]) -> dict[str, bytes]:
    """The contents of these files of the base, by name; of several layers that have one, the last counts."""
    contents: dict[str, bytes] = {}
    for layer in base.layers:
        with base.open(layer.name) as file, tarfile.open(fileobj=file) as tar:
            for member in tar:
                if member.isreg() and _place(member.name) in names and (content := tar.extractfile(member)):
                    contents[_place(member.name)] = content.read()
    return contents


def _place(name: str, folder: str = "") -> str:
    return posixpath.normpath(posixpath.join("/", folder, name)).lstrip("/")


def _python(path: str, files: Mapping[str, str]) -> str:
    """The minor version of `python3`."""
    if any(MUSL.match(name) for name in files):
        raise UsageError(
            f"{path} has musl's C library; the plugin's libraries need glibc",
            hint="Take a base of Debian, Ubuntu or a RHEL-like system.",
        )
    minor = _linked_python(files)
    if minor is None:
        raise UsageError(f"{path} has no Python", hint="Take a base with Python 3, such as python:3.11-slim.")
    if minor < OLDEST:
        raise UsageError(
            f"{path} has Python 3.{minor}; the plugin needs 3.{OLDEST} or newer", hint="Take a newer base."
        )
    return f"3.{minor}"


def _linked_python(files: Mapping[str, str]) -> int | None:
    """The minor version that the link `python3` leads to; without a link the newest of the first folder with one."""
    name = next((f"{folder}/python3" for folder in BIN if f"{folder}/python3" in files), "")
    for _ in range(LINKS):
        if not (link := files.get(name)):
            break
        name = _place(link, posixpath.dirname(name))
        if match := INTERPRETER.match(posixpath.basename(name)):
            return int(match[1])
    for folder in BIN:
        names = (posixpath.basename(name) for name in files if posixpath.dirname(name) == folder)
        if minors := [int(match[1]) for match in map(INTERPRETER.match, names) if match]:
            return max(minors)
    return None
