"""`gpunode plugin image`: the device plugin's image without docker."""

import gzip
import hashlib
import importlib.util
import io
import json
import marshal
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpunode.cli import app
from gpunode.errors import GpunodeError, UsageError
from gpunode.inventory import archive
from gpunode.links.plugin import image
from gpunode.links.plugin.image import base, fetch_wheels, write

Files = dict[str, bytes]
PYTHON = "usr/local/bin/python3.11"
NAME = "gpunode-deviceplugin:1"
COMPILE = image.compile_modules
MINE = f"usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def tar(files: Files, links: Mapping[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            made.addfile(member)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return out.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config(*layers: bytes, arch: str = "amd64") -> bytes:
    inner = {"Env": ["PATH=/usr/local/bin:/usr/bin", "PYTHONPATH=/elsewhere"], "Cmd": ["python3"]}
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}" for layer in layers]}
    return json.dumps({"architecture": arch, "os": "linux", "config": inner, "rootfs": rootfs}).encode()


def docker(*layers: bytes, arch: str = "amd64") -> Files:
    """As docker before 25 saves an image."""
    names = [f"{number}/layer.tar" for number, _ in enumerate(layers)]
    entry = {"Config": "config.json", "RepoTags": ["python:3.11"], "Layers": names}
    return {
        "config.json": config(*layers, arch=arch),
        "manifest.json": json.dumps([entry]).encode(),
        **dict(zip(names, layers, strict=True)),
    }


def oci(*layers: bytes, archs: tuple[str, ...] = ("amd64",)) -> Files:
    """As skopeo and buildx write one: compressed layers, below an index for several platforms an attestation."""
    files: Files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def blob(data: bytes) -> dict[str, Any]:
        files[f"blobs/sha256/{digest(data)}"] = data
        return {"digest": f"sha256:{digest(data)}", "size": len(data)}

    entries = []
    for arch in archs:
        stored = [blob(gzip.compress(layer, mtime=0)) for layer in layers]
        manifest = {"config": blob(config(*layers, arch=arch)), "layers": stored}
        entries.append(
            blob(json.dumps(manifest).encode()) | {"platform": {"os": "linux", "architecture": arch}}
        )
    if len(archs) > 1:
        unknown = blob(b'{"config":{},"layers":[]}') | {"platform": {"architecture": "unknown"}}
        entries = [blob(json.dumps({"manifests": [*entries, unknown]}).encode())]
    files["index.json"] = json.dumps({"manifests": entries}).encode()
    return files


def saved(path: Path, files: Files) -> Path:
    path.write_bytes(tar(files))
    return path


def built(tmp_path, base: Files | Path, arch: str = "amd64") -> image.Written:
    """The image that is built on this base, as tmp_path/out."""
    base = base if isinstance(base, Path) else saved(tmp_path / "base", base)
    return write(str(base), tmp_path / "out", name=NAME, arch=arch)


def layer(tmp_path, number: int = -1) -> tarfile.TarFile:
    """A layer of tmp_path/out."""
    with tarfile.open(tmp_path / "out") as made:
        (listed,) = json.load(made.extractfile("manifest.json"))
        data = made.extractfile(listed["Layers"][number]).read()
    return tarfile.open(fileobj=io.BytesIO(data))


def folder(path: Path, files: Files) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


DEBIAN = tar({PYTHON: b"", "usr/bin/python3.9": b""})


@pytest.fixture(autouse=True)
def _pip(monkeypatch) -> None:
    """In the place of pip: a wheel with a program, which is left out, and a part that belongs beside its packages."""

    def fetch(dest: Path, **_: object) -> list[Path]:
        path = dest / "thing-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name in ("thing.py", "thing-1.data/scripts/run", "thing-1.data/purelib/beside.py"):
                wheel.writestr(name, name)
        return [path]

    monkeypatch.setattr(image, "fetch_wheels", fetch)
    monkeypatch.setattr(image, "compile_modules", lambda files, base: {})  # takes seconds


