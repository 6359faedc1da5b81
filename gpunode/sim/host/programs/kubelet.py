"""The kubelet's start on a simulated host: its arguments as systemd combines them, and its fatal errors."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.programs.runtimes import Unusable

UNIT = "kubelet.service"
GONE = {"DevicePlugins": 28}  # feature gates and the Kubernetes minor that no longer knows them
LOCKED = {"DevicePlugins": 26}


def arguments(root: Path) -> list[str]:
    """The command line from the unit, its drop-ins and their environment files."""
    variables: dict[str, str] = {}
    command = ""
    folders = [root / "lib/systemd/system", root / "etc/systemd/system"]
    units = [path for folder in folders if (path := folder / UNIT).exists()]
    drop_ins = sorted((path for folder in folders for path in folder.glob(f"{UNIT}.d/*.conf")), key=_name)
    for path in [*units[-1:], *drop_ins]:
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.strip().partition("=")
            if key == "Environment":
                variables |= dict(word.split("=", 1) for word in shlex.split(value))
            elif key == "EnvironmentFile":
                variables |= _environment(root / value.lstrip("-/"))
            elif key == "ExecStart":
                command = value
    words = []
    for word in command.split():
        words += shlex.split(variables.get(word[1:], "")) if word.startswith("$") else [word]
    return words


def _name(path: Path) -> str:
    return path.name


def _environment(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*([A-Za-z_]\w*)=(.*)", line)
        if match:
            value = match[2].strip()
            found[match[1]] = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
    return found


def configuration(root: Path, words: list[str]) -> dict[str, Any]:
    """Its configuration file."""
    import yaml

    path = root / (flag(words, "config") or "/var/lib/kubelet/config.yaml").lstrip("/")
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unusable(f"E1121 server.go:204] failed to load kubelet config file, error: {error}") from None


def flag(words: list[str], name: str) -> str | None:
    """The last value that a flag is given as --name=value."""
    found = [word.split("=", 1)[1] for word in words if word.startswith(f"--{name}=")]
    return found[-1] if found else None


def gates(root: Path, words: list[str]) -> dict[str, bool]:
    """The feature gates that its configuration and arguments set."""
    found = dict(configuration(root, words).get("featureGates") or {})
    for word in words:
        if word.startswith("--feature-gates="):
            pairs = (pair.partition("=") for pair in word.split("=", 1)[1].split(",") if pair)
            found |= {name: value.lower() == "true" for name, _, value in pairs}
    return found


def check(root: Path, machine: Machine, now: Now) -> None:
    """Raises Unusable with the message with which a kubelet of this version exits."""
    minor = int(machine.kubelet.split(".")[1])
    for name, value in gates(root, now.arguments).items():
        if name in GONE and minor >= GONE[name]:
            words = f"failed to set feature gates from initial flags-based config: unrecognized feature gate: {name}"
            raise Unusable(f'E1121 run.go:72] "command failed" err="{words}"')
        if name in LOCKED and minor >= LOCKED[name] and not value:
            words = f"cannot set feature gate {name} to false, feature is locked to true"
            raise Unusable(f'E1121 run.go:72] "command failed" err="{words}"')
    if not now.running(f"{machine.runtime}.service"):
        words = f"validate service connection: {machine.runtime} does not answer: connection refused"
        raise Unusable(f'E1121 run.go:72] "command failed" err="failed to run Kubelet: {words}"')
