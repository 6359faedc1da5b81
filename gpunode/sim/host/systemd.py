"""systemctl and journalctl of a simulated host, and the effects of starting a unit."""

import re
import sys
import time

from gpunode.sim.host import answers, daemons, driver, mig
from gpunode.sim.host.daemons import Unusable
from gpunode.sim.host.machine import Machine, Now, UnitNow, log
from gpunode.sim.host.state import DOWN, State

REBOOT_SECONDS = 1.0
# The container toolkit's units that keep the CDI specification: what they are in once started.
REFRESH = {
    "nvidia-cdi-refresh.path": ("active", "waiting"),
    "nvidia-cdi-refresh.service": ("inactive", "dead"),
}
# The modules that the toolkit's unit looks for, from 1.19.1 on
KNOWN = re.compile(r"/(nvidia|nvidia-current)[.]ko")
ACTIVE, INACTIVE, MISSING = 0, 3, 4  # systemctl's exit statuses
TAIL = 10


def systemctl(state: State, arguments: list[str]) -> int:
    """systemctl: the verbs that change something, and those that print a unit's state."""
    verb, *names = [word for word in arguments if not word.startswith("-")] or ["status"]
    if verb == "status":
        return status(state, names or list(state.now().units))
    if verb == "is-active":
        return is_active(state, names)
    with state.change() as now:
        if verb == "reboot":
            reboot(state, now)
        problems = [problem for name in names if (problem := _act(state, now, verb, full_name(name)))]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _act(state: State, now: Now, verb: str, name: str) -> str | None:
    if name not in now.units and (state.root / "etc/systemd/system" / name).exists():
        now.units[name] = UnitNow(enabled=False)
    unit = now.units.get(name)
    if unit is None:
        return f"Failed to {verb} {name}: Unit {name} not found."
    if verb == "enable":
        unit.enabled = True
    elif verb in ("stop", "disable"):  # the agent's, with --now
        unit.enabled = unit.enabled and verb == "stop"
        unit.active, unit.sub, unit.since, unit.pid = "inactive", "dead", 0.0, 0
    elif verb == "restart" or (verb == "start" and unit.active != "active"):
        return start(state, now, name)
    return None


def start(state: State, now: Now, name: str) -> str | None:
    """Start or restart a unit; returns systemctl's error if it does not start. A kubelet that crashes is restarted."""
    unit, machine = now.units[name], state.machine()
    log(unit, f"Starting {name}...")
    try:
        _ready(state, machine, now, name)
    except Unusable as error:
        log(unit, str(error))
        unit.since, unit.pid = 0.0, 0
        if name == "kubelet.service":
            unit.active, unit.sub, unit.failed = "activating", "auto-restart", time.time()
            return None
        unit.active, unit.sub = "failed", "failed"
        return (
            f"Job for {name} failed because the control process exited with error code.\n"
            f'See "systemctl status {name}" and "journalctl -xeu {name}" for details.'
        )
    if name in REFRESH:
        unit.active, unit.sub, unit.since, unit.pid = *REFRESH[name], 0.0, 0
        return None
    unit.active, unit.sub, unit.restarts = "active", "running", 0
    unit.since, unit.pid = time.time(), answers.pid()
    log(unit, f"Started {name}.")
    return None


def follow(state: State, now: Now) -> None:
    """NVIDIA's persistence daemon comes with its package, started, and goes with it; so do the toolkit's units from 1.18 on."""
    driver.depmod(state, now)
    toolkit = now.packages.get("nvidia-container-toolkit-base")
    brings = toolkit is not None and tuple(map(int, toolkit.version.split(".")[:2])) >= (1, 18)
    for name in REFRESH:
        if not brings:
            now.units.pop(name, None)
        elif name not in now.units:
            now.units[name] = UnitNow()
            start(state, now, name)
    name = "nvidia-persistenced.service"
    if name.removesuffix(".service") not in now.packages:
        now.units.pop(name, None)
    elif name not in now.units:
        now.units[name] = UnitNow()
        start(state, now, name)


def _ready(state: State, machine: Machine, now: Now, name: str) -> None:
    """Read the configuration that a unit's program reads at its start."""
    etc = state.root / "etc"
    if name == "docker.service":
        now.containers = []  # they end with dockerd
        now.runtime = daemons.docker_config(etc / "docker/daemon.json")
    elif name == "containerd.service":
        runtime = daemons.dump(state)[0]
        if machine.runtime == "containerd":
            now.runtime = runtime
    elif name == "nvidia-cdi-refresh.service":
        listed = state.root / "lib/modules" / machine.kernel / "modules.dep"
        if listed.exists() and KNOWN.search(listed.read_text(encoding="utf-8")):
            _specify(state, machine, now)
    elif name == "gpunode-mig.service":
        mig.at_boot(state.root, machine, now)
    elif name == "gpunode-cdi.service":
        _specify(state, machine, now)
    elif name == "kubelet.service":
        now.arguments = daemons.kubelet_arguments(state.root)
        daemons.check_kubelet(state.root, machine, now)


