"""What is read from an image archive, in each of its layouts, and what is said of a broken one."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from gpunode.errors import InventoryError
from gpunode.inventory import load
from gpunode.model import PluginImage

CONFIG = b'{"architecture": "amd64"}'
ID = "sha256:" + hashlib.sha256(CONFIG).hexdigest()


def tar(path: Path, files: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as out:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


def docker(*tags: str, config: str = "config.json") -> dict[str, bytes]:
    entry = {"Config": config, "RepoTags": list(tags) or None, "Layers": []}
    return {"manifest.json": json.dumps([entry]).encode(), config: CONFIG}


def blob(files: dict[str, bytes], data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return f"sha256:{digest}"


def oci(annotations: dict[str, str], *, platforms: tuple[str, ...] = ()) -> dict[str, bytes]:
    """An OCI layout; with `platforms` its image is an index of one manifest for each."""
    files: dict[str, bytes] = {"oci-layout": b"{}"}
    manifests = []
    for platform in platforms or ("amd64",):
        config = CONFIG if platform == "amd64" else platform.encode()
        manifest = blob(files, json.dumps({"config": {"digest": blob(files, config)}}).encode())
        manifests.append({"digest": manifest, "platform": {"architecture": platform}})
    top = manifests[0]["digest"]
    if platforms:
        top = blob(files, json.dumps({"manifests": manifests}).encode())
    files["index.json"] = json.dumps({"manifests": [{"digest": top, "annotations": annotations}]}).encode()
    return files


def plugin(folder: Path, image: str = "") -> PluginImage | None:
    file = folder / "inventory.yaml"
    wanted = f', image: "{image}"' if image else ""
    file.write_text(f"cluster: {{plugin: {{archive: image.tar{wanted}}}}}\ngroups: {{g: {{hosts: [a]}}}}\n")
    return load(file).cluster.plugin


NAMED = {"io.containerd.image.name": "docker.io/gpunode/plugin:1"}


@pytest.mark.parametrize(
    ("files", "mode", "reference"),
    [
        (docker("gpunode/plugin:1"), "w", "gpunode/plugin:1"),
        (docker("gpunode/plugin:1"), "w:gz", "gpunode/plugin:1"),
        (docker("gpunode/plugin:1", config="blobs/sha256/abc"), "w", "gpunode/plugin:1"),
        ({f"./{name}": data for name, data in docker("p:1").items()}, "w", "p:1"),
        ({**oci({}), **docker("gpunode/plugin:1")}, "w", "gpunode/plugin:1"),
        (oci(NAMED), "w", "docker.io/gpunode/plugin:1"),
        ({**oci(NAMED), **docker()}, "w", "docker.io/gpunode/plugin:1"),
        (oci({"org.opencontainers.image.ref.name": "example.org/p:2"}), "w", "example.org/p:2"),
        (oci(NAMED, platforms=("unknown", "arm64", "amd64")), "w", "docker.io/gpunode/plugin:1"),
    ],
)
def test_reference_and_id_come_from_the_archive(tmp_path, files, mode, reference):
    """Docker's layout old and new, compressed or not, and OCI's with one platform or several, and ctr's mix."""
    tar(tmp_path / "image.tar", files, mode)
    assert plugin(tmp_path) == PluginImage(reference, archive=str(tmp_path / "image.tar"), image_id=ID)


@pytest.mark.parametrize("image", ["gpunode/plugin:2", "docker.io/gpunode/plugin:2"])
def test_image_chooses_among_several_and_keeps_its_spelling(tmp_path, image):
    """`docker.io/` and `:latest` may be left out on either side."""
    tar(tmp_path / "image.tar", docker("gpunode/plugin:1", "gpunode/plugin:2"))
    assert plugin(tmp_path, image) == PluginImage(image, archive=str(tmp_path / "image.tar"), image_id=ID)


def test_an_image_without_a_tag_is_the_latest(tmp_path):
    """As every runtime reads it."""
    tar(tmp_path / "image.tar", docker("docker.io/library/plugin:latest"))
    assert plugin(tmp_path, "plugin") is not None


@pytest.mark.parametrize(
    ("files", "image", "words"),
    [
        (docker("a/b:1", "a/b:2"), "", "holds a/b:1, a/b:2; choose one with `image`"),
        (docker("a/b:1"), "a/c:1", "does not hold a/c:1; it holds a/b:1"),
        (docker(), "", "holds an image without a name; choose one with `image`"),
        (docker(), "a/b:1", "holds an image without a name; save it by name: docker save a/b:1"),
        ({"readme": b""}, "", "is a tar file but no complete image archive (KeyError('manifest.json'))"),
        ({"manifest.json": b"{"}, "", "is a tar file but no complete image archive"),
        ({"manifest.json": b"[1]"}, "", "is a tar file but no complete image archive"),
        (
            {"manifest.json": b'[{"Config": "x", "RepoTags": ["a:1"]}]'},
            "",
            "no complete image archive (KeyError('x'))",
        ),
        ({"index.json": b'{"manifests": []}'}, "", "holds no image"),
        ({"manifest.json": b"[" * 100_000}, "", "no complete image archive"),
        ({"manifest.json": bytes(5 << 20)}, "", "manifest.json has more than 4194304 bytes"),
        (docker(1), "", "no complete image archive"),
    ],
)
def test_an_archive_that_does_not_fit_is_a_mistake_of_the_inventory(tmp_path, files, image, words):
    """The line names the archive's key, and what is in the archive."""
    tar(tmp_path / "image.tar", files)
    with pytest.raises(InventoryError) as caught:
        plugin(tmp_path, image)
    (problem,) = caught.value.problems
    assert problem.startswith(
        f"{tmp_path}/inventory.yaml:1:29: cluster.plugin.archive: {tmp_path}/image.tar "
    )
    assert words in problem


@pytest.mark.parametrize("data", [b"", b"no tar at all", b"\x1f\x8b\x08\x00cut off"])
def test_what_is_no_tar_file_is_reported(tmp_path, data):
    """Such as the web page of a proxy that was saved instead."""
    (tmp_path / "image.tar").write_bytes(data)
    with pytest.raises(InventoryError) as caught:
        plugin(tmp_path)
    (problem,) = caught.value.problems
    assert f"{tmp_path}/image.tar is no image archive, or was cut off" in problem
    assert problem.endswith("; write one with `gpunode plugin image` or `docker save -o FILE IMAGE`")


def test_a_truncated_archive_is_reported(tmp_path):
    """A copy that broke off is found here, not on the first node."""
    tar(tmp_path / "whole.tar", {**docker("a/b:1"), "layer.tar": bytes(100_000)})
    (tmp_path / "image.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[:20_000])
    with pytest.raises(InventoryError, match=r"image\.tar is no image archive, or was cut off;"):
        plugin(tmp_path)
