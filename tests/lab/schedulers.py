"""A kube-scheduler and the scheduler extender as processes beside a real API server (`api_servers.py`), without a lab."""

import base64
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpunode.links.scheduler import deployment, plan
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.model import Change, File, RemoveFile, WriteFile
from tests.unit.test_schedulers import KUBEADM

from .api_servers import TOKEN
from .builds import CHECKOUT
from .progress import wait

ETC = "/etc/kubernetes"
# The module as `python -m gpunode.share` is, with another place for its account.
EXTENDER = """
import sys
from pathlib import Path
from gpunode.share import __main__ as share
share.ACCOUNT = Path(sys.argv.pop(1))
sys.exit(share.main())
"""


def port() -> int:
    """A free one."""
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        return int(connection.getsockname()[1])


class Master:
    """A control plane's host, as far as its scheduler goes: files below a folder, changed by plans."""

    def __init__(self, folder: Path, kubeconfig: str, version: str, *flags: str) -> None:
        self._folder = folder
        self._root = folder / "root"
        self.port = port()
        elect = "    - --leader-elect=true\n"
        own = f"--authorization-kubeconfig={ETC}/scheduler.conf", f"--secure-port={self.port}", *flags
        text = KUBEADM.replace(elect, "".join(f"    - {flag}\n" for flag in own) + elect)
        image = "registry.k8s.io/kube-scheduler:v1.{minor}.3"
        self._write(MANIFEST, text.replace(image, f"kube-scheduler:v{version}"))
        self._write(f"{ETC}/scheduler.conf", Path(kubeconfig).read_text())

    @property
    def facts(self) -> dict[str, File]:
        """As a probe reads them."""
        files = {path: self._path(path) for path in plan.FILES}
        return {
            path: File(path, exists=True, content=at.read_text()) if at.exists() else File(path, exists=False)
            for path, at in files.items()
        }

    def make(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, WriteFile):
                self._write(change.path, change.content)
            elif isinstance(change, RemoveFile):
                self._path(change.path).unlink()

    @contextmanager
    def scheduler(self, program: Path) -> Iterator[Path]:
        """The log of the static pod's scheduler, which runs by its manifest, with the host's paths below a folder."""
        run = self._folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self._root, run)
        for file in run.rglob("*"):
            if file.is_file():
                file.write_text(file.read_text().replace(ETC, f"{run}{ETC}"))
        pod = yaml.safe_load((run / MANIFEST[1:]).read_text())
        log = self._folder / "scheduler.log"
        with process([program, *pod["spec"]["containers"][0]["command"][1:]], log):
            health = f"https://127.0.0.1:{self.port}/healthz"
            wait("the scheduler", lambda: _answers(health), 120, log)
            yield log

    def _path(self, path: str) -> Path:
        return self._root / path[1:]

    def _write(self, path: str, text: str) -> None:
        self._path(path).parent.mkdir(parents=True, exist_ok=True)
        self._path(path).write_text(text)


@contextmanager
def extender(
    folder: Path, kubeconfig: str, node: str, code: str = EXTENDER
) -> Iterator[tuple[plan.Access, int]]:
    """Where the extender is and how to reach it, once it leads, as from this node; and its pid. `code` runs it."""
    cluster = json.loads(Path(kubeconfig).read_text())["clusters"][0]["cluster"]
    server = urllib.parse.urlsplit(cluster["server"])
    account, tls, secret = folder / "account", folder / "tls", deployment.make_certificates()
    for where, content in (
        (account / "token", TOKEN.encode()),
        (account / "ca.crt", base64.b64decode(cluster["certificate-authority-data"])),
        *((tls / name, base64.b64decode(secret[name])) for name in ("ca.crt", "tls.crt", "tls.key")),
    ):
        where.parent.mkdir(exist_ok=True)
        where.write_bytes(content)
    own, probe, log = port(), port(), folder / "extender.log"
    command: list[str | Path] = [sys.executable, "-c", code, account]
    command += [f"--tls={tls}", f"--port={own}", f"--probe-port={probe}"]
    more = {
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "POD_NAME": "extender",
        "POD_NAMESPACE": "default",
        "NODE_NAME": node,
        "PYTHONPATH": str(CHECKOUT),
    }
    with process(command, log, more) as pid:
        wait("the extender to lead", lambda: _answers(f"http://127.0.0.1:{probe}/readyz"), 120, log)
        yield plan.Access(f"127.0.0.1:{own}", "aliyun.com/gpu-mem", secret), pid


@contextmanager
def process(command: list[str | Path], log: Path, more: dict[str, str] | None = None) -> Iterator[int]:
    """The pid of a program that runs within the block."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            [str(word) for word in command], stdout=out, stderr=out, env={**os.environ, **(more or {})}
        )
    try:
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Client:
    """The API server of a kubeconfig that `api_servers` wrote, for a thread."""

    def __init__(self, kubeconfig: str) -> None:
        cluster = json.loads(Path(kubeconfig).read_text())["clusters"][0]["cluster"]
        server = urllib.parse.urlsplit(cluster["server"])
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._connection = http.client.HTTPSConnection(
            str(server.hostname), server.port, timeout=60, context=ssl.create_default_context(cadata=ca)
        )

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; PATCH: a merge patch. Raises AssertionError for what is no success, None for what is not there."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status == 404 and method in ("GET", "DELETE"):
            return None
        assert answer.status < 300, (method, path, text)
        return json.loads(text)


def _answers(address: str) -> bool:
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(address, context=context, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