@pytest.mark.parametrize(
    ("base", "arch"),
    [
        (lambda path: saved(path, docker(DEBIAN)), "amd64"),
        (lambda path: saved(path, docker(tar({"etc/os-release": b""}), DEBIAN)), "amd64"),
        (lambda path: saved(path, docker(gzip.compress(DEBIAN)) | {"config.json": config(DEBIAN)}), "amd64"),
        (lambda path: saved(path, oci(DEBIAN)), "amd64"),
        (lambda path: saved(path, oci(DEBIAN, archs=("amd64", "arm64"))), "arm64"),
        (lambda path: folder(path, oci(DEBIAN)), "amd64"),
    ],
    ids=["docker", "two layers", "compressed", "OCI", "two platforms", "folder"],
)
def test_the_archive_is_whole_for_oci_and_for_docker(tmp_path, base: Callable[[Path], Path], arch: str):
    """Every blob has its digest and size, each manifest names the same, and the inventory reads it."""
    written = built(tmp_path, base(tmp_path / "base"), arch)

    with tarfile.open(tmp_path / "out") as made:
        files = {each.name: made.extractfile(each).read() for each in made}
    blobs = {name: data for name, data in files.items() if name.startswith("blobs/")}
    assert all(name == f"blobs/sha256/{digest(data)}" for name, data in blobs.items())
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blobs["blobs/" + entry["digest"].replace(":", "/")])
    paths = ["blobs/" + each["digest"].replace(":", "/") for each in manifest["layers"]]
    (listed,) = json.loads(files["manifest.json"])
    assert (listed["Layers"], listed["RepoTags"]) == (paths, [NAME])
    assert [each["size"] for each in manifest["layers"]] == [len(blobs[path]) for path in paths]
    made_config = json.loads(blobs[listed["Config"]])
    assert (made_config["architecture"], entry["platform"]["architecture"]) == (arch, arch)
    plain = [
        gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        for data in map(blobs.__getitem__, paths)
    ]
    assert made_config["rootfs"]["diff_ids"] == [f"sha256:{digest(data)}" for data in plain]
    assert archive.image(tmp_path / "out", None) == (NAME, written.digest)
    inside = layer(tmp_path).getnames()
    parts = ("contract/status.py", "deviceplugin/__main__.py", "share/__main__.py")
    assert {f"app/gpunode/{part}" for part in parts} < set(inside)
    assert {"app/thing.py", "app/beside.py"} < set(inside)
    assert "app/gpunode/__init__.py" not in inside
    assert not [name for name in inside if name.endswith("run")]


def test_it_runs_the_plugin_as_nobody(tmp_path):
    """Its program and variables, beside those of the base; no GPU is asked for by the image itself."""
    written = built(tmp_path, docker(DEBIAN))

    with tarfile.open(written.file) as made:
        file = made.extractfile(f"blobs/sha256/{written.digest.partition(':')[2]}")
        assert file is not None
        inner = json.load(file)["config"]
    assert (inner["User"], inner["Entrypoint"]) == ("65534:65534", ["python3", "-S"])
    assert inner["Cmd"] == ["-m", "gpunode.deviceplugin"]
    assert "PATH=/usr/local/bin:/usr/bin" in inner["Env"]
    assert [variable for variable in inner["Env"] if variable.startswith("PYTHONPATH")] == ["PYTHONPATH=/app"]
    assert not [variable for variable in inner["Env"] if "VISIBLE_DEVICES" in variable]


@pytest.mark.parametrize("config", [{}, {"config": {"Env": ["LANG=C"]}}, {"config": None}])
def test_a_base_without_a_path_gets_one(config: dict[str, Any]):
    """ctr gives none to an image that has other variables: no program of it was found."""
    made = image._config({"rootfs": {"diff_ids": []}, **config}, b"")["config"]
    assert [variable for variable in made["Env"] if variable.startswith("PATH=")] == [image.PATH]


LOCAL, USUAL = "usr/local/bin/python3", "usr/bin/python3"


