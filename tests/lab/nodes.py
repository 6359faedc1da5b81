"""The hosts: containers with systemd, reached by SSH, bare of any NVIDIA software when they start."""

import contextlib
import re
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

from . import aptserver, builds, cache, cluster, gpu, machine, pki
from .builds import HERE
from .docker import DOCKER, NETWORK, docker
from .hosts import CONTROL_PLANE, HOSTS, Host
from .images import Images
from .process import run, succeeds
from .progress import LabError, wait
from .slot import Slot

FILES = HERE / "nodes"
USER = "ops"
OPS = 1000  # uid and gid of ops in the images
MANIFESTS = "etc/kubernetes/manifests"


def address(slot: Slot, host: Host) -> str:
    return str(slot.subnet[host.number])


def keys(slot: Slot) -> None:
    """Make the user's key and the hosts' keys, once, and the known_hosts that goes with them."""
    slot.out.mkdir(exist_ok=True)
    folder = slot.state / "ssh"
    folder.mkdir(parents=True, exist_ok=True)
    user = slot.out / "id_ed25519"
    if not user.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpunode-lab", "-f", user])
    lines = []
    for each in HOSTS:
        key = folder / each.name
        if not key.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", each.name, "-f", key])
        kind, blob, _ = key.with_suffix(".pub").read_text().split()
        lines.append(f"{address(slot, each)} {kind} {blob}\n")
    (slot.out / "known_hosts").write_text("".join(lines))


def ensure(slot: Slot, each: Host, images: Images) -> bool:
    """Leave a host that runs from the same inputs and can be reached as it is; otherwise make it again: True then."""
    overlay = overlay_of(slot, each, images.small)
    programs = builds.go(builds.KUBERNETES)
    image = images.modern if each.image == "modern" else images.legacy
    inputs = cache.key([*_container(slot, each, image, programs), overlay])
    states = docker(slot, "ps", "-a", "--format", '{{.Names}} {{.State}} {{.Label "inputs"}}').splitlines()
    if f"{each.name} running {inputs}" in states and _usable(slot, each):
        return False
    _create(slot, each, image, inputs, programs)
    return True


def reset(slot: Slot, each: Host) -> None:
    """Make a host bare again: a new container of its image with the same files, keys and address."""
    if each == CONTROL_PLANE:
        raise LabError(
            "the state of the cluster is on the control plane's host: `down` and `up` make a new one"
        )
    labels = "{{.Config.Labels.inputs}} {{.Config.Labels.programs}}"
    image, inputs, programs = docker(slot, "inspect", "-f", "{{.Config.Image}} " + labels, each.name).split()
    _create(slot, each, image, inputs, Path(programs))


