"""The articles' workloads from the very manifests, with images that stand in for theirs and add vectors on their GPU."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from typer.testing import CliRunner

from gpunode.cli import app

from . import cache
from .api import Lab
from .conftest import Ran
from .docker import DOCKER, NETWORK, docker
from .pods import NAMESPACE, Pods
from .process import run
from .progress import wait

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

NODE = "modern"
KINDS = {
    "Pod": f"{NAMESPACE}/pods",
    "Service": f"{NAMESPACE}/services",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
}
ADD = '["python3", "-m", "gpunode.deviceplugin.vectoradd", "--json"]'
# Jupyter's own server of PyPI, with TensorFlow's flags for it. Its one file has the vectors that were added on its GPU.
SERVE = """
import os, subprocess
os.makedirs("/tmp/tf")
with open("/tmp/tf/gpu.json", "w") as file:
    subprocess.run(["python3", "-m", "gpunode.deviceplugin.vectoradd", "--json"], stdout=file)
flags = ["--ServerApp.root_dir=/tmp/tf", "--ip=0.0.0.0", "--no-browser", "--allow-root"]
os.execlpe("python3", "python3", "-m", "jupyter_server", *flags, {**os.environ, "HOME": "/tmp", "PYTHONPATH": "/jupyter"})
"""
# What an image of one's own may run: it says how many GPUs it has, and which is the first.
APP = """
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = cuda ? dlsym(cuda, "cuInit") : NULL, (*count)(int *) = cuda ? dlsym(cuda, "cuDeviceGetCount") : NULL;
    int (*named)(char *, int, int) = cuda ? dlsym(cuda, "cuDeviceGetName") : NULL, number = 0;
    char name[96] = "";
    if (!named || init(0) || count(&number) || named(name, sizeof name, 0))
        return 1;
    return printf("%d: %s\\n", number, name) < 0;
}
"""
NVCC = '#!/bin/sh\n[ "$1" = --cudart=static ] && shift && exec gcc -x c -Wall -Werror "$@"\n'
# Chainer's example where GitHub has it, which adds vectors where Chainer would learn, once it has MNIST's address.
EXAMPLE = """
import argparse, subprocess, sys
from chainer.datasets import mnist
asked = argparse.ArgumentParser()
asked.add_argument("--gpu", type=int, required=True)
asked.add_argument("--epoch", type=int)
assert asked.parse_args().gpu == 0
assert mnist.URL == "https://ossci-datasets.s3.amazonaws.com/mnist/train.gz", mnist.URL
sys.exit(subprocess.call([sys.executable, "-m", "gpunode.deviceplugin.vectoradd", "--json"]))
"""
GITHUB = """
import shutil, urllib.request
def fetched(address, to):
    assert address == "https://raw.githubusercontent.com/chainer/chainer/v5.3.0/examples/mnist/train_mnist.py", address
    shutil.copy("/app/example.py", to)
