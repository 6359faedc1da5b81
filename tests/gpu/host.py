"""A cluster of one host on this machine: the lab's control plane and containerd host in one, with systemd and this machine's own GPUs.

`python -m tests.gpu.host make` writes it to .gpu-host, on a machine that can build the lab (Debian 12). `up` starts it, where the driver
runs and nothing else is needed but Python, mount, unshare and nsenter; it lives as long as that process, in namespaces of its own. `make --stand-in` gives it
the lab's GPUs, to see without a real one that it works.
"""

import contextlib
import ctypes
import dataclasses
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpunode.links.plugin import image
from tests.lab import aptserver, builds, cache, cluster, images, machine, nodes, packages, pki
from tests.lab.gpu import namespace
from tests.lab.hosts import CONTROL_PLANE, MODERN
from tests.lab.process import run
from tests.lab.progress import say, wait
from tests.lab.slot import Slot

from .node import python_layer, write_image

OUT = builds.CHECKOUT / ".gpu-host"
SLOT = Slot(200, OUT)  # no lab has so high a number
STAND_IN = {"model": "H100-SXM5-80GB", "pci": "0000:1b:00.0", "nvlinks": []}
LEFT_OUT = {"dkms", "less"}  # there is nothing to compile
NAMESPACES = ("mount", "pid", "uts", "ipc", "net")
MASKED = ("getty.target", "console-getty.service", "systemd-udevd.service", "systemd-modules-load.service")
PREPARE = r"""
set -eu
rm -rf /etc/ssh/ssh_host_rsa* /etc/ssh/ssh_host_ecdsa* /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale
: > /etc/machine-id
useradd --create-home --shell /bin/bash ops
install -d -m 700 -o ops -g ops /home/ops/.ssh
install -d /opt/cni && ln -s /usr/lib/cni /opt/cni/bin
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*  # nothing is to be had from there
systemctl enable containerd kubelet lab-images
systemctl set-default multi-user.target
ldconfig
"""
START = r"""
set -eu
cd "$1"
mkdir -p top && mount -t tmpfs -o mode=755 tmpfs top && mkdir top/upper top/work top/host
mount -t overlay -o lowerdir=root,upperdir=top/upper,workdir=top/work host top/host
cd top/host
mkdir -p var/lib/containerd "lib/modules/$(uname -r)"
mount -t tmpfs -o mode=755 tmpfs var/lib/containerd  # layers over layers: not over an overlay
mount -t proc proc proc
echo 1 > proc/sys/net/ipv4/ip_forward
mount -t sysfs sysfs sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    for tree in /sys/fs/cgroup/*/; do
        [ -e "${tree}cgroup.procs" ] || continue
        mkdir -p ".$tree" && mount --bind "$tree" ".$tree"
    done
fi
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty kmsg fuse nvidia-caps; do [ ! -e /dev/$node ] || cp -a /dev/$node dev/; done
cp -a /dev/nvidia* dev/ 2> /dev/null || true
mkdir -p dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "dev/$(echo "stdin stdout stderr" | cut -d' ' -f$((number + 1)))"; done
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p .outside
pivot_root . .outside
umount -l .outside
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
"""


def make(stand_in: bool) -> None:
    """Write .gpu-host: `root`, and what the lab's tests read of a lab."""
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.rmtree(SLOT.state, ignore_errors=True)
    OUT.mkdir()
    nodes.keys(SLOT)
    programs, containerd = builds.go(builds.KUBERNETES), builds.go(builds.CONTAINERD)
    apt = packages.repository(cache.root(), builds.go(builds.TOOLKIT), os.uname().release)
    SLOT.state.mkdir(parents=True, exist_ok=True)
    shutil.copytree(apt, SLOT.state / "apt", dirs_exist_ok=True)
    small = next(cache.root().glob("images-*/small.tar"))  # of `make lab`
    host = dataclasses.replace(
        CONTROL_PLANE, gpus=[STAND_IN] if stand_in else [], pci=MODERN.pci if stand_in else []
    )
    overlay = nodes.overlay_of(SLOT, host, small)
    if stand_in:
        namespace.install_driver(overlay)
        firmware = overlay / "usr/lib/firmware/nvidia" / namespace.VERSION
        firmware.mkdir(parents=True)
        (firmware / "gsp_lab.bin").symlink_to("/run/lab-gpus/state")  # how a container sees the state
    root = OUT / "root"
    run(["cp", "-a", _debian(), root])
    subprocess.run(["tar", "-C", root, "-xf", "-"], input=nodes.archive(SLOT, host).read_bytes(), check=True)
    binaries = root / "usr/local/lib/lab/kubernetes"
    shutil.copytree(programs, binaries)
    for program in (binaries / "kubelet", *containerd.iterdir(), Path("/usr/bin/etcd")):
        shutil.copy2(program, root / "usr/bin")
    run(["chroot", root, "sh", "-c", PREPARE])
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (root / "etc/hostname").write_text(f"{host.name}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{nodes.address(SLOT, host)} {host.name}\n")
    (root / "etc/resolv.conf").write_text("")
    (OUT / "kubeconfig").write_text(pki.kubeconfig(SLOT, "admin"))
    (OUT / "kubeconfig").chmod(0o600)
    _plugin_image(OUT / "plugin.tar")
    uri = f"http://{SLOT.gateway}:{aptserver.NVIDIA}"
    shutil.copy(apt / "key.asc", OUT / "apt-key.asc")
    (OUT / "inventory.yaml").write_text(f"""cluster:
  kubeconfig: kubeconfig
  plugin: {{archive: plugin.tar, condition: true}}
defaults:
  ssh: {{user: {nodes.USER}, key: id_ed25519, known_hosts: known_hosts}}
  driver: none
  repositories:
    toolkit: {{uri: "{uri}/toolkit/stable/deb/amd64", key: apt-key.asc}}
groups:
  gpus: {{hosts: [{{name: {host.name}, address: {nodes.address(SLOT, host)}, control_plane: true}}]}}
""")


