"""One container of a pod on a simulated node: its mounts, starts, restarts, readiness and status."""

import http.client
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from gpunode.contract.times import utc
from gpunode.sim.apiserver.store import Object, with_times
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host.answers import pid
from gpunode.sim.host.machine import ContainerNow, Now
from gpunode.sim.node.container import (
    NODE_ADDRESS,
    CannotStart,
    Container,
    Endpoints,
    arguments_of,
    command_of,
    environment_of,
)
from gpunode.sim.node.devices import DeviceManager, Unavailable

PROBE_SECONDS = 1.0  # that the simulation waits for an answer; its kubelet does nothing else meanwhile
VOLUMES = "root/var/lib/kubelet/pods"
BACK_OFF, LONGEST = 10.0, 300.0  # seconds before the second restart, doubled each time
NEVER = "ErrImageNeverPull"
RETRY = 5.0  # seconds between two tries at an image, a sandbox or a volume
TAIL = 2048  # bytes of its log that a failed container's status keeps


class Probe:
    """Whether one life of a container is ready. `place` has its address on this computer."""

    def __init__(self, spec: Object, place: Endpoints) -> None:
        self._place = place
        self._spec = spec.get("readinessProbe") or {}
        self._due = time.monotonic() + self._spec.get("initialDelaySeconds", 0)
        self._failed = 0  # times in a row
        self.ready = "httpGet" not in self._spec

    def probe(self) -> str:
        """Probe if the period has passed; returns the kubelet's message if that failed, else ""."""
        if "httpGet" not in self._spec or time.monotonic() < self._due:
            return ""
        self._due = time.monotonic() + self._spec["periodSeconds"]
        why = self._get()
        self._failed = self._failed + 1 if why else 0
        if not why or self._failed >= self._spec["failureThreshold"]:
            self.ready = not why
        return f"Readiness probe failed: {why}" if why else ""

    def _get(self) -> str:
        port, path = self._spec["httpGet"]["port"], self._spec["httpGet"]["path"]
        address = self._place.address
        connection = http.client.HTTPConnection(address, self._place.at(port), timeout=PROBE_SECONDS)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except OSError as error:
            return f'Get "http://{address}:{port}{path}": {str(error.strerror or error).lower()}'
        except http.client.HTTPException as error:
            return f'Get "http://{address}:{port}{path}": {error}'
        finally:
            connection.close()
        return "" if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"


class CannotMount(Exception):
    """A volume cannot be set up; the message is the kubelet's."""


