"""What can be broken on a simulated host that is right, as it breaks in real life."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.programs import systemd
from gpunode.sim.host.state import State

BY_HAND = "A file that does not parse is never overwritten: the person who knows what was meant mends it."


@dataclass(frozen=True, slots=True)
class Fault:
    """`story` is what happened, as somebody would tell it; `suits` says on which machines it can happen; `way` is
    what a person must do where gpunode cannot mend it."""

    story: str
    act: Callable[[State, Machine, Now], None]
    suits: Callable[[Machine], bool] = lambda machine: bool(machine.gpus) and not machine.rpm
    way: str = ""


def inflict(name: str, states: Sequence[State]) -> str:
    """Break the first host that the fault suits; returns that host's name. LookupError when there is none."""
    fault = FAULTS[name]
    for state in states:
        machine = state.machine()
        if fault.suits(machine):
            with state.change() as now:
                fault.act(state, machine, now)
            return machine.name
    raise LookupError(f"no host that {name} can happen to")


def possible(machines: Sequence[Machine]) -> list[str]:
    """The faults that can happen to one of these machines."""
    return [name for name, fault in FAULTS.items() if any(fault.suits(machine) for machine in machines)]


def _edit(state: State, path: str, old: str, new: str) -> None:
    file = state.root / path
    text = file.read_text(encoding="utf-8")
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


def _nouveau(_: State, __: Machine, now: Now) -> None:
    now.modules = {"nouveau": ""}


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
    file = state.root / "etc/default/kubelet"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("--node-labels", f"--feature-gates={gate} --node-labels"), encoding="utf-8")
    systemd.start(state, now, "kubelet.service")


def _image(_: State, __: Machine, now: Now) -> None:
    now.images = {}


def _with(runtime: str) -> Callable[[Machine], bool]:
    return lambda machine: bool(machine.gpus) and not machine.rpm and machine.runtime == runtime


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "xid": Fault(
            "a GPU reported Xid 79 and fell off the bus",
            _xid,
            way="Only a reset, a reboot or new hardware brings a GPU back.",
        ),
        "module": Fault("somebody unloaded the nvidia module", _module),
        "library": Fault("an upgrade replaced the driver's library under the loaded module", _library),
        "nouveau": Fault(
            "a new kernel came up with nouveau in place of nvidia", _nouveau, _with("containerd")
        ),
        "toolkit": Fault("somebody removed nvidia-container-toolkit", _toolkit),
        "runtime": Fault(
            "another tool wrote the runtime's configuration, without nvidia, and restarted it", _runtime
        ),
        "stopped": Fault("the container runtime died", _stopped),
        "daemon.json": Fault("a comma was lost in daemon.json", _daemon_json, _with("docker"), BY_HAND),
        "config.toml": Fault(
            "a quote was lost in containerd's config.toml", _config_toml, _with("containerd"), BY_HAND
        ),
        "gate": Fault("an old feature gate came back with a configuration tool", _gate, _with("containerd")),
        "image": Fault("a clean-up removed the device plugin's image from the node", _image),
    }
)
