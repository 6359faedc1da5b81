"""The kubelet of a simulated machine: it registers its node, and runs pods while the machine's kubelet unit is active."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpunode.sim.apiserver.api import Log
from gpunode.sim.apiserver.patches import own_changes
from gpunode.sim.apiserver.store import Object, Store, is_ready, record, status_error, with_times
from gpunode.sim.controllers import Loop, NodeHealth
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host import daemons as start
from gpunode.sim.host.answers import CONTAINERD, DOCKER
from gpunode.sim.host.daemons import Unusable
from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.state import State
from gpunode.sim.node.container import NODE_ADDRESS, CannotStart, Endpoints
from gpunode.sim.node.devices import DeviceManager
from gpunode.sim.node.pods import ContainerLifecycle, PodRun
from gpunode.wording import page

TICK = 0.2  # seconds between two checks of the machine and of its pods' processes
CAPACITY = {"cpu": "64", "memory": "528000000Ki", "ephemeral-storage": "1700000000Ki", "pods": "110"}
PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


class Kubelet:
    """One machine's kubelet. `place`: its folders and ports on this computer; `pullable`: images in the registry.

    `accounts` gives the variables with which a service account (namespace, name) reaches the API; `forks` starts its processes.
    """

    def __init__(
        self,
        store: Store,
        state: State,
        place: Endpoints,
        health: NodeHealth,
        pullable: Collection[str],
        accounts: Callable[[str, str], Mapping[str, str]],
        forks: ForkServer,
    ) -> None:
        self.store, self.host, self.endpoints, self.forks = store, state.folder, place, forks
        self.machine = state.machine()
        self.name = self.machine.name
        self._state, self._health, self._pullable = state, health, pullable
        self._accounts = accounts
        self._file = state.folder / "state.json"
        self._stamp: object = None
        self._now = state.now()
        self._since = 0.0  # when the kubelet that now runs was started; 0: none runs
        self._gates: Mapping[str, bool] = {}  # that it was started with
        self._runtime = (self._now.boot_id, 0.0)
        self._runs: dict[str, PodRun] = {}  # by pod's uid
        self._counts: dict[str, tuple[int, int]] = {}  # of devices, as the node's status has them
        self._news = store.listen(self._concerns)
        self._loop = Loop(store, f"kubelet {self.name}", self._concerns, self._work, TICK)
        lists_resources = tuple(int(part) for part in self.machine.kubelet.split(".")[:2]) >= (1, 20)
        self.devices = DeviceManager(place, self._loop.stirred.set, self._pods if lists_resources else None)
        self._loop.start()

    def close(self) -> None:
        """End the kubelet and every process of its pods."""
        self._loop.close()
        self.devices.stop()
        for run in self._runs.values():
            run.kill()

    def image(self, reference: str, policy: str) -> str:
        """The id of an image that is present or in the registry. Raises CannotStart."""
        known = self._now.images.get(reference)
        if known is None and policy == "Never":
            raise CannotStart(f'Container image "{reference}" is not present with pull policy of Never')
        if known is None and reference not in self._pullable:
            raise CannotStart(
                "rpc error: code = Unknown desc = "
                + (
                    f"Error response from daemon: pull access denied for {reference}, repository does not exist or "
                    "may require 'docker login'"
                    if self.machine.runtime == "docker"
                    else f'failed to pull and unpack image "{reference}": failed to resolve reference '
                    f'"{reference}": pull access denied, repository does not exist or may require authorization'
                )
                + f" (this host is simulated and pulls nothing; what its pods can run: {page('demo.md')})"
            )
        return known or reference

    def account(self, pod: Object) -> Mapping[str, str]:
        """The API's address and the folder with the service account's token, as variables, if the pod mounts them."""
        if not pod["spec"].get("automountServiceAccountToken", True):
            return {}
        return self._accounts(pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"])

    def config(self, namespace: str, name: str) -> Object | None:
        return self.store.get("ConfigMap", namespace, name)

    def record(self, about: Object, kind: str, reason: str, message: str) -> None:
        record(self.store, about, "kubelet", kind, reason, message, self.name)

    def configz(self) -> Object:
        """Its configuration, as far as simulated. Raises StatusError."""
        if not self._since:
            message = f"dial tcp 127.0.0.1:10250: connect: connection refused: {self.name}"
            raise status_error(503, "ServiceUnavailable", message)
        return {"kubeletconfig": {"featureGates": dict(self._gates)}}

    def log(self, pod: Object, container: str, *, previous: bool) -> Log:
        """A container's log, of its last life or of the `previous` one. Raises StatusError."""
        name = pod["metadata"]["name"]
        if not self._since:
            where = f"https://127.0.0.1:10250/containerLogs/{pod['metadata']['namespace']}/{name}/{container}"
            message = f"Get {where}: dial tcp 127.0.0.1:10250: connect: connection refused"
            raise status_error(500, "InternalError", message)
        run = self._runs.get(pod["metadata"]["uid"])
        this = None
        if run:
            this = next((candidate for candidate in run.containers if candidate.name == container), None)
        logs = this.logs if this else []
        if previous:
            return Log(_previous_log(this, logs, container, name), lambda: True)
        if not logs or this is None:
            reason = this.state.get("waiting", {}).get("reason", "") if this else "ContainerCreating"
            message = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
            raise status_error(400, "BadRequest", message)
        process = this.process
        if process is None or process.log != logs[-1]:
            return Log(logs[-1], lambda: True)
        return Log(process.log, lambda: process.exit_code() is not None)

    def _pods(self) -> list[Object]:
        return [run.pod for run in list(self._runs.values())]

    def _concerns(self, item: Object) -> bool:
        if item["kind"] == "Node":
            return bool(item["metadata"]["name"] == self.name)
        return bool(item["kind"] == "Pod" and item["spec"].get("nodeName") == self.name)

    def _work(self) -> None:
        self._sync()
        containers = [
            seen for run in self._runs.values() for container in run.containers if (seen := container.seen)
        ]
        if containers != self._now.containers:
            with self._state.change() as now:
                now.containers = containers

    def _sync(self) -> None:
        changed = self._read_state()
        host = self._now
        self._deaths(host)
        running = host.is_active("kubelet.service") and time.time() >= host.down_until
        if not running:
            if self._since:
                self.devices.stop()
                self._since = 0.0
            return
        self._health.beat(self.name)
        since = host.units["kubelet.service"].since
        if since != self._since:
            self._begin(host)
            self._since, self._gates, changed = since, _gates(self._state.root, host), True
        if self._news.is_set():
            self._news.clear()
            changed = True
            self._receive()
        self._tend(host)
        if changed or self._counts != self.devices.counts():
            self._post(host)

    def _read_state(self) -> bool:
        stat = self._file.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp == self._stamp:
            return False
        self._stamp, self._now = stamp, self._state.now()
        return True

    def _deaths(self, host: Now) -> None:
        """Kill the containers after a reboot or a restart of dockerd; containerd's survive its restart. A module that was in
        use is unloaded only once its users have ended."""
        for run in self._runs.values() if "nvidia" not in host.modules else ():
            run.kill(gpu=True)
        docker = host.units.get("docker.service")
        runtime = (host.boot_id, docker.since if docker else 0.0)
        if runtime != self._runtime or time.time() < host.down_until:
            for run in self._runs.values():
                run.kill()
        self._runtime = runtime

    def _begin(self, host: Now) -> None:
        self.devices.stop()
        if _gates(self._state.root, host).get("DevicePlugins", True):  # of old kubelets
            self.devices.start()
        with self.store.changed:
            node = self.store.get("Node", "", self.name)
            if node is None:
                self.store.put(own_changes(None, new_node(self.name, host), "kubelet"))
            else:
                self.store.change(node, _set_status(restarted_status(node["status"])))
        self._news.set()
        self.record(self.store.get("Node", "", self.name) or {}, "Normal", "Starting", "Starting kubelet.")

    def _receive(self) -> None:
        bound = [pod for pod in self.store.all("Pod") if pod["spec"].get("nodeName") == self.name]
        for pod in bound:
            uid = pod["metadata"]["uid"]
            if uid in self._runs:
                self._runs[uid].pod = pod
            elif pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                self._runs[uid] = PodRun(pod, self)
        for uid in self._runs.keys() - {pod["metadata"]["uid"] for pod in bound}:
            self._runs[uid].kill()  # it was deleted by force
            self._forget(uid)

    def _tend(self, host: Now) -> None:
        for uid, run in list(self._runs.items()):
            run.step(host)
            if run.leaving and run.ended:
                self._forget(uid)
                if run.pod["metadata"].get("finalizers"):
                    self.store.change(run.pod, _set_status(run.status()))
                else:
                    self.store.drop(run.pod)
                continue
            status = run.status()
            if status["phase"] in {"Succeeded", "Failed"} and run.ended:
                self.devices.free(uid)
            if status != run.pod["status"]:
                run.pod = self.store.change(run.pod, _set_status(status)) or run.pod

    def _forget(self, uid: str) -> None:
        self.devices.free(uid)
        self._runs.pop(uid).volumes.remove()

    def _post(self, host: Now) -> None:
        self._counts = self.devices.counts()
        node = self.store.get("Node", "", self.name)
        if node is not None:
            counts = self._counts

            def post(item: Object) -> None:  # of what it is by then: others write conditions
                item["status"] = node_status(item["status"], self.machine, host, self._state.root, counts)

            after = self.store.change(node, post)
            if after is not None and not is_ready(node) and is_ready(after):
                message = f"Node {self.name} status is now: NodeReady"
                self.record(node, "Normal", "NodeReady", message)


