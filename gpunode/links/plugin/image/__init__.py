"""The device plugin's image, written without docker: a base that the user names, and one layer on top.

The archive is OCI's layout with docker's `manifest.json`, so `docker load`, `ctr images import`, podman and skopeo take it.
The same base, the same gpunode and the same Python make the same bytes.
"""

import hashlib
import io
import json
import re
import secrets
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import gpunode
from gpunode.errors import GpunodeError, UsageError
from gpunode.inventory.archive import full
from gpunode.links.plugin.image import registry
from gpunode.links.plugin.image.base import Base, open_base, read_files

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # the image's architecture -> that of the wheels
REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/-]*(?::[0-9]+/[a-z0-9._/-]+)?:[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Written:
    """What is in the archive. `digest` is the image's id: of its configuration. `compiled`: its modules are."""

    file: Path
    name: str
    platform: str
    python: str
    digest: str
    compiled: bool


def write(base: str, to: Path, *, name: str, arch: str, folder: Path | None = None) -> Written:
    """Write the plugin's image on `base` (an archive, an OCI layout, or an image in a registry by its digest) to `to`.

    The libraries are those of requirements.lock, from `folder` or by pip, checked by hash.
    Raises GpunodeError where the base, a library or the file cannot be used; `to` is then as it was.
    """
    with TemporaryDirectory(prefix="gpunode-base-") as scratch:
        place = Path(base)
        if not place.exists() and (image := registry.reference(base)):
            place = Path(scratch) / "base"
            registry.fetch(image, arch, place)
        with open_base(place, arch, base) as under:
            wheels = Path(scratch, "wheels")
            wheels.mkdir()
            fetched = fetch_wheels(wheels, python=under.python, machine=MACHINES[arch], folder=folder)
            files = collect_files(fetched)
            modules = compile_modules(files, under)
            digest = write_archive(to, under, make_layer({**files, **modules}), name=name)
    return Written(to, name, f"linux/{arch}", under.python, digest, bool(modules))


OCI = "application/vnd.oci.image"
BEGINNING = "1970-01-01T00:00:00Z"
# Nobody, but for the plugin itself: the kubelet's socket directory is root's, so its DaemonSet has runAsUser: 0, without
# any capability, and NVIDIA_VISIBLE_DEVICES=all; from the image it would show every GPU to every pod of this image.
USER = "65534:65534"
ENTRYPOINT, COMMAND = ("python3", "-S"), ("-m", "gpunode.deviceplugin")
ENVIRONMENT = {"PYTHONPATH": "/app", "PYTHONUNBUFFERED": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
# Of a base without one; containerd's ctr gives an image with any variable none. This is docker's own
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_archive(to: Path, base: Base, layer: bytes, *, name: str) -> str:
    """Write OCI's layout and docker's manifest of the same blobs to `to`, which appears whole or not at all. Returns the image's id.
    Raises UsageError where it cannot."""
    config = _json(_config(base.config, layer))
    layers = [(layer.digest, layer.size, layer.compressed) for layer in base.layers]
    layers.append((_sha256(layer), len(layer), False))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": _descriptor("config.v1+json", _sha256(config), len(config)),
            "layers": [
                _descriptor("layer.v1.tar+gzip" if compressed else "layer.v1.tar", digest, size)
                for digest, size, compressed in layers
            ],
        }
    )
    platform = {key: base.config[key] for key in ("architecture", "os", "variant") if base.config.get(key)}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [
            _descriptor("manifest.v1+json", _sha256(manifest), len(manifest))
            | {"platform": platform, "annotations": {"io.containerd.image.name": full(name)}}
        ],
    }
    docker = [
        {
            "Config": _path(_sha256(config)),
            "RepoTags": [name],
            "Layers": [_path(digest) for digest, *_ in layers],
        }
    ]
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")  # another run may write the same file
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            for path, content in (
                ("oci-layout", _json({"imageLayoutVersion": "1.0.0"})),
                ("index.json", _json(index)),
                ("manifest.json", _json(docker)),
                (_path(_sha256(config)), config),
                (_path(_sha256(manifest)), manifest),
            ):
                _add(tar, path, content)
            for stored in {layer.digest: layer for layer in base.layers}.values():
                member = tarfile.TarInfo(_path(stored.digest))
                member.size = stored.size
                with base.open(stored.name) as file:
                    tar.addfile(member, file)
            _add(tar, _path(_sha256(layer)), layer)
        part.replace(to)
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return f"sha256:{_sha256(config)}"


def _config(base: dict[str, Any], layer: bytes) -> dict[str, Any]:
    """The base's configuration with the plugin's program, and the layer."""
    inner = base.get("config") or {}
    kept = [variable for variable in inner.get("Env") or [] if variable.partition("=")[0] not in ENVIRONMENT]
    kept += [] if any(variable.startswith("PATH=") for variable in kept) else [PATH]
    step = {"created": BEGINNING, "created_by": "gpunode plugin image"}
    return base | {
        "config": inner
        | {
            "Env": [*kept, *(f"{key}={value}" for key, value in ENVIRONMENT.items())],
            "User": USER,
            "Entrypoint": ENTRYPOINT,
            "Cmd": COMMAND,
        },
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], f"sha256:{_sha256(layer)}"]},
        "history": [*(base.get("history") or []), step],
    }


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _path(digest: str) -> str:
    return f"blobs/sha256/{digest}"