@pytest.mark.parametrize(
    ("layers", "python"),
    [
        ([tar({"usr/bin/python3.9": b"", "usr/bin/python3.12": b""})], "3.12"),
        ([tar({"usr/bin/python3.10": b"", "usr/bin/python3.12": b""}, {USUAL: "python3.10"})], "3.10"),
        ([tar({"./usr/bin/python3.11": b""}, {f"./{USUAL}": "/usr/bin/python3.11"})], "3.11"),
        ([tar({"usr/bin/python3.12": b"", PYTHON: b""}, {USUAL: "python3.12", LOCAL: "python3.11"})], "3.11"),
        ([tar({"usr/bin/python3.12": b"", PYTHON: b""}, {USUAL: "python3.12"})], "3.12"),
        (
            [
                tar(
                    {"usr/bin/python3.10": b"", "usr/bin/python3.12": b""},
                    {USUAL: "/etc/alternatives/python3", "etc/alternatives/python3": "/usr/bin/python3.10"},
                )
            ],
            "3.10",
        ),
        (
            [tar({"usr/bin/python3.12": b""}, {USUAL: "python3.10"}), tar({}, {USUAL: "python3.12"})],
            "3.12",
        ),
        ([tar({"usr/bin/python3.12": b""}, {USUAL: "python3"})], "3.12"),
        ([tar({"opt/python/bin/python3.12": b""}, {LOCAL: "/opt/python/bin/python3.12"})], "3.12"),
        ([tar({PYTHON: b"", "usr/bin/python3.12": b""}), tar({"usr/local/bin/.wh.python3.11": b""})], "3.12"),
        ([tar({PYTHON: b"", "usr/bin/python3.12": b""}), tar({"usr/.wh.local": b""})], "3.12"),
        (
            [
                tar({PYTHON: b"", "usr/local/bin/python3.14": b""}),
                tar({PYTHON: b"", "usr/local/bin/.wh..wh..opq": b""}),
            ],
            "3.11",
        ),
        ([tar({"lib/ld-musl-x86_64.so.1": b""}), tar({PYTHON: b"", ".wh.lib": b""})], "3.11"),
    ],
    ids=[
        "as numbers", "link", "absolute link", "local first", "no local link", "alternatives", "later layer",
        "circle", "elsewhere", "removed", "folder removed", "folder emptied", "musl removed",
    ],
)  # fmt: skip
def test_its_python_is_the_one_that_python3_starts(tmp_path, layers: list[bytes], python: str):
    with base.open_base(saved(tmp_path / "base", docker(*layers)), "amd64") as image:
        assert image.python == python


def test_its_modules_are_compiled_for_the_bases_python(tmp_path, monkeypatch: Any):
    """Python reads them whatever the sources' times are, and without hash or stat of a source; traces name the image's paths."""
    monkeypatch.setattr(image, "compile_modules", COMPILE)
    built(tmp_path, docker(tar({MINE: b""})))
    layer(tmp_path).extractall(tmp_path / "root")
    sources = list((tmp_path / "root/app/gpunode").rglob("*.py"))
    assert len(sources) > 30
    for source in sources:
        data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
        assert data[:8] == importlib.util.MAGIC_NUMBER + b"\1\0\0\0"
        assert marshal.loads(data[16:]).co_filename == f"/{source.relative_to(tmp_path / 'root')}"


def test_the_bases_own_modules_are_compiled_where_it_has_none(tmp_path, monkeypatch: Any):
    """Docker's images of Python have sources alone. They are checked at each import, for whoever builds on the image may update them."""
    monkeypatch.setattr(image, "compile_modules", COMPILE)
    version, tag = f"python{sys.version_info.major}.{sys.version_info.minor}", sys.implementation.cache_tag
    lib = f"usr/local/lib/{version}"
    files = {f"usr/local/bin/{version}": b"", f"{lib}/json/__init__.py": b"old = 1", f"{lib}/turtle.py": b"1"}
    files |= {f"{lib}/re/__init__.py": b"1", f"{lib}/re/__pycache__/__init__.{tag}.pyc": b"?"}
    layers = tar(files), tar({f"./{lib}/json/__init__.py": b"new = 1"})
    built(tmp_path, docker(*layers))
    made = layer(tmp_path)
    (name,) = (name for name in made.getnames() if name.startswith(f"{lib}/") and name.endswith(".pyc"))
    assert name == f"{lib}/json/__pycache__/__init__.{tag}.pyc"
    data = made.extractfile(name).read()
    source_hash = importlib.util.source_hash(b"new = 1")
    assert data[:16] == importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + source_hash
    code = marshal.loads(data[16:])
    assert (code.co_names, code.co_filename) == (("new",), f"/{lib}/json/__init__.py")