urllib.request.urlretrieve = fetched
"""
FILES = {
    "serve.py": SERVE,
    "chainer/chainer/__init__.py": '__version__ = "5.3.0"\n',
    "chainer/chainer/datasets/__init__.py": "",
    "chainer/chainer/datasets/mnist.py": 'URL = "http://yann.lecun.com/exdb/mnist/train.gz"\n',
    "chainer/sitecustomize.py": GITHUB,
    "chainer/example.py": EXAMPLE,
}
IMAGES = {
    "notebook": 'COPY serve.py /app/\nCOPY jupyter /jupyter\nENTRYPOINT ["python3", "/app/serve.py"]\nCMD []',
    "mnist": "COPY chainer /app/\nUSER 0\nENTRYPOINT []",
    "cuda": f"ENTRYPOINT {ADD}\nCMD []",
    "vectoradd": f"ENTRYPOINT []\nCMD {ADD}",
    "binpack": "ENTRYPOINT []",
}


LOCK = Path(__file__).with_name("jupyter.lock")
DOCUMENT = Path(__file__).parents[2] / "docs/workloads.md"


def stand_in(name: str) -> str:
    return f"stand-in/{name}:1"


def jupyter() -> Path:
    """A folder of Python packages: Jupyter's server, from PyPI by the lock's hashes."""

    def build(folder: Path) -> None:
        words = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11"]
        words += [
            "--implementation=cp",
            "--platform=manylinux2014_x86_64",
            "--platform=manylinux_2_28_x86_64",
        ]
        run([sys.executable, "-m", "pip", "install", *words, "--target", folder / "lib", "-r", LOCK])

    return cache.entry("jupyter", [LOCK], build) / "lib"


def build_own(lab: Lab) -> None:
    """An image by the Dockerfile of the documents, whose two bases stand in for NVIDIA's: a host's, which has gcc, and a Debian."""
    (text,) = re.findall(r"```dockerfile\n(.*?)```", DOCUMENT.read_text(), re.S)
    devel, slim = re.findall(r"(?m)^FROM (\S+)", text)
    host = docker(lab.slot, "inspect", "--format={{.Config.Image}}", NODE)
    as_nvidias = "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    headers = "apt-get -qq update && apt-get -qq install --no-install-recommends libc6-dev"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tag, lines in (
            (devel, f"FROM {host}\nRUN {headers}\nCOPY nvcc /usr/bin/"),
            (slim, f"FROM {lab.table['images']['base']}\nENV {as_nvidias}"),
            (stand_in("own"), text),
        ):
            for file, content in (("Dockerfile", lines), ("app.cu", APP), ("nvcc", NVCC)):
                (folder / file).write_text(content)
            (folder / "nvcc").chmod(0o755)
            docker(lab.slot, "build", f"--network={NETWORK}", "-q", "-t", tag, folder)


@pytest.fixture(scope="module", autouse=True)
def node(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """A GPU node that has the images; afterwards its plugin is as the inventory has it."""
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", NODE)
    assert ran.code == 0, str(ran)
    base = Pods(lab).image
    docker(lab.slot, "load", "-i", lab.table["images"]["plugin_archive"])
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(jupyter(), Path(folder, "jupyter"))
        for path, text in FILES.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_text(text)
        for name, lines in IMAGES.items():
            Path(folder, "Dockerfile").write_text(f"FROM {base}\n{lines}\n")
            docker(lab.slot, "build", "--network=none", "-q", "-t", stand_in(name), folder)
        build_own(lab)
        archive = Path(folder, "images.tar")
        docker(lab.slot, "save", "-o", archive, *map(stand_in, (*IMAGES, "own")))
        into = [DOCKER, "-H", lab.slot.docker_host, "exec", "-i", NODE, "ctr", "-n", "k8s.io", "images", "import", "-"]  # fmt: skip
        with archive.open("rb") as images:
            subprocess.run(into, stdin=images, check=True, capture_output=True)
    yield
    ran = gpunode("plugin deploy", "--yes", "--json", "--limit", NODE)
    assert ran.code == 0, ran


@pytest.fixture
def applied(lab: Lab) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Creates what `gpunode run manifest` prints, with the image and the node named and nothing else changed."""
    made: list[str] = []

    def apply(name: str, image: str = "") -> list[dict[str, Any]]:
        words = ("--image", stand_in(image or name), "--node-selector", f"kubernetes.io/hostname={NODE}")
        printed = CliRunner().invoke(app, ["run", "manifest", name, *words])
        assert printed.exit_code == 0, printed.output
        objects = list(yaml.safe_load_all(printed.stdout))
        for item in objects:
            lab.request("POST", KINDS[item["kind"]], item)
            made.append(f"{KINDS[item['kind']]}/{item['metadata']['name']}")
        return objects

    yield apply
    for path in made:
        lab.request("DELETE", f"{path}?propagationPolicy=Foreground")
    wait("the workload's pods to be gone", lambda: not pods_of(lab, "gpunode-"), 60)


def pods_of(lab: Lab, begins: str) -> list[dict[str, Any]]:
    """Pods by the beginning of their name."""
    pods = lab.request("GET", f"{NAMESPACE}/pods")["items"]
    return [item for item in pods if item["metadata"]["name"].startswith(begins)]


def logs(lab: Lab, name: str, count: int = 1, phase: str = "Succeeded") -> list[str]:
    """What the pods of a workload wrote, once all of them are in this phase and have written something."""

    def there() -> list[str]:
        pods = [item for item in pods_of(lab, f"gpunode-{name}") if item["status"]["phase"] == phase]
        return [str(lab.request("GET", f"{NAMESPACE}/pods/{item['metadata']['name']}/log")) for item in pods]

    wait(
        f"{count} pods of {name} that are {phase}", lambda: len([log for log in there() if log]) == count, 90
    )
    return there()


def added(text: str) -> list[str]:
    """The GPUs on which vectors were added, by UUID."""
    return [gpu["uuid"] for gpu in json.loads(text)["gpus"] if gpu["passed"]]