def _specify(state: State, machine: Machine, now: Now) -> None:
    """`nvidia-ctk cdi generate`, of the driver that is loaded."""
    if "nvidia" not in now.modules:
        return
    path = state.root / "run/cdi/nvidia.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    units = [
        part for gpu in machine.gpus for part in (mig.parts(gpu, now) if gpu.uuid in now.mig else (gpu,))
    ]
    devices = "".join(f"- name: {unit.uuid}\n" for unit in units)
    text = f"kind: nvidia.com/gpu\ndevices:\n{devices}# hostPath: /usr/lib64/libcuda.so.{now.library}\n"
    path.write_text(text, encoding="utf-8")


def reboot(state: State, now: Now) -> None:
    """Reboot: a new boot id, the modules of a boot, all enabled units started."""
    import uuid

    now.down_until = float("inf") if "stays-down" in now.faults else time.time() + REBOOT_SECONDS
    (state.folder / DOWN).touch()
    now.boot_id, now.booted = str(uuid.uuid4()), time.time() + REBOOT_SECONDS
    now.lost = []
    now.xids = []
    now.containers = []
    driver.boot(state, now)
    mig.boot(state.machine(), now)
    for name, unit in now.units.items():
        now.units[name] = UnitNow(enabled=unit.enabled, journal=unit.journal)
    # gpunode's unit is before all others
    for name in sorted(now.units, key=lambda name: name != "gpunode-mig.service"):
        if now.units[name].enabled:
            start(state, now, name)


def full_name(name: str) -> str:
    """A unit's name, completed as systemd does."""
    return name if "." in name else f"{name}.service"


def status(state: State, names: list[str]) -> int:
    """`systemctl status NAME...`."""
    now, worst = state.now(), ACTIVE
    for number, name in enumerate(map(full_name, names)):
        unit = now.units.get(name)
        if unit is None:
            sys.stderr.write(f"Unit {name} could not be found.\n")
            worst = MISSING
            continue
        worst = max(worst, ACTIVE if unit.active == "active" else INACTIVE)
        enabled = "enabled" if unit.enabled else "disabled"
        print("\n" * (number > 0) + f"{'×' if unit.active == 'failed' else '●'} {name}")
        print(f"     Loaded: loaded (/lib/systemd/system/{name}; {enabled})")
        print(f"     Active: {_active_line(unit)}")
        if unit.pid:
            print(f"   Main PID: {unit.pid} ({name.partition('.')[0]})")
        print("".join(f"\n{line}" for line in _lines(state.machine().name, unit)[-TAIL:]))
    return worst


def is_active(state: State, names: list[str]) -> int:
    """`systemctl is-active NAME...`."""
    now = state.now()
    states = [now.units.get(full_name(name), UnitNow()).active for name in names]
    print("\n".join(states))
    return ACTIVE if "active" in states else INACTIVE


def journal(state: State, arguments: list[str]) -> int:
    """`journalctl -u NAME [-n COUNT]`, as users call it; the agent's form has its own, faster answer."""
    name, count = "", 0
    options = iter(arguments)
    for word in options:
        if word.startswith("-") and not word.startswith("--") and word.endswith(("u", "n")):
            value = next(options, "")
            if word.endswith("u"):
                name = full_name(value)
            elif value.isdigit():
                count = int(value)
        elif word.startswith("--unit="):
            name = full_name(word.partition("=")[2])
    if not name:
        sys.stderr.write(
            "journalctl: of a simulated host there are the journals of units: journalctl -u NAME\n"
        )
        return 1
    lines = _lines(state.machine().name, state.now().units.get(name, UnitNow()))
    print("\n".join(lines[-count:]) or "-- No entries --")
    return 0


def _active_line(unit: UnitNow) -> str:
    line = f"{unit.active} ({unit.sub})"
    if unit.active == "failed":
        line = "failed (Result: exit-code)"
    elif unit.sub == "auto-restart":
        line += " (Result: exit-code)"
    if unit.since:
        line += f" since {time.strftime('%a %Y-%m-%d %H:%M:%S UTC', time.gmtime(unit.since))}"
    return line


def _lines(host: str, unit: UnitNow) -> list[str]:
    return [
        f"{time.strftime('%b %d %H:%M:%S', time.gmtime(when))} {host} systemd[1]: {line}"
        for when, line in unit.journal
    ]