def test_a_base_with_a_python_that_is_not_here_gets_sources_alone(tmp_path, monkeypatch: Any):
    """Another minor version's modules could not be read."""
    monkeypatch.setattr(image, "compile_modules", COMPILE)
    monkeypatch.setattr(image, "which", lambda _: None)
    assert not built(tmp_path, docker(tar({"usr/bin/python3.99": b""}))).compiled


def test_the_same_base_makes_the_same_bytes(tmp_path, monkeypatch):
    """Whoever writes it, and when: files read later, in another order, with other times."""
    monkeypatch.setattr(image, "compile_modules", COMPILE)
    base = docker(tar({MINE: b""}))
    first = built(tmp_path, base).file.read_bytes()
    listed = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, what: reversed(list(listed(self, what))))
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    assert built(tmp_path, base).file.read_bytes() == first


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (docker(DEBIAN, arch="arm64"), "holds linux/arm64, not linux/amd64\n  Save the base for the nodes'"),
        (docker(tar({"bin/sh": b""})), "has no Python"),
        (docker(tar({PYTHON: b""}), tar({"usr/local/bin/.wh.python3.11": b""})), "has no Python"),
        (docker(tar({"usr/bin/python3.9": b""})), "has Python 3.9; the plugin needs 3.10 or newer"),
        (docker(tar({PYTHON: b"", "lib/ld-musl-x86_64.so.1": b""})), "has musl's C library"),
        (docker(DEBIAN) | {"config.json": config(b"other")}, "layer 0/layer.tar is damaged: its SHA-256 is "),
        (docker(DEBIAN) | {"config.json": config()}, "has 1 layers, its configuration names 0"),
        (docker(b"\x28\xb5\x2f\xfd"), "layer 0/layer.tar is compressed by zstd"),
        ({name: data for name, data in docker(DEBIAN).items() if "layer" not in name}, "not hold its layer"),
        ({"readme": b""}, "holds no complete image (KeyError('index.json'))"),
        ({"manifest.json": b"[1]"}, "holds no complete image"),
        (oci(DEBIAN, archs=("amd64", "amd64")), "holds 2 images for linux/amd64"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(tmp_path, files: Files, words: str):
    """By its name, with the cause; nothing is written."""
    base = str(saved(tmp_path / "base.tar", files))

    with pytest.raises(UsageError) as caught:
        write(base, tmp_path / "plugin.tar", name=NAME, arch="amd64")

    assert str(caught.value).startswith(base)
    assert words in str(caught.value)
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["base.tar"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "base.tar cannot be read: no such file, and no image of a registry"),
        (b"<html>", "base.tar is no image archive"),
        (tar(docker(DEBIAN))[:2000], "base.tar is no image archive, or was cut off"),
    ],
)
def test_what_is_no_archive_is_named(tmp_path, content: bytes | None, words: str):
    """A missing file, a web page, a copy that broke off."""
    if content is not None:
        (tmp_path / "base.tar").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        built(tmp_path, tmp_path / "base.tar")
    assert words in str(caught.value)


@pytest.mark.parametrize("named", ["../beside", "link", "/dev/zero", "pipe", "out", "index.json/x", "in\0"])
def test_no_name_in_a_folder_leads_out_of_it(tmp_path, named: str):
    """Neither as a path nor as a link, to the right layer neither; what may never end is not opened."""
    entry = [{"Config": "config.json", "Layers": [named]}]
    base = folder(
        tmp_path / "base", {"manifest.json": json.dumps(entry).encode(), "config.json": config(DEBIAN)}
    )
    (tmp_path / "beside").write_bytes(DEBIAN)
    (base / "link").symlink_to(tmp_path / "beside")
    os.mkfifo(base / "pipe")
    (base / "out").symlink_to("/dev/zero")
    with pytest.raises(UsageError):
        built(tmp_path, base)


def test_an_archive_that_cannot_be_finished_leaves_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        built(tmp_path, docker(DEBIAN))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out"]