class Volumes:
    """The volumes of one pod. `host` is its host's folder; `find` gives the ConfigMap of a namespace and name."""

    def __init__(self, pod: Object, host: Path, find: Callable[[str, str], Object | None]) -> None:
        self._folder: Path = host / VOLUMES / pod["metadata"]["uid"]
        self._namespace, self._find = pod["metadata"]["namespace"], find
        self._sources: dict[str, str] = {
            volume["name"]: volume["configMap"]["name"]
            for volume in pod["spec"].get("volumes", [])
            if "configMap" in volume
        }
        self._hosts: dict[str, Path] = {
            volume["name"]: host / "root" / volume["hostPath"]["path"].strip("/")
            for volume in pod["spec"].get("volumes", [])
            if "hostPath" in volume
        }
        self._held: dict[str, str] = {}  # volume -> the version of the ConfigMap that it shows

    def update(self) -> None:
        """Write the files of the current ConfigMaps; those of a deleted one stay. Raises CannotMount."""
        for volume, name in self._sources.items():
            config = self._find(self._namespace, name)
            if config is None and volume not in self._held:
                raise CannotMount(
                    f'MountVolume.SetUp failed for volume "{volume}" : configmap "{name}" not found'
                )
            if config is not None and config["metadata"]["resourceVersion"] != self._held.get(volume):
                _fill(self._place(volume), config.get("data") or {})
                self._held[volume] = config["metadata"]["resourceVersion"]

    def map_paths(self, container: Object, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a container, with paths below its mounts replaced by those on this computer."""
        mounts = dict(self._mounts(container))

        def map_path(value: str) -> str:
            for mount, place in mounts.items():
                if value == mount or value.startswith(f"{mount}/"):
                    return f"{place}{value.removeprefix(mount)}"
            return value

        return {name: map_path(value) for name, value in variables.items()}

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mounts(self, container: Object) -> Iterator[tuple[str, Path]]:
        for mount in container.get("volumeMounts", []):
            path = mount["mountPath"].rstrip("/")
            if mount["name"] in self._sources:
                yield path, self._place(mount["name"])
            elif mount["name"] in self._hosts:
                yield path, self._hosts[mount["name"]]

    def _place(self, volume: str) -> Path:
        return self._folder / "volumes/kubernetes.io~configmap" / volume


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the folder's files atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        new = folder / f"..{name}"  # two dots, as the kubelet's own: readers do not take it for a key
        new.write_text(text, encoding="utf-8")
        new.replace(folder / name)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


class Node(Protocol):
    """The kubelet's interface for pods and their containers."""

    host: Path
    endpoints: Endpoints
    forks: ForkServer
    devices: DeviceManager

    def image(self, reference: str, policy: str) -> str: ...
    def account(self, pod: Object) -> Mapping[str, str]: ...
    def config(self, namespace: str, name: str) -> Object | None: ...
    def record(self, pod: Object, kind: str, reason: str, message: str) -> None: ...


class ContainerLifecycle:
    """A container of a pod. `logs` are those of its lives, the newest last."""

    def __init__(self, spec: Object, node: Node, volumes: Volumes) -> None:
        self.spec, self.name = spec, spec["name"]
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.process: Container | None = None
        self.logs: list[Path] = []
        self.starts = 0
        self.restarts = 0
        self._node, self._volumes = node, volumes
        self._last: Object = {}
        self._image = self._id = ""
        self._seen: ContainerNow | None = None  # as the host saw its last life
        self._due = 0.0  # when it is to be started; monotonic
        self._probe = Probe(spec, node.endpoints)

    @property
    def over(self) -> bool:
        """True if it has ended and is not restarted."""
        return "terminated" in self.state

    @property
    def ready(self) -> bool:
        """True if it runs and its readiness probe succeeds."""
        return self.process is not None and self._probe.ready

    @property
    def seen(self) -> ContainerNow | None:
        """The container as its host sees it; None if it does not run."""
        return self._seen if self.process is not None and self.process.exit_code() is None else None

    def start(self, pod: Object, host: Now, handler: str, devices: Mapping[str, str]) -> None:
        """Start it if a start is due. `devices` is the environment of its devices."""
        if self.process is not None or self.over or time.monotonic() < self._due or not self._pull(pod):
            return
        self.starts += 1
        runtime = _runtime(host)
        self._id = f"{runtime}://{secrets.token_hex(32)}"
        variables = {
            **self._node.account(pod),
            **{variable["name"]: _value(variable, pod) for variable in self.spec.get("env", [])},
        }
        variables = self._volumes.map_paths(self.spec, variables)
        meta, node = pod["metadata"], self._node
        folder = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        log = node.host / "root/var/log/pods" / folder / self.name / f"{self.starts - 1}.log"
        try:
            environment = environment_of({**variables, **devices}, node.host, host, handler, node.endpoints)
            self.process = Container(node.forks, arguments_of(self.spec), environment, log)
            gpu = "GPUNODE_SIM_HOST" in environment
            self._seen = ContainerNow(
                self._id.rpartition("/")[2], meta["uid"], pid(), command_of(self.spec), gpu
            )
        except CannotStart as no:
            node.record(pod, "Warning", "Failed", f"Error: failed to start container {self.name}: {no}")
            reason = "ContainerCannotRun" if runtime == "docker" else "StartError"
            self._end(pod, 128, reason, time.time(), str(no))
            return
        self._probe = Probe(self.spec, node.endpoints)
        self.logs.append(log)
        self.state = {"running": {"startedAt": utc(self.process.started)}}
        node.record(pod, "Normal", "Pulled", self._image_message())
        node.record(pod, "Normal", "Created", f"Created container: {self.name}")
        node.record(pod, "Normal", "Started", f"Started container {self.name}")

    def check(self, pod: Object) -> None:
        """Update the state if its process has ended; else probe it."""
        if self.process is None:
            return
        if (code := self.process.exit_code()) is None:
            if (why := self._probe.probe()) and "deletionTimestamp" not in pod["metadata"]:
                self._node.record(pod, "Warning", "Unhealthy", why)
            return
        message = ""
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self.process.log.read_bytes()[-TAIL:].decode(errors="replace")
        began, self.process = self.process.started, None
        self._end(pod, code, "Error" if code else "Completed", began, message)

    def stop(self, pod: Object, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds. To be called until it has ended."""
        if self.process is None:
            return
        if not self.process.stopping:
            self._node.record(pod, "Normal", "Killing", f"Stopping container {self.name}")
        self.process.stop(grace)

    def status(self) -> Object:
        """Its part of the pod's status."""
        return {
            "name": self.name,
            "state": self.state,
            "lastState": self._last,
            "ready": self.ready,
            "started": "running" in self.state,
            "restartCount": self.restarts,
            "image": self.spec["image"],
            "imageID": self._image,
            **({"containerID": self._id} if self._id else {}),
        }

    def _image_message(self) -> str:
        reference = self.spec["image"]
        if self._image == reference:  # it has no id but that which a registry gives it
            return f'Successfully pulled image "{reference}"'
        return f'Container image "{reference}" already present on machine'

    def _pull(self, pod: Object) -> bool:
        reference, policy = self.spec["image"], self.spec["imagePullPolicy"]
        try:
            self._image = self._node.image(reference, policy)
        except CannotStart as no:
            self._due = time.monotonic() + RETRY
            if policy == "Never":
                self.state = {"waiting": {"reason": NEVER, "message": str(no)}}
                self._node.record(pod, "Warning", NEVER, str(no))
                return False
            again = "Pull" in self.state.get("waiting", {}).get("reason", "")
            back_off = f'Back-off pulling image "{reference}": ErrImagePull: {no}'
            reason, message = ("ImagePullBackOff", back_off) if again else ("ErrImagePull", str(no))
            self.state = {"waiting": {"reason": reason, "message": message}}
            self._node.record(pod, "Warning", "Failed", f'Failed to pull image "{reference}": {no}')
            return False
        return True

    def _end(self, pod: Object, code: int, reason: str, began: float, message: str) -> None:
        end = {"exitCode": code, "reason": reason, "startedAt": utc(began), "finishedAt": utc()}
        self.state = {"terminated": {**end, **({"message": message} if message else {})}}
        policy, meta = pod["spec"]["restartPolicy"], pod["metadata"]
        if policy == "Never" or (policy == "OnFailure" and not code) or "deletionTimestamp" in meta:
            return
        self._last = self.state
        wait = min(BACK_OFF * 2 ** (self.restarts - 1), LONGEST) if self.restarts else 0.0
        self.restarts += 1
        self._due = time.monotonic() + wait
        self.state = {"waiting": {"reason": "ContainerCreating"}}
        if wait:
            called = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
            why = f"back-off {wait:.0f}s restarting failed container={self.name} pod={called}"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": why}}
            message = f"Back-off restarting failed container {self.name} in pod {called}"
            self._node.record(pod, "Warning", "BackOff", message)


def _value(variable: Object, pod: Object) -> str:
    """A variable's value: a text, or the pod's node name, the only field that is simulated."""
    field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return str(pod["spec"]["nodeName"]) if field == "spec.nodeName" else str(variable.get("value", ""))


class PodRun:
    """A pod that is bound to this node. `step` must be called repeatedly; it never waits long."""

    def __init__(self, pod: Object, node: Node) -> None:
        self.pod, self._node = pod, node
        self.volumes = Volumes(pod, node.host, node.config)
        self.containers = [
            ContainerLifecycle(container, node, self.volumes) for container in pod["spec"]["containers"]
        ]
        self._began = time.time()
        # Container -> environment of its devices, once it has them
        self._devices: dict[str, dict[str, str]] | None = None
        self._refused: tuple[str, str] | None = None  # reason and message of a pod that the kubelet ended
        self._due: dict[str, float] = {}  # reason of an event -> when it is recorded again; monotonic

    @property
    def leaving(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def ended(self) -> bool:
        return all(container.process is None for container in self.containers)

    def step(self, host: Now) -> None:
        """Do what is due: check, start or stop its containers."""
        for container in self.containers:
            container.check(self.pod)
        if self.leaving or self._refused:
            self._stop()
        elif time.time() - self._began > self.pod["spec"].get("activeDeadlineSeconds", float("inf")):
            why = "Pod was active on the node longer than the specified deadline"
            self._refused = ("DeadlineExceeded", why)
        elif (
            host.is_active(f"{_runtime(host)}.service")
            and self._admit()
            and self._mount()
            and self._has_handler(host)
        ):
            handler = self.pod["spec"].get("runtimeClassName") or host.runtime.default
            for each in self.containers:
                each.start(self.pod, host, handler, (self._devices or {}).get(each.name, {}))

    def kill(self, *, gpu: bool = False) -> None:
        """End its processes at once: its node went down, or its runtime with all its containers. `gpu`: only those that use
        the driver."""
        for container in self.containers:
            if container.process is not None and (not gpu or (container.seen and container.seen.gpu)):
                container.process.kill()

    def status(self) -> Object:
        """The status as the kubelet posts it."""
        known = self.pod["status"].get("conditions") or [{"type": "PodScheduled", "status": "True"}]
        scheduled = next(condition for condition in known if condition["type"] == "PodScheduled")
        status: Object = {
            "phase": self._phase(),
            "qosClass": self.pod["status"].get("qosClass"),
            "startTime": utc(self._began),
            "hostIP": NODE_ADDRESS,
            "hostIPs": [{"ip": NODE_ADDRESS}],
        }
        if self._refused:
            status |= {"reason": self._refused[0], "message": self._refused[1]}
        if self._refused and self._devices is None:
            return {**status, "conditions": [scheduled]}  # no container ever was
        unready = [container.name for container in self.containers if not container.ready]
        message = f"containers with unready status: [{' '.join(unready)}]"
        why = {"reason": "ContainersNotReady", "message": message} if unready else {}
        conditions: list[Object] = [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": str(not unready), **why},
            {"type": "ContainersReady", "status": str(not unready), **why},
        ]
        with_times(conditions, self.pod["status"], "lastTransitionTime")
        address = self._node.endpoints.address
        return {
            **status,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [*conditions, scheduled],
            "containerStatuses": [container.status() for container in self.containers],
        }

    def _phase(self) -> str:
        if self._refused:
            return "Failed"
        if all(container.over for container in self.containers):
            if any(container.state["terminated"]["exitCode"] for container in self.containers):
                return "Failed"
            return "Succeeded"
        return "Running" if all(container.starts for container in self.containers) else "Pending"

    def _admit(self) -> bool:
        """Allocate its devices, once; without them the pod fails."""
        if self._devices is None:
            devices = self._node.devices
            try:
                self._devices = {
                    container.name: devices.allocate(
                        self.pod["metadata"]["uid"], container.name, _limits(container.spec)
                    )
                    for container in self.containers
                }
            except Unavailable as no:
                self._refused = ("UnexpectedAdmissionError", f"Pod was rejected: {no}")
                self._node.record(self.pod, "Warning", "UnexpectedAdmissionError", str(no))
        return self._devices is not None

    def _mount(self) -> bool:
        """Update its volumes; False if one is missing."""
        try:
            self.volumes.update()
        except CannotMount as no:
            self._warn("FailedMount", str(no))
            return False
        return True

    def _has_handler(self, host: Now) -> bool:
        """True if the runtime has the handler of the pod's RuntimeClass; dockershim has none."""
        handler = self.pod["spec"].get("runtimeClassName")
        docker = _runtime(host) == "docker"
        if not handler or (handler in host.runtime.handlers and not docker):
            return True
        none = f'failed to get sandbox runtime: no runtime for "{handler}" is configured'
        why = f'RuntimeHandler "{handler}" not supported' if docker else none
        message = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {why}"
        self._warn("FailedCreatePodSandBox", message)
        return False

    def _warn(self, reason: str, message: str) -> None:
        """Record an event about a repeated failure, at most every RETRY seconds."""
        if time.monotonic() >= self._due.get(reason, 0.0):
            self._due[reason] = time.monotonic() + RETRY
            self._node.record(self.pod, "Warning", reason, message)

    def _stop(self) -> None:
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        for container in self.containers:
            container.stop(
                self.pod, self.pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            )


def _runtime(host: Now) -> str:
    return "docker" if "docker.service" in host.units else "containerd"


def _limits(container: Object) -> dict[str, int]:
    limits = container["resources"].get("limits") or {}
    return {name: int(count) for name, count in limits.items() if "/" in name}
