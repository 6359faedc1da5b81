"""The reference and id of the image in a `docker save` or OCI archive."""

import hashlib
import json
from pathlib import Path
from typing import Any

from gpunode.local import tars

LARGEST = 4 << 20  # bytes of a manifest or configuration, as registries bound them
NAME = "io.containerd.image.name"


def image(archive: Path, reference: str | None) -> tuple[str, str]:
    """(reference, image id) of the archive's image, or of `reference` among several.

    The id is the digest of the image's configuration, as container runtimes use it. Raises ValueError with one sentence.
    """
    try:
        with tars.open_archive(archive) as tar:
            images = contents(tar)
        named = {full(name): (name, digest) for name, digest in images if name}
    except tars.BROKEN:
        raise ValueError(
            f"{archive} is no image archive, or was cut off; write one with `gpunode plugin image` or `docker save -o FILE IMAGE`"
        ) from None
    except OSError as error:
        raise ValueError(f"{archive} cannot be read: {error.strerror or error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{archive} is a tar file but no complete image archive ({error!r})") from None
    if not images:
        raise ValueError(f"{archive} holds no image")
    names = ", ".join(name for name, _ in named.values()) or "an image without a name"
    if reference is None:
        if len(named) != 1:
            raise ValueError(f"{archive} holds {names}; choose one with `image`")
        return next(iter(named.values()))
    if not named and len(images) == 1:
        raise ValueError(f"{archive} holds an image without a name; save it by name: docker save {reference}")
    if full(reference) not in named:
        raise ValueError(f"{archive} does not hold {reference}; it holds {names}")
    return reference, named[full(reference)][1]


def contents(tar: tars.Archive) -> list[tuple[str | None, str]]:
    """(reference, image id) of every name in the archive. `manifest.json` is Docker's, `index.json` OCI's."""

    def blob(name: str) -> bytes:
        with tar.open(name) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"{name} has more than {LARGEST} bytes")
        return data

    def digest(config: str) -> str:
        return f"sha256:{hashlib.sha256(blob(config)).hexdigest()}"

    images: list[tuple[str | None, str]] = []
    if "manifest.json" in tar:
        entries = json.loads(blob("manifest.json"))
        images = [(tag, digest(entry["Config"])) for entry in entries for tag in entry["RepoTags"] or [None]]
        if "index.json" not in tar or any(tag for tag, _ in images):
            return images
    if "index.json" not in tar:
        raise KeyError("manifest.json")
    index = json.loads(blob("index.json"))["manifests"]
    return [(reference_of(entry), digest(config_path(blob, entry))) for entry in index] or images


def reference_of(entry: dict[str, Any]) -> str | None:
    """The reference of a manifest in the index, None without one. OCI's own annotation is often only a tag."""
    notes = entry.get("annotations") or {}
    reference = notes.get(NAME) or notes.get("org.opencontainers.image.ref.name") or ""
    return reference if "/" in reference or ":" in reference else None


def config_path(blob: Any, entry: dict[str, Any]) -> str:
    """The path of the image's configuration; linux/amd64 of an image for several platforms."""
    manifest = json.loads(blob(blob_path(entry["digest"])))
    if "manifests" not in manifest:
        return blob_path(manifest["config"]["digest"])
    # An attestation is unknown
    real = [inner for inner in manifest["manifests"] if platform(inner) != "unknown"]
    chosen = next((inner for inner in real if platform(inner) == "amd64"), real[0])
    return config_path(blob, chosen)


def platform(entry: dict[str, Any]) -> str | None:
    return (entry.get("platform") or {}).get("architecture")


def blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def full(reference: str) -> str:
    """The reference as runtimes complete it: with registry, `library/` and `:latest`."""
    first, _, rest = reference.partition("/")
    if not rest or not ({".", ":"} & set(first) or first == "localhost"):
        reference = f"docker.io/{reference}" if rest else f"docker.io/library/{reference}"
    tail = reference.rsplit("/", 1)[1]
    return reference if ":" in tail or "@" in tail else f"{reference}:latest"