def test_two_runs_that_write_one_archive_do_not_disturb_each_other(tmp_path):
    with base.open_base(saved(tmp_path / "base", docker(DEBIAN)), "amd64") as under:

        def read(name: str) -> Any:
            image.write_archive(tmp_path / "out", under, b"", name=NAME)  # whole, while this one goes on
            return under.open(name)

        image.write_archive(tmp_path / "out", replace(under, open=read), b"x" * 10240, name=NAME)
    assert layer(tmp_path, 0).getnames() == [PYTHON, "usr/bin/python3.9"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out"]


def test_the_base_itself_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="cannot be read: it is no regular file"):
        built(tmp_path, tmp_path / "pipe")


def test_a_layers_digest_is_checked_before_its_names_are_read(tmp_path):
    """So nothing that a registry or a proxy changed is parsed."""
    damaged = docker(b"no tar archive") | {"config.json": config(DEBIAN)}
    with pytest.raises(UsageError, match=r"layer.tar is damaged: its SHA-256 is"):
        built(tmp_path, damaged)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rootfs", None), ("rootfs", []), ("rootfs", {"diff_ids": [1]}), ("rootfs", {"diff_ids": {"a": 1}}),
        ("config", "x"), ("config", {"Env": [1]}), ("config", {"Env": 1}), ("history", {"a": 1}), ("variant", 1),
    ],
)  # fmt: skip
def test_a_configuration_of_other_types_is_no_image(tmp_path, key: str, value: object):
    made = {**json.loads(config(DEBIAN)), key: value}
    files = docker(DEBIAN) | {"config.json": json.dumps(made).encode()}
    with pytest.raises(UsageError):
        built(tmp_path, files)


@pytest.mark.parametrize("index", ['{"manifests": [{"digest": "a:b"}]}', "[" * 100_000, '{"manifests": 1}'])
def test_an_index_that_never_ends_is_no_image(tmp_path, index: str):
    """One that names itself, one that nests."""
    files = {"index.json": index.encode(), "blobs/a/b": index.encode()}
    with pytest.raises(UsageError, match="holds no complete image"):
        built(tmp_path, files)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    base = str(saved(tmp_path / "base", docker(DEBIAN)))
    with pytest.raises(GpunodeError, match="cannot be written: No such file"):
        write(base, tmp_path / "nowhere/plugin.tar", name=NAME, arch="amd64")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arch", "ppc64le"], "Choose one of amd64, arm64."),
        (["--name", "Plugin"], "--name Plugin: not a name with a tag"),
        (["--wheels", "/nowhere"], "--wheels /nowhere: no such folder"),
    ],
)
def test_a_wrong_option_is_found_first(words: list[str], said: str):
    done = CliRunner().invoke(app, ["plugin", "image", "--base", "/nowhere", *words])
    assert said in str(done.exception)


def test_without_a_base_the_ways_to_one_are_named():
    done = CliRunner().invoke(app, ["plugin", "image"])
    assert "no image to build on is named" in str(done.exception)
    assert "skopeo" in str(done.exception)
    done = CliRunner().invoke(app, ["plugin", "image", "--base", "python:3.11"])
    assert "python:3.11 cannot be read: no such file, and no image of a registry" in str(done.exception)
    assert "with host and digest: HOST/NAME@sha256:…" in str(done.exception)
    done = CliRunner().invoke(app, ["plugin", "image", "python.tar"])
    assert "`--base python.tar` names the image to build on." in str(done.exception)


def test_a_wheel_of_another_hash_is_refused(tmp_path, monkeypatch):
    """By pip, whose reason is shown; a folder that has none says what it needs."""
    monkeypatch.undo()
    wheels, dest = tmp_path / "wheels", tmp_path / "dest"
    wheels.mkdir()
    with pytest.raises(GpunodeError, match="pyyaml==") as caught:
        fetch_wheels(dest, python="3.11", machine="x86_64", folder=wheels)
    assert "The folder needs the wheels of " in caught.value.hint
    for line in image.LOCK.read_text().splitlines():
        if "==" in line:
            project, _, version = line.split()[0].partition("==")
            stem = f"{project.replace('-', '_')}-{version}"
            with zipfile.ZipFile(wheels / f"{stem}-py3-none-any.whl", "w") as wheel:
                metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
                wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
                wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    with pytest.raises(GpunodeError, match=r"(?s)DO NOT MATCH THE HASHES.*pyyaml") as caught:
        fetch_wheels(dest, python="3.11", machine="x86_64", folder=wheels)
    assert "not the file that requirements.lock names" in caught.value.hint
