"""A demo's folder: the files that a user of a real fleet has, for the simulated one.

inventory.yaml  kubeconfig  id_ed25519  known_hosts  packages.asc  plugin.tar
programs/  hosts/NAME/
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpunode.sim.host.kinds import MODELS
from gpunode.sim.host.machine import Machine

ARCHIVE = "plugin.tar"
IMAGE = "gpunode-deviceplugin:demo"
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----
Comment: no key at all: the packages of the simulation are not signed

=demo
-----END PGP PUBLIC KEY BLOCK-----
"""
REPOSITORIES = {
    "driver": {"uri": "http://packages.demo.example/cuda", "key": "packages.asc"},
    "toolkit": {"uri": "http://packages.demo.example/libnvidia-container", "key": "packages.asc"},
}


def write_files(demo: Path, ports: Mapping[str, int]) -> None:
    """The inventory of the described groups, with every host's port, and the files that it names."""
    described = _read_groups(demo)
    for group in described["groups"].values():
        for host in group["hosts"]:
            host |= {"address": "127.0.0.1", "ssh": {"port": ports[host["name"]]}}
    (demo / "packages.asc").write_text(KEY, encoding="utf-8")
    write_archive(demo / ARCHIVE)
    cluster = {"kubeconfig": "kubeconfig", "plugin": {"archive": ARCHIVE}, **described["cluster"]}
    data = {
        "cluster": {key: value for key, value in cluster.items() if value is not None},
        "defaults": {
            "ssh": {
                "user": "demo",
                "key": "id_ed25519",
                "known_hosts": "known_hosts",
                "host_key_check": "strict",
            },
            "repositories": REPOSITORIES,
        },
        "groups": described["groups"],
    }
    text = yaml.safe_dump(data, sort_keys=False, width=100)
    comment = "# Written by `gpunode demo`: these hosts and this cluster are simulated.\n"
    (demo / "inventory.yaml").write_text(comment + text, encoding="utf-8")


def pullable_images(demo: Path) -> tuple[str, ...]:
    """The images that the described cluster's nodes can pull: the plugin's, if the inventory names no archive."""
    image = (_read_groups(demo)["cluster"].get("plugin") or {}).get("image")
    return (image,) if image else ()


def deploys_plugin(demo: Path) -> bool:
    return _read_groups(demo)["cluster"].get("plugin", ARCHIVE) is not None


def _read_groups(demo: Path) -> dict[str, Any]:
    return dict(json.loads((demo / "groups.json").read_text(encoding="utf-8")))


def write_groups(
    demo: Path,
    groups: Mapping[str, Mapping[str, Any]],
    cluster: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write groups as in the inventory's schema, with hosts as mappings without address; cluster settings, and the files that
    those name."""
    text = json.dumps({"groups": groups, "cluster": cluster or {}})
    (demo / "groups.json").write_text(text, encoding="utf-8")
    for name, content in (files or {}).items():
        (demo / name).write_text(content, encoding="utf-8")


def metrics_urls(demo: Path) -> dict[str, str]:
    """The URLs of the device plugins' metrics by host; none if the described cluster's plugin serves none."""
    if not (_read_groups(demo)["cluster"].get("plugin") or {}).get("metrics"):
        return {}
    return dict(json.loads((demo / "demo.json").read_text(encoding="utf-8"))["metrics"])


def group_by_kind(machines: Sequence[Machine]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for machine in machines:
        groups.setdefault(_kind(machine), {"hosts": []})["hosts"].append({"name": machine.name})
    return groups


def _kind(machine: Machine) -> str:
    devices = {gpu.device for gpu in machine.gpus}
    return next((name for name, model in MODELS.items() if model.device in devices), "cpu")


def write_archive(path: Path) -> None:
    """A `docker save` file of a tiny image; the simulation runs its program as a process of this computer."""
    layer = io.BytesIO()
    tarfile.open(fileobj=layer, mode="w").close()
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["python", "-m", "gpunode.deviceplugin"]},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for file, data in (
            (name, config),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(file)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