def _gates(root: Path, host: Now) -> Mapping[str, bool]:
    try:
        return start.feature_gates(root, host.arguments)
    except Unusable:  # its configuration was changed since its start
        return {}


def _set_status(status: Object) -> Callable[[Object], None]:
    return lambda item: item.update(status=status)


def _previous_log(this: ContainerLifecycle | None, logs: list[Path], container: str, pod: str) -> Path:
    ended = logs if this is not None and this.process is None else logs[:-1]
    if this is None or not this.restarts or not ended:
        message = f'previous terminated container "{container}" in pod "{pod}" not found'
        raise status_error(400, "BadRequest", message)
    return ended[-1]


def new_node(name: str, host: Now) -> Object:
    """The Node object that a kubelet creates if there is none."""
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    labels |= {f"beta.{key}": value for key, value in labels.items() if not key.endswith("hostname")}
    for word in host.arguments:
        if word.startswith("--node-labels="):
            pairs = (pair.partition("=") for pair in word.partition("=")[2].split(",") if pair)
            labels |= {key: value for key, _, value in pairs}
    meta = {"name": name, "labels": dict(sorted(labels.items()))}
    return {"kind": "Node", "apiVersion": "v1", "metadata": meta, "spec": {}, "status": {}}


def restarted_status(node_status: Object) -> Object:
    """The status that a starting kubelet finds, with its extended resources at 0 until they are counted again."""
    known = node_status.get("capacity", {})
    return {**node_status, "capacity": {name: "0" if "/" in name else count for name, count in known.items()}}