def answers_ssh(slot: Slot, each: Host) -> bool:
    try:
        with socket.create_connection((address(slot, each), 22), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _create(slot: Slot, each: Host, image: str, inputs: str, programs: Path) -> None:
    ends = HOSTS if each == CONTROL_PLANE else (each,)  # its cluster ends with it
    names = {host.name for host in ends}
    if old := names.intersection(docker(slot, "ps", "-a", "--format", "{{.Names}}").split()):
        docker(slot, "rm", "-f", "-v", *old)
        if each != CONTROL_PLANE:
            cluster.forget_node(slot, each.name)
    labels = [f"--label=inputs={inputs}", f"--label=programs={programs}"]
    docker(slot, "create", *labels, *_container(slot, each, image, programs))
    with archive(slot, each).open("rb") as files:
        subprocess.run([DOCKER, "-H", slot.docker_host, "cp", "-", f"{each.name}:/"], stdin=files, check=True)
    docker(slot, "start", each.name)
    wait(f"sshd on {each.name}", lambda: answers_ssh(slot, each), 60)


def _usable(slot: Slot, each: Host) -> bool:
    """Whether the user comes in by SSH and has sudo, python3 and static pods: not so if a test died while it had broken that."""
    with contextlib.suppress(LabError):
        wait(f"sshd on {each.name}", lambda: answers_ssh(slot, each), 120)
    files = ["-i", f"{slot.out}/id_ed25519", "-o", f"UserKnownHostsFile={slot.out}/known_hosts"]
    options = [*files, "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    manifests = (
        f"/{MANIFESTS}/{file.name}"
        for folder in each.files
        for file in (FILES / folder / MANIFESTS).glob("*")
    )
    commands = ["python3 -c 'import json'", *(f"test -e {manifest}" for manifest in manifests)]
    command = " && ".join(f"sudo -n {command}" for command in commands)
    return succeeds(["ssh", *options, f"{USER}@{address(slot, each)}", command])


def _container(slot: Slot, each: Host, image: str, programs: Path) -> list[str]:
    """What makes a container into a host: systemd, devices, cgroups, volumes where a runtime keeps its layers."""
    return [
        f"--name={each.name}",
        f"--hostname={each.name}",
        f"--network={NETWORK}",
        f"--ip={address(slot, each)}",
        "--restart=always",  # `systemctl reboot` ends the container; this starts it again
        "--stop-signal=SIGRTMIN+3",
        "--cap-add=ALL",
        "--cap-drop=SYS_RESOURCE",
        "--security-opt=seccomp=unconfined",
        "--security-opt=apparmor=unconfined",
        "--security-opt=systempaths=unconfined",
        "--device-cgroup-rule=a *:* rwm",
        "--cgroupns=host",
        "--tmpfs=/run:exec,mode=755",
        "--tmpfs=/tmp:exec,mode=1777",
        # with v1, systemd adds names beside the trees; they are not for the machine to keep
        *(() if machine.has_cgroup2() else (f"--tmpfs={machine.CGROUPS}:mode=755",)),
        *(f"--volume={tree}:{tree}:rw" for tree in machine.cgroups()),
        "--volume=/dev/kmsg:/dev/kmsg",
        "--volume=/var/lib/containerd",
        "--volume=/var/lib/docker",
        "--volume=/var/lib/kubelet",
        f"--volume={programs}:/usr/local/lib/lab/kubernetes:ro",
        *(
            ("--volume=/usr/bin/etcd:/usr/bin/etcd:ro", "--volume=/var/lib/etcd")
            if each == CONTROL_PLANE
            else ()
        ),
        image,
    ]


def overlay_of(slot: Slot, each: Host, small: Path) -> Path:
    """The files that make a host out of its image, as a folder."""
    root = slot.state / "overlay" / each.name
    shutil.rmtree(root, ignore_errors=True)
    for folder in each.files:
        shutil.copytree(FILES / folder, root, symlinks=True, dirs_exist_ok=True)
    values = {
        "@POD_SUBNET@": f"10.244.{each.number}.0/24",
        "@CGROUP_ROOT@": f"{slot.cgroups}{each.name}",
        "@ADDRESS@": address(slot, each),
        "@NETWORK@": address(slot, each).rpartition(".")[0],
        "@OTHERS@": " ".join(str(other.number) for other in HOSTS if other.name != each.name),
    }
    for file in (path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        text = file.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        file.write_text(text)
    certificates = pki.ensure(slot)
    put = {
        "etc/apt/sources.list.d/debian.sources": machine.sources(),
        "etc/apt/sources.list.d/kernel.sources": aptserver.sources(slot),
        "etc/apt/apt.conf.d/90machine": machine.apt_options(),
        "usr/share/keyrings/lab-kernel.asc": (slot.state / "apt/key.asc").read_text(),
        "etc/kubernetes/pki/ca.crt": (certificates / "ca.crt").read_text(),
        "etc/kubernetes/kubelet.conf": pki.kubeconfig(slot, each.name),
        "etc/ssh/ssh_host_ed25519_key": (slot.state / "ssh" / each.name).read_text(),
        "etc/ssh/ssh_host_ed25519_key.pub": (slot.state / "ssh" / f"{each.name}.pub").read_text(),
        f"home/{USER}/.ssh/authorized_keys": (slot.out / "id_ed25519.pub").read_text(),
    }
    for name, text in put.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / MANIFESTS).mkdir(exist_ok=True)
    if each.name == CONTROL_PLANE.name:
        shutil.copytree(
            certificates,
            root / "etc/kubernetes/pki",
            ignore=shutil.ignore_patterns(pki.USERS),
            dirs_exist_ok=True,
        )
        for user in ("admin", "controller-manager", "scheduler"):
            (root / f"etc/kubernetes/{user}.conf").write_text(pki.kubeconfig(slot, user))
    shutil.copy2(small, root / "usr/local/lib/lab/images.tar")
    if each.gpus or each.pci:
        gpu.install(root, each.gpus, each.pci)
    return root


_MODES = {
    "etc/sudoers.d/ops": 0o440,
    "etc/ssh/ssh_host_ed25519_key": 0o600,
}


def archive(slot: Slot, each: Host) -> Path:
    """The overlay as a tar file with the owners and modes that the host's files have."""

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        user = OPS if member.name.startswith(f"home/{USER}/") else 0
        member.uid = member.gid = user
        member.uname = member.gname = ""
        if member.isfile():
            secret = re.fullmatch(r"etc/kubernetes/.*\.(conf|key|yaml)", member.name)
            member.mode = _MODES.get(
                member.name, 0o600 if secret else 0o755 if member.mode & 0o100 else 0o644
            )
        return member

    overlay = slot.state / "overlay" / each.name
    path = overlay.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        for file in sorted(overlay.rglob("*")):
            if file.is_symlink() or not file.is_dir() or not list(file.iterdir()):
                tar.add(file, str(file.relative_to(overlay)), recursive=False, filter=owned)
    return path
