"""The finished archive: OCI's layout, and docker's manifest of the same blobs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from gpunode.errors import UsageError
from gpunode.inventory.archive import full
from gpunode.links.plugin.image.base import Base

OCI = "application/vnd.oci.image"
BEGINNING = "1970-01-01T00:00:00Z"
# Nobody, but for the plugin itself: the kubelet's socket directory is root's, so its DaemonSet has runAsUser: 0, without
# any capability, and NVIDIA_VISIBLE_DEVICES=all; from the image it would show every GPU to every pod of this image.
USER = "65534:65534"
ENTRYPOINT, COMMAND = ("python3",), ("-m", "gpunode.deviceplugin")
ENVIRONMENT = {
    "PYTHONPATH": "/app",
    "PYTHONUNBUFFERED": "1",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
# Of a base without one; containerd's ctr gives an image with any variable none. This is docker's own
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write(to: Path, base: Base, layer: bytes, *, name: str) -> str:
    """Write the image to `to`, which appears whole or not at all; its id. Raises UsageError where it cannot."""
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
    part = to.with_name(f".{to.name}.part")
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
            for one in {layer.digest: layer for layer in base.layers}.values():
                member = tarfile.TarInfo(_path(one.digest))
                member.size = one.size
                with base.open(one.name) as file:
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
    kept = [one for one in inner.get("Env") or [] if one.partition("=")[0] not in ENVIRONMENT]
    kept += [] if any(one.startswith("PATH=") for one in kept) else [PATH]
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
