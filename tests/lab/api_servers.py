"""API servers of several releases of Kubernetes, each with an etcd and nothing else: real ones, compiled from its module.

Their OpenAPI models are in no module: Kubernetes' own generator makes them first, as its build does. What nodes and
controllers would do, tests do.
"""

import base64
import inspect
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpunode.sim.apiserver import tls

from . import builds, cache
from .builds import HERE
from .process import run, succeeds
from .progress import CannotRun, wait

OLD = {"1.16": "1.16.15", "1.20": "1.20.15"}
NEW = "1.36"
MODELS = "k8s.io/kubernetes/pkg/generated/openapi"
COMMANDS = ("kube-apiserver", "kube-scheduler")
MORE = {"1.16": ("kube-controller-manager", "kubelet")}  # for a whole cluster of that release
TOKEN = "lab"


def programs(minor: str) -> Path:
    """The folder with that release's kube-apiserver, kube-scheduler and MORE, from the cache or compiled now."""
    if minor == NEW:
        return builds.go(builds.KUBERNETES)
    source = HERE / "go" / f"api-server-{minor}"
    inputs: list[str | Path] = [source, OLD[minor], *_commands(minor), inspect.getsource(_build)]
    return cache.entry(f"api-server-{minor}", inputs, lambda folder: _build(minor, folder))


def _commands(minor: str) -> list[str]:
    return [f"k8s.io/kubernetes/cmd/{name}" for name in (*COMMANDS, *MORE.get(minor, ()))]


def _build(minor: str, folder: Path) -> None:
    cgo = "1" if minor in MORE else "0"  # cadvisor, which is in the kubelet, reads NVML in C
    env = {**os.environ, **builds.ENVIRONMENT, "CGO_ENABLED": cgo}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "lab"
        shutil.copytree(HERE / "go" / f"api-server-{minor}", work)
        run(["go", "mod", "vendor"], cwd=work, env=env)
        vendored, generator = work / "vendor", Path(name) / "openapi-gen"
        env["GOFLAGS"] = "-mod=vendor -buildvcs=false"
        run(["go", "build", "-o", generator, "k8s.io/kube-openapi/cmd/openapi-gen"], work, env)
        tagged = run(["grep", "-rlE", "^// \\+k8s:openapi-gen=", "--include=*.go", "k8s.io"], cwd=vendored)
        packages = ",".join(sorted({str(Path(line).parent) for line in tagged.splitlines()}))
        (Path(name) / "src").symlink_to(vendored)
        (vendored / MODELS).chmod(0o755)
        old = {**os.environ, "GO111MODULE": "off", "GOPATH": name, "GOFLAGS": ""}
        to: list[str | Path] = ["-i", packages, "-p", MODELS, "-O", "zz_generated.openapi", "-o", vendored]
        run([generator, *to, "-h", "/dev/null", "-r", "/dev/null"], vendored, old)
        # `--version`, the API server and its aggregator each read another of these.
        stamps = (f"k8s.io/{each}/version" for each in ("component-base", "kubernetes/pkg", "client-go/pkg"))
        values = {"gitVersion": f"v{OLD[minor]}", "gitMajor": "1", "gitMinor": minor[2:]}
        flags = " ".join(f"-X {stamp}.{key}={value}" for stamp in stamps for key, value in values.items())
        linked = ["-trimpath", "-ldflags", f"-checklinkname=0 -s -w {flags}", "-o", f"{folder}/"]
        run(["go", "build", *linked, *_commands(minor)], work, env)


@contextmanager
def running(minor: str, folder: Path, **also: str) -> Iterator[str]:
    """A kubeconfig of an API server of that release, for as long as the block runs. `also`: other flags of it."""
    etcd = shutil.which("etcd")
    if etcd is None:
        raise CannotRun("no etcd here: `apt-get install etcd-server`")
    program, ports = programs(minor) / "kube-apiserver", [_port() for _ in range(3)]
    store, peers = (f"http://127.0.0.1:{port}" for port in ports[:2])
    (folder / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    _, certificate = tls.server(folder / "server.pem")
    key = folder / "sa.key"
    run(["openssl", "genrsa", "-out", key, "2048"])
    run(["openssl", "rsa", "-in", key, "-pubout", "-out", folder / "sa.pub"])
    flags = {
        "etcd-servers": store,
        "bind-address": "127.0.0.1",
        "secure-port": ports[2],
        "cert-dir": folder / "certificates",
        "tls-cert-file": folder / "server.pem",
        "tls-private-key-file": folder / "server.pem",
        "token-auth-file": folder / "tokens",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.96.0.0/24",
        "service-account-key-file": folder / "sa.pub",
        "disable-admission-plugins": "ServiceAccount",  # its accounts are a controller's work
    }
    if minor != "1.16":
        flags |= {"service-account-issuer": "https://lab", "service-account-signing-key-file": key}
    else:
        flags |= {"insecure-port": 0}
    flags |= {name.replace("_", "-"): value for name, value in also.items()}
    data = ["--data-dir", folder / "etcd", "--listen-client-urls", store, "--advertise-client-urls", store]
    data += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    data += ["--initial-cluster", f"default={peers}"]
    commands = {
        "etcd": [etcd, *data],
        "api-server": [program, *(f"--{name}={value}" for name, value in flags.items())],
    }
    processes = [_started(folder, name, command) for name, command in commands.items()]
    address = f"https://127.0.0.1:{ports[2]}"
    try:
        ready = ["curl", "-skf", "-m", "5", "-H", f"Authorization: Bearer {TOKEN}", f"{address}/healthz"]
        wait(f"API server {minor}", lambda: succeeds(ready), 240, folder / "api-server.log")
        yield _kubeconfig(folder, address, certificate)
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _started(folder: Path, name: str, command: list[Any]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, cwd=folder)


def _kubeconfig(folder: Path, address: str, certificate: str) -> str:
    trusted = base64.b64encode(certificate.encode()).decode()
    cluster = {"server": address, "certificate-authority-data": trusted}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "lab",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    return str(folder / "kubeconfig")


def _port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
