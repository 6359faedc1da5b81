"""A pod on a simulated node, from its admission by the kubelet to its end, with its status."""

from __future__ import annotations

import time

from gpunode.sim.apiserver.store import Object, now
from gpunode.sim.host.machine import Now
from gpunode.sim.node.devices import Unavailable
from gpunode.sim.node.endpoints import NODE_ADDRESS
from gpunode.sim.node.lifecycle import CannotMount, ContainerLifecycle, Node, Volumes, stamp

RETRY = 5.0  # seconds between two tries at a sandbox or a volume


class PodRun:
    """A pod that is bound to this node. `step` must be called repeatedly; it never waits long."""

    def __init__(self, pod: Object, node: Node) -> None:
        self.pod, self._node = pod, node
        self.volumes = Volumes(pod, node.host, node.config)
        self.containers = [
            ContainerLifecycle(container, node, self.volumes) for container in pod["spec"]["containers"]
        ]
        self._began = time.time()
        self._given: dict[str, dict[str, str]] | None = (
            None  # container -> environment of its devices, once it has them
        )
        self._refused: tuple[str, str] | None = None  # reason and message of a pod that the kubelet ended
        self._due: dict[str, float] = {}  # reason of an event -> when it is recorded again; monotonic

    @property
    def leaving(self) -> bool:
        """True if it is being deleted."""
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def ended(self) -> bool:
        """True if it has no process."""
        return all(container.process is None for container in self.containers)

    def step(self, host: Now) -> None:
        """Do what is due: check, start or stop its containers."""
        for container in self.containers:
            container.check(self.pod)
        if self.leaving or self._refused:
            self._stop()
        elif time.time() - self._began > self.pod["spec"].get("activeDeadlineSeconds", float("inf")):
            words = "Pod was active on the node longer than the specified deadline"
            self._refused = ("DeadlineExceeded", words)
        elif self._running(host) and self._admitted() and self._mounted() and self._sandboxed(host):
            handler = self.pod["spec"].get("runtimeClassName") or host.runtime.default
            for one in self.containers:
                one.start(self.pod, host, handler, (self._given or {}).get(one.name, {}))

    def kill(self, *, gpu: bool = False) -> None:
        """End its processes at once: its node went down, or its runtime with all its containers. `gpu`: only those that use
        the driver."""
        for container in self.containers:
            if container.process is not None and (not gpu or (container.seen and container.seen.gpu)):
                container.process.kill()

    def status(self) -> Object:
        """The status as the kubelet posts it."""
        before = {condition["type"]: condition for condition in self.pod["status"].get("conditions") or []}
        scheduled = before.get("PodScheduled", {"type": "PodScheduled", "status": "True"})
        status: Object = {
            "phase": self._phase(),
            "qosClass": self.pod["status"].get("qosClass"),
            "startTime": stamp(self._began),
            "hostIP": NODE_ADDRESS,
            "hostIPs": [{"ip": NODE_ADDRESS}],
        }
        if self._refused:
            status |= {"reason": self._refused[0], "message": self._refused[1]}
        if self._refused and self._given is None:
            return {**status, "conditions": [scheduled]}  # no container ever was
        unready = [container.name for container in self.containers if not container.ready]
        words = f"containers with unready status: [{' '.join(unready)}]"
        why = {"reason": "ContainersNotReady", "message": words} if unready else {}
        conditions: list[Object] = [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": str(not unready), **why},
            {"type": "ContainersReady", "status": str(not unready), **why},
        ]
        for one in conditions:
            known = before.get(one["type"], {})
            same = known.get("status") == one["status"]
            one["lastTransitionTime"] = known["lastTransitionTime"] if same else now()
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
            return (
                "Failed"
                if any(container.state["terminated"]["exitCode"] for container in self.containers)
                else "Succeeded"
            )
        return "Running" if all(container.starts for container in self.containers) else "Pending"

    def _admitted(self) -> bool:
        """Allocate its devices, once; without them the pod fails."""
        if self._given is None:
            devices = self._node.devices
            try:
                self._given = {
                    container.name: devices.allocate(
                        self.pod["metadata"]["uid"], container.name, _limits(container.spec)
                    )
                    for container in self.containers
                }
            except Unavailable as no:
                self._refused = ("UnexpectedAdmissionError", f"Pod was rejected: {no}")
                self._node.record(self.pod, "Warning", "UnexpectedAdmissionError", str(no))
        return self._given is not None

    def _running(self, host: Now) -> bool:
        return host.running(f"{_runtime(host)}.service")

    def _mounted(self) -> bool:
        """Update its volumes; False if one is missing."""
        try:
            self.volumes.bring()
        except CannotMount as no:
            self._warn("FailedMount", str(no))
            return False
        return True

    def _sandboxed(self, host: Now) -> bool:
        """True if the runtime has the handler of the pod's RuntimeClass; dockershim has none."""
        handler = self.pod["spec"].get("runtimeClassName")
        docker = _runtime(host) == "docker"
        if not handler or (handler in host.runtime.handlers and not docker):
            return True
        none = f'failed to get sandbox runtime: no runtime for "{handler}" is configured'
        why = f'RuntimeHandler "{handler}" not supported' if docker else none
        words = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {why}"
        self._warn("FailedCreatePodSandBox", words)
        return False

    def _warn(self, reason: str, words: str) -> None:
        """Record an event about a repeated failure, at most every RETRY seconds."""
        if time.monotonic() >= self._due.get(reason, 0.0):
            self._due[reason] = time.monotonic() + RETRY
            self._node.record(self.pod, "Warning", reason, words)

    def _stop(self) -> None:
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        for container in self.containers:
            container.stop(
                self.pod, self.pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            )


def _runtime(host: Now) -> str:
    return "docker" if "docker.service" in host.units else "containerd"


def _limits(container: Object) -> dict[str, int]:
    """The devices that a container requests."""
    limits = container["resources"].get("limits") or {}
    return {name: int(count) for name, count in limits.items() if "/" in name}