PACKAGE = Path(gpunode.__file__).parent
# Without gpunode/__init__.py: a namespace package, and nothing else of gpunode.
PARTS = ("contract", "deviceplugin", "share", "accept")
ROOT = "app"
# A wheel's files that belong beside its packages; its programs are not needed.
PLACED = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(.+)")
PROGRAMS = re.compile(r"[^/]+\.data/")


def collect_files(wheels: list[Path]) -> dict[str, bytes]:
    """The plugin, the extender, the measuring program, their contract and libraries, by their names in the image."""
    return dict([*_own(), *(file for wheel in wheels for file in _unpack(wheel))])


# In one process of its own, sorted: how marshal writes an object depends on its references. With the path in the image, which tracebacks
# name, and without times. Python's own modules are checked at each import: whoever builds on the image may update its Python.
COMPILE = ("-m", "compileall", "-q", "-q", "-p", "/", "-s")
WAYS = {ROOT: "unchecked-hash", "usr": "checked-hash"}
PROGRAM_MODULES = (
    "deviceplugin.__main__",
    "deviceplugin.mps.__main__",
    "deviceplugin.cluster.incluster",
    "share.__main__",
    "accept.__main__",
    "accept.listing",
)
# The files of Python's own modules that a start imports, by their names in its library.
IMPORTED = """
import importlib, os, site, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module("gpunode." + name)
top = os.path.dirname(os.__file__) + "/"
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
print(*{file[len(top):] for file in files if file.startswith(top) and file.endswith(".py")}, sep="\\n")
"""


def compile_modules(files: Mapping[str, bytes], base: Base) -> dict[str, bytes]:
    """The compiled modules of `files`, and those of the base's Python that they import and that it does not have, as in Docker's own images;
    by name. None where this computer has no Python of that minor version, all of which read the same.

    Without them each start in the image compiles every module again: its user may not write there.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}" == base.python
    program = sys.executable if own else which(f"python{base.python}")
    if program is None:
        return {}
    with TemporaryDirectory(prefix="gpunode-compile-") as scratch:

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [program, "-S", *arguments],
                env={"PYTHONHASHSEED": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            return done.stdout  # whatever its end: a library may have a file for another Python

        def put(sources: Mapping[str, bytes]) -> None:
            for name, content in sources.items():
                Path(scratch, name).parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, name).write_bytes(content)

        put({name: content for name, content in files.items() if name.endswith(".py")})
        imported = run("-B", "-c", IMPORTED, f"{scratch}/{ROOT}", *PROGRAM_MODULES).split("\n")
        put(read_files(base, _not_compiled(base, imported)))
        for folder, way in WAYS.items():
            run(*COMPILE, scratch, "--invalidation-mode", way, f"{scratch}/{folder}")
        return {
            path.relative_to(scratch).as_posix(): path.read_bytes() for path in Path(scratch).rglob("*.pyc")
        }


def _not_compiled(base: Base, modules: Iterable[str]) -> set[str]:
    """Where the base has these of its Python's modules, without their compiled ones."""
    cached = f".cpython-{base.python.replace('.', '')}.pyc"
    paths = set()
    for module in modules:
        for library in ("usr/local/lib", "usr/lib"):
            path = PurePosixPath(library, f"python{base.python}", module)
            if (
                str(path) in base.files
                and str(path.parent / "__pycache__" / f"{path.stem}{cached}") not in base.files
            ):
                paths.add(str(path))
    return paths


def make_layer(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar file. The same input makes the same bytes: sorted, every time 0, owned by root, no compression."""
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


def _unpack(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            placed = PLACED.fullmatch(name)
            if not name.endswith("/") and (placed or not PROGRAMS.match(name)):
                yield f"{ROOT}/{placed[1] if placed else name}", archive.read(name)


LOCK = PACKAGE / "deviceplugin/requirements.lock"
GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")


def fetch_wheels(dest: Path, *, python: str, machine: str, folder: Path | None = None) -> list[Path]:
    """The libraries of requirements.lock as wheels for CPython `python` on `machine`, sorted, in `dest`: from `folder` alone, or as pip is configured.

    Raises GpunodeError with pip's own reason.
    """
    source = ["--isolated", "--no-index", "--find-links", str(folder)] if folder else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp"),
            *(f"--platform={name}_{machine}" for name in GLIBC),
            *("--dest", str(dest), "--requirement", str(LOCK), *source),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        shown = [
            line.removeprefix("ERROR: ") for line in lines if not line.startswith(("WARNING", "Expected"))
        ] or lines
        raise GpunodeError(
            f"pip cannot bring the libraries for Python {python} on {machine}"
            + (f" from {folder}" if folder else "")
            + "".join(f"\n    {line}" for line in shown[-8:]),
            hint=_hint(done.stderr, folder),
        )
    return sorted(dest.glob("*.whl"))


def _hint(text: str, folder: Path | None) -> str:
    if "No module named pip" in text:
        return f"Install pip beside gpunode: {sys.executable} -m ensurepip"
    if "DO NOT MATCH THE HASHES" in text:
        return "This is not the file that requirements.lock names: fetch it again, from another place."
    if folder:
        return f"The folder needs the wheels of {LOCK}, each for this Python and machine."
    return "Where there is no internet, name a folder of wheels with --wheels, or write the image elsewhere."
