"""What the lab compiles from Go modules: Kubernetes, containerd, NVIDIA's toolkit and device plugin; and pause.

The module versions and their checksums are in go/<part>/go.mod and go.sum; the versions named here only fill in
what the programs answer to `--version`.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .process import run

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ENVIRONMENT = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off"}


@dataclass(frozen=True, slots=True)
class Part:
    """One go.mod, and the commands that are built from it."""

    name: str
    commands: tuple[str, ...]
    ldflags: str
    cgo: bool = True


def _kubernetes(version: str, *commands: str, more: str = "") -> Part:
    minor = version.split(".")[1]
    stamp = "k8s.io/component-base/version"
    flags = (
        f"{more} -s -w -X {stamp}.gitVersion=v{version} -X {stamp}.gitMajor=1 -X {stamp}.gitMinor={minor}"
        f" -X k8s.io/client-go/pkg/version.gitVersion=v{version}"
    )
    return Part(f"kubernetes-1.{minor}", tuple(f"k8s.io/kubernetes/cmd/{c}" for c in commands), flags)


_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_CONTAINERD = "github.com/containerd/containerd/v2"
# as NVIDIA links: NVML's symbols are looked up when libnvidia-ml.so.1 has been opened
_NVML = "-s -w '-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'"

KUBERNETES = _kubernetes(
    "1.36.3", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"
)
# 1.23 pulls in an x/sys that reaches into the runtime by linkname, which Go refuses since 1.23
KUBERNETES_LEGACY = _kubernetes("1.23.17", "kubelet", more="-checklinkname=0")
# the newest below 1.31 that the module proxy has whole
KUBERNETES_MIDDLE = _kubernetes("1.30.14", "kubelet")
CONTAINERD = Part(
    "containerd",
    tuple(f"{_CONTAINERD}/cmd/{c}" for c in ("containerd", "containerd-shim-runc-v2", "ctr")),
    f"-s -w -X {_CONTAINERD}/version.Version=2.2.0",
    cgo=False,
)
TOOLKIT = Part(
    "container-toolkit",
    tuple(
        f"{_TOOLKIT}/cmd/{c}"
        for c in (
            "nvidia-ctk",
            "nvidia-container-runtime",
            "nvidia-container-runtime-hook",
            "nvidia-cdi-hook",
        )
    ),
    f"{_NVML} -X {_TOOLKIT}/internal/info.version=1.20.1",
)
# the newest that the module proxy has
NVIDIA_PLUGIN = Part(
    "nvidia-device-plugin",
    (f"{_PLUGIN}/cmd/nvidia-device-plugin",),
    f"{_NVML} -X {_PLUGIN}/internal/info.version=0.19.1",
)


def go(part: Part) -> Path:
    """The folder with the part's commands, from the cache or compiled now."""

    def build(folder: Path) -> None:
        command = ["go", "build", "-trimpath", "-ldflags", part.ldflags, "-o", f"{folder}/", *part.commands]
        env = {**os.environ, **ENVIRONMENT, "CGO_ENABLED": "1" if part.cgo else "0"}
        run(command, cwd=source, env=env)

    source = HERE / "go" / part.name
    return cache.entry(part.name, [source, *part.commands, part.ldflags, str(part.cgo)], build)


def source(part: Part) -> Path:
    """The Go module that has the part's commands, checked against the lab's go.sum: what is not in the programs."""
    return module(HERE / "go" / part.name, part.commands[0].partition("/cmd/")[0])


def module(folder: Path, name: str) -> Path:
    """The Go module of this name that the go.mod in `folder` asks for, checked against its go.sum."""

    def asked(*command: str) -> str:
        env = {**os.environ, **ENVIRONMENT}
        return str(json.loads(run(["go", *command, "-json", name], cwd=folder, env=env)).get("Dir", ""))

    # where the programs came from the cache, the module may never have been downloaded
    return Path(asked("list", "-m") or asked("mod", "download"))


def pause() -> Path:
    """The folder with the static program that holds a pod's namespaces."""

    def build(folder: Path) -> None:
        run(["gcc", "-Os", "-s", "-static", "-Wall", "-Werror", "-o", folder / "pause", source])

    source = HERE / "images" / "pause.c"
    return cache.entry("pause", [source], build)
