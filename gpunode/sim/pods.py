"""A pod on a simulated node: its containers from first start to last, its status, its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from gpunode.sim.container import CannotStart, Container, environment_of, words_of
from gpunode.sim.devices import DeviceManager, Unavailable
from gpunode.sim.machine import Now
from gpunode.sim.store import Object, now

BACK_OFF, LONGEST = 10.0, 300.0  # seconds before the second start that follows another, doubled each time
RETRY = 5.0  # seconds between two tries at an image or a sandbox
TAIL = 2048  # bytes of its log that a failed container's status keeps


class Place(Protocol):
    """What a pod knows of the node that it is on."""

    name: str
    host: Path
    sockets: Path
    devices: DeviceManager

    def image(self, reference: str) -> str:
        """The id of an image that is there, pulled if need be. Raises CannotStart."""
        ...

    def tell(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """An event about the pod."""
        ...


@dataclass(slots=True)
class Life:
    """One container of a pod, over all its lives."""

    spec: Object
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Object = field(default_factory=dict)
    process: Container | None = None
    logs: list[Path] = field(default_factory=list)
    image: str = ""
    restarts: int = 0
    starts: int = 0
    due: float = 0.0  # when it is to be started; monotonic

    @property
    def over(self) -> bool:
        """Whether it has ended for good, unless it is started again."""
        return "terminated" in self.state


class PodRun:
    """A pod that was bound to this node. `step` is to be called again and again; it never waits."""

    def __init__(self, pod: Object, place: Place) -> None:
        self.pod, self._place = pod, place
        self.lives = [Life(container) for container in pod["spec"]["containers"]]
        self._began = time.time()
        self._given: dict[str, str] | None = None  # the environment of its devices, once it has them
        self._refused: tuple[str, str] | None = (
            None  # reason and message of a pod that is over by the kubelet
        )
        self._sandbox_due = 0.0

    def step(self, host: Now) -> None:
        """Go on with what is due."""
        for life in self.lives:
            self._look_after(life)
        if self.leaving or self._refused:
            self._stop(float(self.pod["metadata"].get("deletionGracePeriodSeconds", 0)))
        elif time.time() - self._began > self.pod["spec"].get("activeDeadlineSeconds", float("inf")):
            words = "Pod was active on the node longer than the specified deadline"
            self._refused = ("DeadlineExceeded", words)
        elif host.running(f"{self._runtime(host)}.service") and self._admitted() and self._sandboxed(host):
            for life in self.lives:
                if life.process is None and not life.over and time.monotonic() >= life.due:
                    self._start(life, host)

    @property
    def leaving(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def ended(self) -> bool:
        """Whether no process of it is left."""
        return all(life.process is None for life in self.lives)

    def kill(self) -> None:
        """End its processes at once: its node went down, or its runtime with all its containers."""
        for life in self.lives:
            if life.process is not None:
                life.process.kill()

    def status(self) -> Object:
        """The status as the kubelet posts it."""
        before = {one["type"]: one for one in self.pod["status"].get("conditions") or []}
        scheduled = before.get("PodScheduled", {"type": "PodScheduled", "status": "True"})
        status: Object = {
            "phase": self._phase(),
            "qosClass": self.pod["status"].get("qosClass"),
            "startTime": _time(self._began),
        }
        if self._refused:
            status |= {"reason": self._refused[0], "message": self._refused[1]}
            if self._given is None:
                return {**status, "conditions": [scheduled]}
        well = all("running" in life.state for life in self.lives)
        unready = [life.spec["name"] for life in self.lives if "running" not in life.state]
        why = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
        conditions = [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": str(well), **({} if well else why)},
            {"type": "ContainersReady", "status": str(well), **({} if well else why)},
        ]
        for one in conditions:
            same = before.get(one["type"], {}).get("status") == one["status"]
            one["lastTransitionTime"] = before[one["type"]]["lastTransitionTime"] if same else now()
        return {
            **status,
            "conditions": [*conditions, scheduled],
            "containerStatuses": [_container(life) for life in self.lives],
        }

    def _phase(self) -> str:
        if self._refused:
            return "Failed"
        if all(life.over for life in self.lives):
            codes = [life.state["terminated"]["exitCode"] for life in self.lives]
            return "Failed" if any(codes) else "Succeeded"
        return "Running" if all(life.starts for life in self.lives) else "Pending"

    def _runtime(self, host: Now) -> str:
        return "docker" if "docker.service" in host.units else "containerd"

    def _admitted(self) -> bool:
        """Give it its devices, once; a pod that cannot have them is over."""
        if self._given is None:
            try:
                self._given = self._place.devices.allocate(self.pod["metadata"]["uid"], _asked(self.pod))
            except Unavailable as no:
                self._refused = ("UnexpectedAdmissionError", f"Pod was rejected: {no}")
                self._place.tell(self.pod, "Warning", "UnexpectedAdmissionError", str(no))
        return self._given is not None

    def _sandboxed(self, host: Now) -> bool:
        """Whether the runtime knows the handler that the pod's class asks for."""
        handler = self.pod["spec"].get("runtimeClassName", "")
        known = handler in host.runtime.handlers if self._runtime(host) == "containerd" else not handler
        if handler and not known and time.monotonic() >= self._sandbox_due:
            self._sandbox_due = time.monotonic() + RETRY
            why = (
                f'RuntimeHandler "{handler}" not supported'
                if self._runtime(host) == "docker"
                else f'failed to get sandbox runtime: no runtime for "{handler}" is configured'
            )
            words = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {why}"
            self._place.tell(self.pod, "Warning", "FailedCreatePodSandBox", words)
        return known or not handler

    def _start(self, life: Life, host: Now) -> None:
        spec, name = life.spec, life.spec["name"]
        try:
            life.image = self._place.image(spec["image"])
        except CannotStart as no:
            waits = "waiting" in life.state and "Pull" in life.state["waiting"]["reason"]
            back_off = f'Back-off pulling image "{spec["image"]}": ErrImagePull: {no}'
            reason, message = ("ImagePullBackOff", back_off) if waits else ("ErrImagePull", str(no))
            life.state, life.due = (
                {"waiting": {"reason": reason, "message": message}},
                time.monotonic() + RETRY,
            )
            words = f'Failed to pull image "{spec["image"]}": {no}'
            self._place.tell(self.pod, "Warning", "Failed", words)
            return
        life.starts += 1
        asked = {one["name"]: one.get("value", "") for one in spec.get("env", [])}
        devices = (self._given or {}) if _limits(spec) else {}
        handler = self.pod["spec"].get("runtimeClassName") or host.runtime.default
        meta = self.pod["metadata"]
        folder = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        log = self._place.host / "root/var/log/pods" / folder / name / f"{life.starts - 1}.log"
        try:
            place = self._place
            environment = environment_of({**asked, **devices}, place.host, host, handler, place.sockets)
            life.process = Container(words_of(spec), environment, log)
        except CannotStart as no:
            self._place.tell(self.pod, "Warning", "Failed", f"Error: failed to start container {name}: {no}")
            reason = "StartError" if self._runtime(host) == "containerd" else "ContainerCannotRun"
            self._over(life, 128, reason, time.time(), str(no))
            return
        life.logs.append(log)
        life.state = {"running": {"startedAt": _time(life.process.started)}}
        self._place.tell(self.pod, "Normal", "Started", f"Started container {name}")

    def _look_after(self, life: Life) -> None:
        """Notice that its process has ended."""
        if life.process is None or (code := life.process.ended()) is None:
            return
        message = ""
        if code and life.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = life.process.log.read_bytes()[-TAIL:].decode(errors="replace")
        began, life.process = life.process.started, None
        self._over(life, code, "Error" if code else "Completed", began, message)

    def _over(self, life: Life, code: int, reason: str, began: float, message: str) -> None:
        end = {"exitCode": code, "reason": reason, "startedAt": _time(began), "finishedAt": now()}
        life.state = {"terminated": {**end, **({"message": message} if message else {})}}
        policy = self.pod["spec"]["restartPolicy"]
        if policy == "Never" or (policy == "OnFailure" and not code) or self.leaving or self._refused:
            return
        life.last, wait = (
            life.state,
            min(BACK_OFF * 2 ** (life.restarts - 1), LONGEST) if life.restarts else 0.0,
        )
        life.restarts += 1
        life.due = time.monotonic() + wait
        if wait:
            name, meta = life.spec["name"], self.pod["metadata"]
            pod = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
            words = f"back-off {wait:.0f}s restarting failed container={name} pod={pod}"
            life.state = {"waiting": {"reason": "CrashLoopBackOff", "message": words}}
            told = f"Back-off restarting failed container {name} in pod {pod}"
            self._place.tell(self.pod, "Warning", "BackOff", told)
        else:
            life.state = {"waiting": {"reason": "ContainerCreating"}}

    def _stop(self, grace: float) -> None:
        for life in self.lives:
            if life.process is not None:
                life.process.stop(grace)


def _container(life: Life) -> Object:
    return {
        "name": life.spec["name"],
        "state": life.state,
        "lastState": life.last,
        "ready": "running" in life.state,
        "started": "running" in life.state,
        "restartCount": life.restarts,
        "image": life.spec["image"],
        "imageID": life.image,
    }


def _asked(pod: Object) -> dict[str, int]:
    """The devices that a pod asks for, of the one container that may."""
    return dict(pair for container in pod["spec"]["containers"] for pair in _limits(container))


def _limits(container: Object) -> list[tuple[str, int]]:
    limits: Iterator[tuple[str, str]] = iter((container["resources"].get("limits") or {}).items())
    return [(name, int(count)) for name, count in limits if "/" in name]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