def _debian() -> Path:
    """A Debian 12 with what the lab's hosts have, as a folder."""
    wanted = sorted({*images.HOST, *images.MODERN} - LEFT_OUT)

    def build(folder: Path) -> None:
        options = ["--variant=minbase", f"--keyring={machine.KEYRING}", f"--include={','.join(wanted)}"]
        run(["debootstrap", *options, "bookworm", folder / "root", machine.mirror()])
        for of_its_own in (folder / "root/dev").iterdir():
            run(["rm", "-rf", of_its_own])

    return cache.entry("gpu-host", [*wanted, machine.versions(wanted)], build) / "root"


def _plugin_image(to: Path) -> None:
    """The plugin's image on this machine's Python."""
    with tempfile.TemporaryDirectory() as work:
        base = Path(work) / "base.tar"
        write_image(base, "base:1", python_layer(), {})
        say(image.write(str(base), to, name="gpunode-deviceplugin:gpu", arch="amd64"))


def _driver(root: Path) -> None:
    """Give the host this machine's driver, where a package would have put it. A stand-in stays."""
    if not Path("/dev/nvidiactl").exists():
        return
    ctypes.CDLL("libnvidia-ml.so.1")
    maps = Path("/proc/self/maps").read_text()
    folder = Path(re.findall(r"\S+/libnvidia-ml\.so\S*", maps)[0]).parent
    libraries = {
        path.resolve() for name in ("libcuda", "libnvidia-") for path in folder.glob(f"{name}*.so.*")
    }
    for path in libraries:
        shutil.copy2(path, root / "usr/lib/x86_64-linux-gnu")
    for name in ("nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        if program := shutil.which(name):
            shutil.copy2(Path(program).resolve(), root / "usr/bin" / name)
    run(["chroot", root, "ldconfig"])


def _connect(root: Path, launcher: int) -> None:
    """A network between this machine and the host, by the host's own `ip`."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    wait("the host's first process", lambda: bool(children.read_text()), 20)
    [init] = children.read_text().split()
    (OUT / "init").write_text(init)
    own = ["chroot", root, "ip"]
    net = ["nsenter", f"--net=/proc/{init}/ns/net", *own]
    # of a host before, whose namespace has not gone yet
    subprocess.run([*own, "link", "delete", "gpu-host"], capture_output=True, check=False)
    for command in (
        [*own, "link", "add", "gpu-host", "type", "veth", "peer", "name", "eth0", "netns", init],
        [*own, "address", "add", f"{SLOT.gateway}/24", "dev", "gpu-host"],
        [*own, "link", "set", "gpu-host", "up"],
        [*net, "address", "add", f"{nodes.address(SLOT, CONTROL_PLANE)}/24", "dev", "eth0"],
        [*net, "link", "set", "eth0", "up"],
        [*net, "link", "set", "lo", "up"],
        [*net, "route", "add", "default", "via", SLOT.gateway],
    ):
        run(command)


@contextlib.contextmanager
def up() -> Iterator[None]:
    """The host and its cluster; both end with this."""
    root = OUT / "root"
    _driver(root)
    apart = ["unshare", "--propagation=private", *(f"--{kind}" for kind in NAMESPACES), "--fork"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((OUT / "host.log").open("wb"))
        command = [*apart, "--kill-child", "sh", "-c", START, "sh", str(OUT)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        _connect(root, process.pid)
        stack.callback(_keep_logs)
        serve = partial(http.server.SimpleHTTPRequestHandler, directory=str(SLOT.state / "apt"))
        server = http.server.ThreadingHTTPServer((SLOT.gateway, aptserver.NVIDIA), serve)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wait("sshd on the host", lambda: nodes.answers_ssh(SLOT, CONTROL_PLANE), 60)
        cluster.up(SLOT)
        cluster.request(SLOT, "PATCH", f"/api/v1/nodes/{CONTROL_PLANE.name}", {"spec": {"taints": None}})
        yield


def _keep_logs() -> None:
    """The host's log, and its pods', which end with it."""
    text = inside("journalctl --no-pager; tail -n 100 /var/log/pods/*/*/*.log 2>/dev/null || true")
    (OUT / "journal.log").write_text(text)


def inside(command: str) -> str:
    """What a shell in the host says to a command that succeeds."""
    init = (OUT / "init").read_text()
    return run(["nsenter", f"--target={init}", *(f"--{kind}" for kind in NAMESPACES), "sh", "-c", command])


def listing() -> str:
    """The host's packages, files of /etc and enabled units, to compare before and after."""
    return inside(
        "dpkg -l | grep ^[a-z]i; find /etc -type f | sort | xargs sha256sum; systemctl list-unit-files --state=enabled --no-legend"
    )


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make("--stand-in" in sys.argv)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        with up():
            print("ready", flush=True)
            sys.stdin.read()
