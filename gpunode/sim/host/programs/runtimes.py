"""dockerd, containerd and the loading of images on a simulated host."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpunode.sim.host.machine import RuntimeNow
from gpunode.sim.host.state import State

DAEMON_KEYS = frozenset(
    (
        "runtimes",
        "default-runtime",
        "exec-opts",
        "registry-mirrors",
        "insecure-registries",
        "log-driver",
        "log-opts",
        "storage-driver",
        "storage-opts",
        "data-root",
        "live-restore",
        "default-ulimits",
        "max-concurrent-downloads",
        "dns",
        "bip",
        "mtu",
        "debug",
        "features",
    )
)


class Unusable(Exception):
    """A runtime does not start with this configuration; the message is the runtime's."""


def docker_config(path: Path) -> RuntimeNow:
    """dockerd's configuration, from daemon.json."""
    try:
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise Unusable(
            f"unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid JSON: {error}"
        ) from None
    unknown = sorted(set(data) - DAEMON_KEYS)
    if unknown:
        raise Unusable(
            "unable to configure the Docker daemon with file /etc/docker/daemon.json: the following directives "
            f"don't match any configuration option: {', '.join(unknown)}"
        )
    handlers = ["io.containerd.runc.v2", "io.containerd.runtime.v1.linux", "runc", *data.get("runtimes", {})]
    default = data.get("default-runtime", "runc")
    if default not in handlers:
        raise Unusable(f"specified default runtime '{default}' does not exist")
    driver = "systemd" if "native.cgroupdriver=systemd" in data.get("exec-opts", ()) else "cgroupfs"
    return RuntimeNow(handlers, default, driver)


def containerd_config(path: Path) -> tuple[RuntimeNow, str]:
    """containerd's configuration from its file, and the output of `config dump`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = path.read_text(encoding="utf-8") if path.exists() else "version = 3\n"
    try:
        data = tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise Unusable(f"containerd: failed to load TOML from /etc/containerd/config.toml: {error}") from None
    plugins = data.get("plugins", {})
    section: dict[str, Any] = {}
    for name in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"):
        section = plugins.get(name, {}).get("containerd", {}) or section
    handlers = list(section.get("runtimes", {"runc": {}}))
    return RuntimeNow(handlers, section.get("default_runtime_name", "runc")), text


def dump(state: State) -> tuple[RuntimeNow, str]:
    """containerd's configuration from its own file; writes its dump, which is reused until the file is newer."""
    found, text = containerd_config(state.root / "etc/containerd/config.toml")
    (state.folder / "answers/containerd-dump").write_text(text, encoding="utf-8")
    return found, text


def dockerd(_state: State, arguments: list[str]) -> int:
    """`dockerd --validate --config-file FILE`."""
    try:
        docker_config(Path(arguments[-1]))
    except Unusable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print("configuration OK")
    return 0


def containerd(state: State, arguments: list[str]) -> int:
    """`containerd [--config FILE] config dump`."""
    own = state.root / "etc/containerd/config.toml"
    path = Path(arguments[arguments.index("--config") + 1]) if "--config" in arguments else own
    try:
        _, text = dump(state) if path == own else containerd_config(path)
    except Unusable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print(text, end="")
    return 0


def load(state: State, _arguments: list[str]) -> int:
    """`docker load` and `ctr images import -`: an archive as `docker save` writes it, on standard input."""
    import hashlib
    import tarfile

    images = {}
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
            files = {
                member.name: file.read()
                for member in tar
                if (member.name.endswith(".json") or member.name.startswith("blobs/"))
                and member.size < 1 << 20
                and (file := tar.extractfile(member))
            }
        for entry in json.loads(files["manifest.json"]):
            digest = hashlib.sha256(files[entry["Config"]]).hexdigest()
            images.update(dict.fromkeys(entry["RepoTags"] or (), f"sha256:{digest}"))
    except (tarfile.TarError, KeyError, ValueError) as error:
        sys.stderr.write(f"unrecognized image format: {error}\n")
        return 1
    with state.change() as now:
        now.images |= images
    for name in images:
        print(f"Loaded image: {name}")
    return 0
