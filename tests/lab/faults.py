"""Ways to break a host or the cluster. Each is a context: what it broke is whole again when it is left."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator

from . import cluster, nodes
from .api import Lab, Node
from .docker import DOCKER
from .hosts import CONTROL_PLANE
from .progress import wait

_HIDDEN = "/var/lib/lab-hidden"


@contextlib.contextmanager
def address_silent(node: Node) -> Iterator[None]:
    """Packets to port 22 get no answer, as behind a firewall: connections time out."""
    rule = ["INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP"]
    node.exec(["iptables", "-I", *rule])
    try:
        yield
    finally:
        node.exec(["iptables", "-D", *rule])


def cut_ssh(node: Node) -> None:
    """End every open SSH session of the host, as a broken line would; sshd itself goes on."""
    node.exec(["pkill", "-KILL", "-f", "^sshd: "], check=False)
    node.wait_for_ssh()


@contextlib.contextmanager
def sudo_asks_password(node: Node) -> Iterator[None]:
    """sudo works, but wants a password."""
    before = node.read("/etc/sudoers.d/ops")
    node.write("/etc/sudoers.d/ops", before.replace("NOPASSWD: ", ""))
    try:
        yield
    finally:
        node.write("/etc/sudoers.d/ops", before)


@contextlib.contextmanager
def minimal_python(node: Node) -> Iterator[None]:
    """python3 is what Debian's python3-minimal holds: no json, no subprocess's friends beyond the smallest set."""
    saved = f"{_HIDDEN}/stdlib"
    node.exec(
        [
            "sh",
            "-c",
            f"mkdir -p {_HIDDEN} && dpkg -L libpython3.11-stdlib | grep '^/usr/lib/python3' > {saved}.all &&"
            f" while read -r f; do if [ ! -d $f ]; then echo $f; fi; done < {saved}.all > {saved}.list &&"
            f" tar -cf {saved}.tar -T {saved}.list && xargs rm -f < {saved}.list && rm -rf /usr/lib/python3.11/json",
        ]
    )
    try:
        yield
    finally:
        node.exec(["tar", "-xf", f"{saved}.tar", "-C", "/"])


@contextlib.contextmanager
def apt_locked(node: Node) -> Iterator[None]:
    """Another process holds dpkg's and apt's locks, as an unattended upgrade does."""
    program = (
        "import fcntl, sys\n"
        "held = [open(p, 'w') for p in ('/var/lib/dpkg/lock-frontend', '/var/lib/dpkg/lock', '/var/lib/apt/lists/lock')]\n"
        "for f in held: fcntl.lockf(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [DOCKER, "-H", node.slot.docker_host, "exec", "-i", node.name, "python3", "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.stdin.close()


@contextlib.contextmanager
def apiserver_down(running: Lab) -> Iterator[None]:
    """Nothing answers at the apiserver's address: the kubelet there has ended its static pod."""
    node = running.node(CONTROL_PLANE.name)
    try:
        with _moved(node, f"/{nodes.MANIFESTS}/kube-apiserver.yaml"):
            wait("the kubelet to end the apiserver", lambda: not cluster.ready(running.slot))
            # it is asked already: nobody starts it again, and it would wait for its watches
            node.exec(["pkill", "-KILL", "-x", "kube-apiserver"], check=False)
            node.wait_until("the apiserver to be gone", ["sh", "-c", "! pgrep -x kube-apiserver"])
            yield
    finally:
        cluster.wait_ready(running.slot)


@contextlib.contextmanager
def xids(node: Node, gpu: int, number: int) -> Iterator[None]:
    """The driver reports the Xid of the GPU every second: however slow the machine, no quiet time is over meanwhile."""
    ended = threading.Event()

    def report() -> None:
        node.gpus.xid(gpu, number)
        while not ended.wait(1):
            node.gpus.xid(gpu, number)

    reporter = threading.Thread(target=report)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


@contextlib.contextmanager
def _moved(node: Node, path: str) -> Iterator[None]:
    hidden = f"{_HIDDEN}{path}"
    node.exec(["sh", "-c", f"mkdir -p $(dirname {hidden}) && mv {path} {hidden}"])
    try:
        yield
    finally:
        node.exec(["mv", hidden, path])