def node_status(
    before: Object, machine: Machine, host: Now, root: Path, devices: Mapping[str, tuple[int, int]]
) -> Object:
    """The node's status. `devices` are (all, healthy) by resource. Extended resources that clients count stay."""
    counted = {name: count for name, count in before.get("capacity", {}).items() if "/" in name}
    up = host.is_active(f"{machine.runtime}.service")
    version = f"docker://{DOCKER}" if machine.runtime == "docker" else f"containerd://{CONTAINERD}"
    return {
        "capacity": {**CAPACITY, **counted, **{name: str(count) for name, (count, _) in devices.items()}},
        "allocatable": {
            **CAPACITY,
            **counted,
            **{name: str(healthy) for name, (_, healthy) in devices.items()},
        },
        "conditions": _conditions(before, up=up),
        "addresses": [
            {"type": "InternalIP", "address": NODE_ADDRESS},
            {"type": "Hostname", "address": machine.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": _line(root / "etc/machine-id"),
            "systemUUID": _line(root / "sys/class/dmi/id/product_uuid"),
            "bootID": host.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": _system(root),
            "containerRuntimeVersion": version,
            "kubeletVersion": f"v{machine.kubelet}",
            "kubeProxyVersion": f"v{machine.kubelet}",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        "images": [{"names": [name], "sizeBytes": 0} for name in host.images],
    }


def _conditions(before: Object, *, up: bool) -> list[Object]:
    conditions = [
        {"type": kind, "status": "False", "reason": reason, "message": message}
        for kind, (reason, message) in PRESSURES.items()
    ]
    ready = ("False", "KubeletNotReady", "container runtime is down")
    if up:
        ready = ("True", "KubeletReady", "kubelet is posting ready status")
    conditions.append(dict(zip(("type", "status", "reason", "message"), ("Ready", *ready), strict=True)))
    own = {each["type"] for each in conditions}  # others' stay: the real one patches its own by type
    others = [each for each in before.get("conditions") or [] if each["type"] not in own]
    return [*with_times(conditions, before, "lastHeartbeatTime", "lastTransitionTime"), *others]


def _system(root: Path) -> str:
    for line in (root / "etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
