"""How a simulated host gets the faults that the links of the chain name for `gpunode demo --break`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpunode.sim.host import driver, systemd
from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.state import State

DAEMON_JSON, CONFIG_TOML = "etc/docker/daemon.json", "etc/containerd/config.toml"


class Act(NamedTuple):
    """Causes a fault. `runtime`: only machines with this one can have it."""

    cause: Callable[[State, Machine, Now], object]
    runtime: str = ""

    def suits(self, machine: Machine) -> bool:
        return bool(machine.gpus) and self.runtime in ("", machine.runtime)


def inflict(name: str, states: Sequence[State], host: str | None = None) -> str:
    """Break this host, else the first that the fault suits; returns its name. Raises LookupError if it suits none."""
    act = ACTS[name]
    for state in states:
        machine = state.machine()
        if act.suits(machine) and host in (None, machine.name):
            with state.change() as now:
                act.cause(state, machine, now)
            return machine.name
    raise LookupError(f"no host is suitable for {name}")


def possible(machines: Sequence[Machine]) -> list[str]:
    """Names of the faults that suit at least one of these machines."""
    return [name for name, act in ACTS.items() if any(act.suits(machine) for machine in machines)]


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


def _library(_: State, __: Machine, now: Now) -> None:
    series, patch = now.library.rsplit(".", 1)
    new = f"{series}.{98 if patch == '99' else 99}"  # also a second time
    for package in now.packages.values():
        package.version = package.version.replace(now.library, new)
    now.library = new


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
        (state.root / DAEMON_JSON).write_text('{"log-driver": "journald"}\n', encoding="utf-8")
    else:
        _edit(state, CONFIG_TOML, "default_runtime_name = 'nvidia'", "default_runtime_name = 'runc'")
    systemd.start(state, now, f"{machine.runtime}.service")


def _stop(_: State, machine: Machine, now: Now) -> None:
    unit = now.units[f"{machine.runtime}.service"]
    unit.active, unit.sub, unit.since, unit.pid = "failed", "failed", 0.0, 0


def _gate(state: State, machine: Machine, now: Now) -> None:
    gate = "DevicePlugins=" + ("false" if machine.runtime == "docker" else "true")
    _edit(state, "etc/default/kubelet", "--node-labels", f"--feature-gates={gate} --node-labels")
    systemd.start(state, now, "kubelet.service")


ACTS: Mapping[str, Act] = {
    "module": Act(lambda _, __, now: now.modules.clear()),
    "nouveau": Act(_free("nouveau"), "containerd"),
    "nova": Act(_free("nova_core"), "containerd"),
    "kernel": Act(_kernel),
    "library": Act(_library),
    "xid": Act(_xid),
    "toolkit": Act(lambda _, __, now: now.packages.pop("nvidia-container-toolkit")),
    "runtime": Act(_runtime),
    "stopped": Act(_stop),
    "daemon.json": Act(
        lambda state, *_: _edit(state, DAEMON_JSON, '"log-driver"', '"debug": true\n    "log-driver"'),
        "docker",
    ),
    "config.toml": Act(
        lambda state, *_: _edit(
            state, CONFIG_TOML, "root = '/var/lib/containerd'", "root = '/var/lib/containerd"
        ),
        "containerd",
    ),
    "gate": Act(_gate, "containerd"),
    "image": Act(lambda _, __, now: now.images.clear()),
}
