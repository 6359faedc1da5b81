"""Faults of real hosts that `gpunode demo --break` causes on a simulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpunode.sim.host import driver, systemd
from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.state import State

BY_HAND = "gpunode never overwrites a file that does not parse. Fix it by hand."


@dataclass(frozen=True, slots=True)
class Fault:
    """`happened` is a sentence for the show, `link` the first link that verify reports as broken.

    `suits` is true for machines that can have the fault. `by_hand` is the fix where gpunode has none.
    """

    happened: str
    link: str
    act: Callable[[State, Machine, Now], None]
    suits: Callable[[Machine], bool] = lambda machine: bool(machine.gpus)
    by_hand: str = ""


def inflict(name: str, states: Sequence[State], host: str | None = None) -> str:
    """Break this host, else the first that the fault suits; returns its name. Raises LookupError if it suits none."""
    fault = FAULTS[name]
    for state in states:
        machine = state.machine()
        if fault.suits(machine) and host in (None, machine.name):
            with state.change() as now:
                fault.act(state, machine, now)
            return machine.name
    raise LookupError(f"no host that {name} can happen to")


def possible(machines: Sequence[Machine]) -> list[str]:
    """Names of the faults that suit at least one of these machines."""
    return [name for name, fault in FAULTS.items() if any(fault.suits(machine) for machine in machines)]


def _edit(state: State, path: str, old: str, new: str) -> None:
    file = state.root / path
    text = file.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"{path} on this host has no {old!r} to break")
    file.write_text(text.replace(old, new), encoding="utf-8")


def _xid(_: State, machine: Machine, now: Now) -> None:
    gpu = machine.gpus[-1]
    now.xids.append((gpu.uuid, 79))
    now.lost.append(gpu.uuid)


def _module(_: State, __: Machine, now: Now) -> None:
    now.modules = {}


def _library(_: State, __: Machine, now: Now) -> None:
    new = f"{now.library.rpartition('.')[0]}.99"
    for package in now.packages.values():
        package.version = package.version.replace(now.library, new)
    now.library = new


def _toolkit(_: State, __: Machine, now: Now) -> None:
    del now.packages["nvidia-container-toolkit"]


def _free(module: str) -> Callable[[State, Machine, Now], None]:
    """The host boots one of Linux' own drivers, which nothing blacklists."""

    def act(state: State, _: Machine, now: Now) -> None:
        (state.root / "etc/modprobe.d/gpunode-nouveau.conf").unlink(missing_ok=True)
        now.modules = {module: ""}

    return act


def _kernel(state: State, machine: Machine, now: Now) -> None:
    new = driver.next_kernel(machine.kernel)
    now.packages.pop(f"linux-headers-{new}", None)
    for path in (state.root / f"boot/vmlinuz-{new}", state.root / f"lib/modules/{new}/modules.dep"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def _runtime(state: State, machine: Machine, now: Now) -> None:
    if machine.runtime == "docker":
        (state.root / "etc/docker/daemon.json").write_text('{"log-driver": "journald"}\n', encoding="utf-8")
    else:
        _edit(
            state,
            "etc/containerd/config.toml",
            "default_runtime_name = 'nvidia'",
            "default_runtime_name = 'runc'",
        )
    systemd.start(state, now, f"{machine.runtime}.service")


def _stopped(_: State, machine: Machine, now: Now) -> None:
    unit = now.units[f"{machine.runtime}.service"]
    unit.active, unit.sub, unit.since, unit.pid = "failed", "failed", 0.0, 0


def _daemon_json(state: State, _: Machine, __: Now) -> None:
    _edit(state, "etc/docker/daemon.json", '"log-driver"', '"debug": true\n    "log-driver"')


def _config_toml(state: State, _: Machine, __: Now) -> None:
    _edit(state, "etc/containerd/config.toml", "root = '/var/lib/containerd'", "root = '/var/lib/containerd")


def _gate(state: State, machine: Machine, now: Now) -> None:
    gate = "DevicePlugins=" + ("false" if machine.runtime == "docker" else "true")
    _edit(state, "etc/default/kubelet", "--node-labels", f"--feature-gates={gate} --node-labels")
    systemd.start(state, now, "kubelet.service")


def _image(_: State, __: Machine, now: Now) -> None:
    now.images = {}


def _with(runtime: str) -> Callable[[Machine], bool]:
    return lambda machine: bool(machine.gpus) and machine.runtime == runtime


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "xid": Fault(
            "a GPU reported Xid 79 and fell off the bus",
            "NVML",
            _xid,
            by_hand="Only a GPU reset, a reboot or new hardware fixes it.",
        ),
        "module": Fault("an administrator unloaded the nvidia module", "module", _module),
        "library": Fault(
            "an upgrade replaced the driver's library under the loaded module", "library", _library
        ),
        "nouveau": Fault(
            "a new kernel loaded nouveau instead of nvidia", "module", _free("nouveau"), _with("containerd")
        ),
        "nova": Fault(
            "a new kernel loaded nova, nouveau's successor, instead of nvidia",
            "module",
            _free("nova_core"),
            _with("containerd"),
        ),
        "kernel": Fault(
            "an upgrade installed a kernel that has no nvidia module, for the next boot",
            "module",
            _kernel,
        ),
        "toolkit": Fault("an administrator removed nvidia-container-toolkit", "toolkit", _toolkit),
        "runtime": Fault(
            "another tool rewrote the runtime's configuration without nvidia and restarted it",
            "runtime",
            _runtime,
        ),
        "stopped": Fault("the container runtime died", "runtime", _stopped),
        "daemon.json": Fault(
            "an edit lost a comma in daemon.json", "runtime", _daemon_json, _with("docker"), BY_HAND
        ),
        "config.toml": Fault(
            "an edit lost a quote in containerd's config.toml",
            "runtime",
            _config_toml,
            _with("containerd"),
            BY_HAND,
        ),
        "gate": Fault(
            "a configuration tool restored an old feature gate", "kubelet", _gate, _with("containerd")
        ),
        "image": Fault("a clean-up removed the device plugin's image from the node", "plugin", _image),
    }
)
