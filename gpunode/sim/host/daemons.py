"""What dockerd, containerd and the kubelet of a simulated host make of their configuration, and the loading of images."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from gpunode.sim.host.answers import full_name
from gpunode.sim.host.machine import Machine, Now, RuntimeNow
from gpunode.sim.host.state import State

KUBELET = "kubelet.service"
GONE = {"DevicePlugins": 28}  # feature gates and the Kubernetes minor that no longer knows them
LOCKED = {"DevicePlugins": 26}


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
    runtime, text = containerd_config(state.root / "etc/containerd/config.toml")
    (state.folder / "answers/containerd-dump").write_text(text, encoding="utf-8")
    return runtime, text


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


def load_image(state: State, _arguments: list[str]) -> int:
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


def remove_image(state: State, arguments: list[str]) -> int:
    """`docker rmi NAME`, and `ctr images rm NAME`, which completes no name and fails for none."""
    runtime, name = arguments
    with state.change() as now:
        known = {each if runtime == "docker" else full_name(each): each for each in now.images}
        now.images.pop(known.get(name, ""), None)
    return 0


def kubelet_arguments(root: Path) -> list[str]:
    """The command line from the unit, its drop-ins and their environment files."""
    variables: dict[str, str] = {}
    command = ""
    folders = [root / "lib/systemd/system", root / "etc/systemd/system"]
    units = [path for folder in folders if (path := folder / KUBELET).exists()]
    drop_ins = sorted(
        (path for folder in folders for path in folder.glob(f"{KUBELET}.d/*.conf")),
        key=lambda path: path.name,
    )
    for path in [*units[-1:], *drop_ins]:
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.strip().partition("=")
            if key == "Environment":
                variables |= dict(word.split("=", 1) for word in shlex.split(value))
            elif key == "EnvironmentFile":
                variables |= _environment(root / value.lstrip("-/"))
            elif key == "ExecStart":
                command = value
    arguments = []
    for word in command.split():
        arguments += shlex.split(variables.get(word[1:], "")) if word.startswith("$") else [word]
    return arguments


def _environment(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    variables = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*([A-Za-z_]\w*)=(.*)", line)
        if match:
            value = match[2].strip()
            variables[match[1]] = (
                value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
            )
    return variables


def kubelet_configuration(root: Path, arguments: list[str]) -> dict[str, Any]:
    import yaml

    path = root / (_flag(arguments, "config") or "/var/lib/kubelet/config.yaml").lstrip("/")
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unusable(f"E1121 server.go:204] failed to load kubelet config file, error: {error}") from None


def _flag(arguments: list[str], name: str) -> str | None:
    """The last value that a flag is given as --name=value."""
    values = [word.split("=", 1)[1] for word in arguments if word.startswith(f"--{name}=")]
    return values[-1] if values else None


def feature_gates(root: Path, arguments: list[str]) -> dict[str, bool]:
    """The feature gates that its configuration and arguments set."""
    gates = dict(kubelet_configuration(root, arguments).get("featureGates") or {})
    for word in arguments:
        if word.startswith("--feature-gates="):
            pairs = (pair.partition("=") for pair in word.split("=", 1)[1].split(",") if pair)
            gates |= {name: value.lower() == "true" for name, _, value in pairs}
    return gates


def check_kubelet(root: Path, machine: Machine, now: Now) -> None:
    """Raises Unusable with the message with which a kubelet of this version exits."""
    minor = int(machine.kubelet.split(".")[1])
    for name, value in feature_gates(root, now.arguments).items():
        if name in GONE and minor >= GONE[name]:
            why = f"failed to set feature gates from initial flags-based config: unrecognized feature gate: {name}"
            raise Unusable(f'E1121 run.go:72] "command failed" err="{why}"')
        if name in LOCKED and minor >= LOCKED[name] and not value:
            why = f"cannot set feature gate {name} to false, feature is locked to true"
            raise Unusable(f'E1121 run.go:72] "command failed" err="{why}"')
    if not now.is_active(f"{machine.runtime}.service"):
        why = f"validate service connection: {machine.runtime} does not answer: connection refused"
        raise Unusable(f'E1121 run.go:72] "command failed" err="failed to run Kubelet: {why}"')
