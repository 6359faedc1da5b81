"""Pods that ask for GPUs and say what they were given."""

import contextlib
import json
import tarfile
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from .api import Lab
from .progress import LabError, wait

NAMESPACE = "/api/v1/namespaces/default"
LABEL = "lab.gpunode.dev/test"
# Says what the container sees, and goes on holding its GPUs.
LOOK = """
import glob, json, os, subprocess, sys, time
added = subprocess.run([sys.executable, "-m", "gpunode.deviceplugin.vectoradd", "--json"], capture_output=True, text=True)
print(json.dumps({
    "nodes": sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/nvidia-caps/*")),
    "control": sorted(glob.glob("/dev/nvidia[a-z]*") + glob.glob("/dev/nvidia-[!c]*")),
    "env": {name: value for name, value in os.environ.items() if name.startswith(("NVIDIA_", "CUDA_", "ALIYUN_"))},
    "cuda": json.loads(added.stdout),
}), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one container saw: device nodes, variables, and the GPUs on which it added two vectors.

    `memory`: the MiB of each GPU that the driver let it have.
    """

    nodes: tuple[str, ...]
    control: tuple[str, ...]  # device nodes of no GPU in particular
    env: Mapping[str, str]
    uuids: tuple[str, ...]
    error: str
    memory: tuple[int, ...] = ()


class Pods:
    """Makes pods, and deletes them all in the end. Use `pods()`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        with tarfile.open(lab.table["images"]["plugin_archive"]) as archive:
            manifest = archive.extractfile("manifest.json")
            assert manifest is not None
            self.image = str(json.load(manifest)[0]["RepoTags"][0])

    def make(self, name: str, node: str, gpus: int = 1, resource: str = "nvidia.com/gpu", **more: Any) -> str:
        """A pod that looks, on this node. `env`, `image`: of the container; the rest are fields of the pod's spec."""
        env = [{"name": key, "value": value} for key, value in more.pop("env", {}).items()]
        container = {
            "name": "look",
            "image": more.pop("image", self.image),
            "args": ["-c", LOOK],
            "env": env,
            "resources": {"limits": {resource: gpus}},
        }
        return self.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": False,
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [container],
                    **more,
                },
            }
        )

    def create(self, pod: dict[str, Any]) -> str:
        """Any pod; its name."""
        pod["metadata"].setdefault("labels", {})[LABEL] = "yes"
        self._lab.request("POST", f"{NAMESPACE}/pods", pod)
        return str(pod["metadata"]["name"])

    def get(self, name: str) -> dict[str, Any]:
        return dict(self._lab.request("GET", f"{NAMESPACE}/pods/{name}"))

    def log(self, name: str) -> str:
        """What it has said so far; "" while there is nothing to ask."""
        try:
            return str(self._lab.request("GET", f"{NAMESPACE}/pods/{name}/log"))
        except urllib.error.HTTPError:
            return ""

    def seen(self, *names: str) -> list[Seen]:
        """What each pod saw, as soon as all have said it."""
        for name in names:
            try:
                wait(f"{name} to say what it sees", lambda name=name: self._spoke(name), 60)
            except LabError as error:
                raise LabError(f"{error}: {self.get(name)['status']}") from None
        return [self._seen(name) for name in names]

    def _spoke(self, name: str) -> bool:
        status = self.get(name)["status"]
        assert status["phase"] in ("Pending", "Running"), f"{name}: {status}\n{self.log(name)}"
        return self.log(name).endswith("\n")

    def _seen(self, name: str) -> Seen:
        said = json.loads(self.log(name).splitlines()[-1])
        cuda = said["cuda"]
        return Seen(
            nodes=tuple(said["nodes"]),
            control=tuple(said["control"]),
            env=said["env"],
            uuids=tuple(gpu["uuid"] for gpu in cuda["gpus"] if gpu["passed"]),
            error=cuda.get("error", ""),
            memory=tuple(gpu["memory_mib"] for gpu in cuda["gpus"]),
        )

    def refusal(self, name: str) -> str:
        """Why the kubelet did not admit the pod, once it has said so; its event says the same."""
        wait(f"{name} to be refused", lambda: self.get(name)["status"]["phase"] == "Failed", 60)
        status = self.get(name)["status"]
        assert status["reason"] == "UnexpectedAdmissionError", status
        query = urlencode({"fieldSelector": f"involvedObject.name={name},reason=UnexpectedAdmissionError"})

        def events() -> list[Any]:
            return list(self._lab.request("GET", f"{NAMESPACE}/events?{query}")["items"])

        wait(f"an event of {name}", lambda: bool(events()), 120)
        assert events()[-1]["message"] in status["message"]
        return str(status["message"])

    def unschedulable(self, name: str) -> str:
        """Why the scheduler finds no node for it, once it has said so."""
        reasons: list[str] = []

        def said() -> bool:
            conditions = self.get(name)["status"].get("conditions", [])
            reasons[:] = [line["message"] for line in conditions if line.get("reason") == "Unschedulable"]
            return bool(reasons)

        wait(f"{name} to be unschedulable", said, 120)
        return reasons[0]

    def delete(self, *names: str) -> None:
        """Delete pods (all of ours if none is named) and wait until they are gone."""
        query = urlencode({"labelSelector": f"{LABEL}=yes"})
        every = [
            pod["metadata"]["name"] for pod in self._lab.request("GET", f"{NAMESPACE}/pods?{query}")["items"]
        ]
        for name in names or every:
            self._lab.request("DELETE", f"{NAMESPACE}/pods/{name}")
        for name in names or every:
            wait(f"{name} to be gone", lambda name=name: self._gone(name), 60)

    def _gone(self, name: str) -> bool:
        try:
            self.get(name)
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False


@contextlib.contextmanager
def pods(lab: Lab) -> Iterator[Pods]:
    """Pods for one test."""
    made = Pods(lab)
    made.delete()  # what a test that died has left
    try:
        yield made
    finally:
        made.delete()
