"""What a plan interrupts, and whose work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpunode.model.facts import GpuUser


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What changes interrupt on their host. `restarts`: units that restart or stop, in order. `modules`: kernel modules are unloaded.
    `mig`: GPUs are cut into other MIG devices. `devices`: a `systemctl daemon-reload` takes the GPUs from running containers. `packages`: the driver's packages that
    change; programs that start meanwhile find libraries that do not match the loaded module. `plugin`: the device plugin leaves."""

    reboot: bool = False
    restarts: tuple[str, ...] = ()
    modules: bool = False
    packages: tuple[str, ...] = ()
    devices: bool = False
    mig: bool = False
    plugin: bool = False

    def __str__(self) -> str:
        """For people: `reboot, restart of docker and kubelet, driver reload, driver packages`."""
        return self.describe("reboot")

    def describe(self, reboot: str) -> str:
        """The same text with `reboot` in place of the word."""
        units = " and ".join(unit.removesuffix(".service") for unit in self.restarts)
        parts = [
            reboot if self.reboot else "",
            f"restart of {units}" if units else "",
            "driver reload" if self.modules else "",
            "other MIG devices" if self.mig else "",
            "driver packages" if self.packages else "",
            "systemd reload (containers lose their GPUs)" if self.devices else "",
            "end of the device plugin" if self.plugin else "",
        ]
        return ", ".join(filter(None, parts))

    def __bool__(self) -> bool:
        """True if anything that runs on the host may notice."""
        return self.ends_gpu_work or bool(self.restarts)

    @property
    def ends_gpu_work(self) -> bool:
        units = {"docker.service", "nvidia-fabricmanager.service"} & set(self.restarts)
        parts = (self.reboot, self.modules, self.mig, self.devices, self.plugin, self.packages, units)
        return any(parts)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What a plan interrupts, and whose work. `work`: how work is ended first, with a cordon of the node if its pods are known;
    `stays`: it continues. `timeout`: seconds to wait for its end. `pods`: the node's pods, without DaemonSets', each with its units
    by resource; None: not known. `standstill`: by pod, why nothing runs on its GPUs. `users`: processes that use the GPUs, without
    the driver's daemons. `reload`: only users of the GPUs require the reboot, and they will have ended, so the modules are reloaded
    instead."""

    what: Disturbance
    work: Literal["wait", "drain", "kill", "stays"] = "stays"
    timeout: float = 0.0
    pods: Mapping[str, Mapping[str, int]] | None = None
    users: tuple[GpuUser, ...] = ()
    reload: bool = False
    standstill: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """What it interrupts, for people: as `Disturbance` has it, with a reload in place of the reboot."""
        return self.what.describe("driver reload (reboot if that fails)" if self.reload else "reboot")

    @property
    def processes(self) -> tuple[GpuUser, ...]:
        """Users outside Kubernetes; all users if the pods are not known."""
        return tuple(user for user in self.users if user.pod is None or self.pods is None)

    @property
    def anybody(self) -> bool:
        """True if work notices, as far as known."""
        ended = self.what.ends_gpu_work and bool(self.processes)
        return bool(self.what) and (self.pods is None or bool(self.pods) or ended)

    @property
    def ends_work(self) -> bool:
        """True if work ends, as far as known: pods outlive a restart of containerd or the kubelet."""
        return self.anybody and (self.pods is None or self.what.ends_gpu_work)
