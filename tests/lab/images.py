"""Container images: the two hosts, a Python to build on, and the small images that pods use.

All of them come from one debootstrap of the machine's own Debian archive; the archive of each set is kept in the
cache, so that a warm start only loads it.
"""

import contextlib
import io
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import builds, cache, machine
from .builds import HERE
from .docker import NETWORK, docker
from .process import run
from .progress import LabError, step
from .slot import Slot

FILES = HERE / "images"
NAMES = ("modern", "legacy", "python")
PAUSE = "gpunode-lab/pause:1"
BUSYBOX = "gpunode-lab/busybox:1"
HOSTS_USR = "gpunode-lab/hosts-usr:1"

HOST = [
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "iproute2", "iptables", "kmod"),
    *("procps", "gnupg", "conntrack", "socat", "containernetworking-plugins", "ca-certificates", "pciutils"),
    *("less", "dkms"),
]
MODERN = ["runc"]
LEGACY = ["docker.io"]
PYTHON = ["python3-minimal", "libpython3-stdlib"]


@dataclass(frozen=True, slots=True)
class Images:
    """Names in the lab's docker, and the archive of the small images that nodes load."""

    modern: str
    legacy: str
    python: str
    small: Path


def ensure(slot: Slot) -> Images:
    """Load the images into the lab's docker, building what the cache does not have."""
    modern, legacy = builds.go(builds.KUBERNETES), builds.go(builds.KUBERNETES_LEGACY)
    containerd, pause = builds.go(builds.CONTAINERD), builds.pause()

    def build(folder: Path) -> None:
        _debian(slot)
        _image(slot, "host", HOST, {})
        commands = {name: containerd / name for name in ("containerd", "containerd-shim-runc-v2", "ctr")}
        _image(slot, "modern", MODERN, {"kubelet": modern / "kubelet", **commands})
        _image(slot, "legacy", LEGACY, {"kubelet": legacy / "kubelet"})
        _image(slot, "python", PYTHON, {})
        _flatten(slot, "gpunode-lab/python:new")
        names = [f"gpunode-lab/{name}:new" for name in NAMES]
        docker(slot, "save", "-o", folder / "images.tar", *names)
        for name in names:
            packages = docker(slot, "run", "--rm", "--network=none", "--entrypoint=dpkg-query", name, "-W")
            (folder / f"{name.split('/')[1].split(':')[0]}.packages").write_text(packages + "\n")
        _small(slot, pause / "pause")
        docker(slot, "save", "-o", folder / "small.tar", PAUSE, BUSYBOX, HOSTS_USR)

    wanted = sorted({*HOST, *MODERN, *LEGACY, *PYTHON, "busybox-static"})
    folder = cache.entry(
        "images",
        [FILES, Path(__file__), modern, legacy, containerd, pause, *wanted, machine.versions(wanted)],
        build,
    )
    tag = folder.name.removeprefix("images-")
    modern_image, legacy_image, python_image = (f"gpunode-lab/{name}:{tag}" for name in NAMES)
    images = Images(modern_image, legacy_image, python_image, folder / "small.tar")
    if docker(slot, "images", "-q", images.legacy) == "":
        with step(f"{slot.out.name}: load the hosts' images"):
            docker(slot, "load", "-i", folder / "images.tar")
            for name in NAMES:
                docker(slot, "tag", f"gpunode-lab/{name}:new", f"gpunode-lab/{name}:{tag}")
        _forget_old(slot, tag)
    return images


def _forget_old(slot: Slot, tag: str) -> None:
    """Remove the images of earlier inputs, but those that a host still runs from."""
    names = docker(
        slot, "images", "--filter=reference=gpunode-lab/*", "--format={{.Repository}}:{{.Tag}}"
    ).split()
    for name in names:
        if not name.endswith((f":{tag}", ":new", ":1")):
            with contextlib.suppress(LabError):
                docker(slot, "rmi", name)


def _debian(slot: Slot) -> None:
    """A minimal Debian 12 as an image."""

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=cache.root()) as work:
            root = Path(work) / "root"
            keyring = f"--keyring={machine.KEYRING}"
            run(["debootstrap", "--variant=minbase", keyring, "bookworm", root, machine.mirror()])
            shutil.rmtree(root / "var/cache/apt/archives")
            (root / "etc/apt/sources.list").unlink()  # ours comes as a file of sources.list.d
            run(["tar", "-C", root, "--numeric-owner", "-cf", folder / "root.tar", "."])

    archive = (
        cache.entry("debian", [machine.versions(["base-files", "libc6", "apt", "dpkg"])], build) / "root.tar"
    )
    docker(slot, "import", archive, "gpunode-lab/debian:new")


def _image(slot: Slot, name: str, packages: list[str], commands: dict[str, Path]) -> None:
    """Build images/<name>.Dockerfile; `commands` land in its context as bin/."""
    with step(f"image {name}"), tempfile.TemporaryDirectory(dir=cache.root()) as work:
        context = Path(work)
        (context / "apt/sources.list.d").mkdir(parents=True)
        (context / "apt/apt.conf.d").mkdir()
        (context / "apt/sources.list.d/debian.sources").write_text(machine.sources())
        (context / "apt/apt.conf.d/90machine").write_text(machine.apt_options())
        (context / "bin").mkdir()
        for command, path in commands.items():
            shutil.copy2(path, context / "bin" / command)
        file = f"--file={FILES / name}.Dockerfile"
        tag = f"gpunode-lab/{name}:new"
        arguments = ["--build-arg", f"PACKAGES={' '.join(packages)}"]
        docker(slot, "build", f"--network={NETWORK}", file, "-t", tag, *arguments, context)


def _flatten(slot: Slot, name: str) -> None:
    """Make the image one layer: what its later layers remove or replace is gone from its size, and from each copy."""
    container = docker(slot, "create", name)
    with tempfile.NamedTemporaryFile(dir=cache.root()) as archive:
        docker(slot, "export", "-o", archive.name, container)
        docker(slot, "rm", container)
        docker(slot, "import", "--change", 'CMD ["python3"]', archive.name, name)


def _small(slot: Slot, pause: Path) -> None:
    """The image that holds a pod's namespaces, one with a shell for test pods, and one whose pods mount their host's /usr."""
    _import(slot, PAUSE, {"pause": pause}, {}, ['ENTRYPOINT ["/pause"]', "USER 65535:65535"])
    applets = {f"bin/{applet}": "busybox" for applet in run(["/bin/busybox", "--list"]).split()}
    del applets["bin/busybox"]
    _import(slot, BUSYBOX, {"bin/busybox": Path("/bin/busybox")}, applets, ['CMD ["sh"]', "ENV PATH=/bin"])
    merged = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
    _import(slot, HOSTS_USR, {}, merged, ["ENV PATH=/usr/sbin:/usr/bin"])


def _import(slot: Slot, name: str, files: dict[str, Path], links: dict[str, str], changes: list[str]) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        with tarfile.open(archive.name, "w") as tar:
            for path, source in files.items():
                content = source.read_bytes()
                member = tarfile.TarInfo(path)
                member.mode, member.size = 0o755, len(content)
                tar.addfile(member, io.BytesIO(content))
            for path, target in links.items():
                link = tarfile.TarInfo(path)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
        docker(slot, "import", *(f"--change={change}" for change in changes), archive.name, name)
