"""The device managers of old kubelets, as programs of their own: Kubernetes' own files, compiled without the kubelet.

What speaks to device plugins is a few files of a kubelet, and the packages that they use: these are as they were, gRPC
too. In place of the rest are the lab's own files, in go/device-manager and go/kubernetes-<minor>: the types of
pkg/kubelet/container, and of 1.8's container manager what is around GetResources.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from . import builds, cache
from .builds import HERE
from .process import run

COMMON = HERE / "go" / "device-manager"
MODULE = "k8s.io/kubernetes"
STAGING = ("api", "apiextensions-apiserver", "apimachinery", "apiserver", "client-go")
# Packages below pkg/kubelet of which only these files are taken: their others bring in all of Kubernetes.
FILES = {
    "1.8": {"cm": ["device_plugin_handler.go"], "container": []},
    "1.9": {"config": ["sources.go"], "lifecycle": ["interfaces.go"], "container": []},
}
FILES["1.10"] = FILES["1.9"]


def device_manager(minor: str) -> Path:
    """The program, from the cache or compiled now; it takes requests on stdin (see go/device-manager/main.go)."""
    part = HERE / "go" / f"kubernetes-{minor}"
    inputs = [COMMON, part, Path(__file__)]
    return cache.entry(f"device-manager-{minor}", inputs, lambda folder: build(minor, folder)) / "lab"


def build(minor: str, folder: Path) -> None:
    """Compile it into `folder`."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        lay(minor, work)
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", f"{folder}/lab", "."]
        run(command, cwd=work, env={**os.environ, **builds.ENVIRONMENT, "CGO_ENABLED": "0"})


def lay(minor: str, work: Path) -> None:
    """Put into `work` what is to be compiled: Kubernetes' files as links, and the lab's beside them."""
    part = HERE / "go" / f"kubernetes-{minor}"
    source = builds.module(part, MODULE)
    kubernetes, kubelet = work / MODULE, work / MODULE / "pkg/kubelet"
    _link(source, kubernetes, besides=["pkg", "go.mod"])
    _link(source / "pkg", kubernetes / "pkg", besides=["kubelet"])
    _link(source / "pkg/kubelet", kubelet, besides=FILES[minor])
    for package, names in FILES[minor].items():
        (kubelet / package).mkdir()
        for name in names:
            (kubelet / package / name).symlink_to(source / "pkg/kubelet" / package / name)
    if minor == "1.8":
        (kubelet / "cm/resources.go").write_text(_resources(source))
    for module in STAGING:
        _link(source / "staging/src/k8s.io" / module, work / "k8s.io" / module, besides=[])
    for ours in (COMMON, part):
        shutil.copytree(ours, work, dirs_exist_ok=True)
    with (work / "go.mod").open("a") as file:
        for module in (MODULE, *(f"k8s.io/{each}" for each in STAGING)):
            (work / module / "go.mod").write_text(f"module {module}\n")
            file.write(f"replace {module} => ./{module}\n")
        file.writelines(f"require k8s.io/{each} v0.0.0\n" for each in STAGING)


def _resources(source: Path) -> str:
    """What becomes of a plugin's answers in 1.8: one method out of a file that has the cgroups, too."""
    file = (source / "pkg/kubelet/cm/container_manager_linux.go").read_text()
    head, begin, rest = file.partition("func (cm *containerManagerImpl) GetResources(")
    body, end, _ = rest.partition("\n}\n")
    used = ("github.com/golang/glog", "k8s.io/api/core/v1", "k8s.io/kubernetes/pkg/kubelet/container")
    imports = [line for line in head.splitlines() if line.endswith(tuple(f'"{module}"' for module in used))]
    return "\n".join(["package cm", "import (", *imports, ")", begin + body + end])


def _link(source: Path, folder: Path, besides: Iterable[str]) -> None:
    """Make `folder` have all that `source` has, as links, but for some names."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in besides:
            (folder / path.name).symlink_to(path)