def answer(lab: Lab, of: str, url: str) -> str:
    """The page, as a program on that host gets it; "" while there is none."""
    script = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=5).read().decode())"
    return lab.node(of).exec(["python3", "-c", script], check=False).stdout


def token(lab: Lab, namespace: str) -> str:
    """Jupyter's, out of the notebook's log."""
    tokens: list[str] = []

    def there() -> bool:
        for pod in lab.request("GET", f"{namespace}/pods")["items"]:
            if (
                pod["metadata"]["name"].startswith("gpunode-notebook-")
                and pod["status"]["phase"] == "Running"
            ):
                log = lab.request("GET", f"{namespace}/pods/{pod['metadata']['name']}/log")
                tokens[:] = re.findall(r"\?token=([0-9a-f]{48})$", str(log), re.M)
        return bool(tokens)

    wait("Jupyter's token in the log", there, 90)
    return tokens[0]


@pytest.mark.parametrize("name", ["vectoradd", "cuda", "mnist"])
def test_a_workload_that_ends_has_computed_on_one_gpu(
    lab: Lab, applied: Callable[..., list[dict[str, Any]]], name: str
):
    applied(name)
    (log,) = logs(lab, name)
    assert len(added(log)) == 1
    assert pods_of(lab, f"gpunode-{name}")[0]["spec"]["nodeName"] == NODE


def test_an_image_by_the_documents_dockerfile_has_its_pods_gpu(
    lab: Lab, applied: Callable[..., list[dict[str, Any]]]
):
    """One of the node's four, although its base asks for all. nvcc is gcc here, and the app opens the driver itself."""
    applied("cuda", "own")
    (log,) = logs(lab, "cuda")
    assert re.fullmatch(r"1: NVIDIA H100.*\n", log), log


def test_a_notebook_answers_at_its_service(lab: Lab, applied: Callable[..., list[dict[str, Any]]]):
    applied("notebook")
    address = lab.request("GET", f"{NAMESPACE}/services/gpunode-notebook")["spec"]["clusterIP"]
    page = f"http://{address}:8888/files/gpu.json?token={token(lab, NAMESPACE)}"
    wait("the notebook to answer", lambda: bool(answer(lab, NODE, page)), 90)
    assert len(added(answer(lab, NODE, page))) == 1


def test_a_notebook_answers_at_a_port_of_every_node(lab: Lab, gpunode: Callable[..., Ran]):
    """To who has the token of its log, and is gone when it is removed."""
    ran = gpunode("run notebook", "--limit", NODE, "--node-port", "--image", stand_in("notebook"), "--json")
    try:
        assert ran.code == 0, ran
        (row,) = ran.of("notebook")
        assert row["node"] == NODE
        assert "logs deployment/gpunode-notebook` shows its login token" in ran.stdout
        pages, key = set(), f"?token={token(lab, '/api/v1/namespaces/gpunode')}"
        for name in ("modern", "legacy"):
            url = f"http://{lab.node(name).address}:{row['port']}/files/gpu.json"
            wait(f"the notebook to answer at {url}", lambda url=url: bool(answer(lab, NODE, url + key)), 60)
            pages.add(answer(lab, NODE, url + key))
            assert "gpus" not in answer(lab, NODE, url)
        (page,) = pages  # the same pod answers
        assert len(added(page)) == 1
    finally:
        gone = gpunode("run notebook", "--remove", "--json")
    assert gone.code == 0, gone
    query = urlencode({"labelSelector": "app.kubernetes.io/name=gpunode-notebook"})
    assert not lab.request("GET", f"/api/v1/namespaces/gpunode/services?{query}")["items"]


def test_pods_that_share_by_memory_are_packed_onto_one_gpu(
    lab: Lab, gpunode: Callable[..., Ran], applied: Callable[..., list[dict[str, Any]]]
):
    lab.inventory.with_name("workloads-plugin.yaml").write_text("version: v1\nsharing: {memory: {}}\n")
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["cluster"]["plugin"]["config"] = "workloads-plugin.yaml"
    file = lab.inventory.with_name("workloads.yaml")
    file.write_text(yaml.safe_dump(inventory))
    ran = gpunode("plugin deploy", "--yes", "--json", "--limit", NODE, inventory=file)
    assert ran.code == 0, ran

    wait("shares of memory", lambda: lab.units(NODE, "aliyun.com/gpu-mem") > 0, 60)
    applied("binpack")
    seen = logs(lab, "binpack", 3, "Running")
    assert len(set(seen)) == 1
    assert seen[0].count("GPU-") == 1
