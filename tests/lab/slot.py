"""Where a lab lives on the machine: a small number from which every name and address follows."""

import contextlib
import fcntl
import ipaddress
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .hosts import CONTROL_PLANE
from .progress import CannotRun, say

STATE = Path("/var/lib/gpunode-lab")
SLOTS = 32


@dataclass(frozen=True, slots=True)
class Slot:
    """`out` is the folder in a checkout that holds what tests read: lab.json, inventory, keys."""

    number: int
    out: Path

    @property
    def state(self) -> Path:
        """Files of the running lab; removed by `down`."""
        return STATE / str(self.number)

    @property
    def run(self) -> Path:
        """Sockets of the lab's docker."""
        return Path("/run/gpunode-lab") / str(self.number)

    @property
    def bridge(self) -> str:
        return f"gnlab{self.number}"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"172.29.{self.number}.0/24")

    @property
    def gateway(self) -> str:
        """The machine's own address on the bridge: the apt repository listens here."""
        return str(self.subnet[1])

    @property
    def docker_host(self) -> str:
        return f"unix://{self.run}/docker.sock"

    @property
    def control_plane(self) -> str:
        """The address of the host that etcd and the apiserver listen on."""
        return str(self.subnet[CONTROL_PLANE.number])

    @property
    def server(self) -> str:
        return f"https://{self.control_plane}:6443"

    @property
    def cgroups(self) -> str:
        """Prefix of the names of all cgroups of this lab."""
        return f"gpunode-lab-s{self.number}-"


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that dies with this process; who has to wait for it is told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that is at work on this lab")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def folder(checkout: Path, number: int = 1) -> Path:
    """Where lab `number` of a checkout writes what tests read: .lab, .lab-2, …"""
    return checkout / (".lab" if number == 1 else f".lab-{number}")


def find(out: Path) -> Slot | None:
    """The slot of the lab that writes to `out`, if it has one."""
    return next((slot for slot in _held() if slot.out == out), None)


def of(checkout: Path) -> list[Slot]:
    """The slots of all labs of a checkout."""
    return [slot for slot in _held() if slot.out.parent == checkout]


def claim(out: Path) -> Slot:
    """The slot of the lab that writes to `out`, the one it has or the first free one."""
    with lock(STATE / "slots.lock"):
        held = _held()
        mine = next((slot for slot in held if slot.out == out), None)
        if mine is None:
            taken = {slot.number for slot in held}
            mine = next((s for n in range(SLOTS) if n not in taken and _free(s := Slot(n, out))), None)
            if mine is None:
                raise CannotRun(f"All {SLOTS} lab slots are taken (see {STATE}/slots.json).")
            _write([*held, mine])
        return mine


def release(slot: Slot) -> None:
    """Give the slot's number back."""
    with lock(STATE / "slots.lock"):
        _write([other for other in _held() if other.number != slot.number])


def abandoned() -> list[Slot]:
    """Slots whose checkout is gone from the disk."""
    return [slot for slot in _held() if not slot.out.parent.exists()]


def _held() -> list[Slot]:
    try:
        table = json.loads((STATE / "slots.json").read_text())
    except (OSError, ValueError):
        return []
    return [Slot(int(number), Path(out)) for number, out in table.items()]


def _write(slots: list[Slot]) -> None:
    new = STATE / "slots.json.new"
    new.write_text(json.dumps({slot.number: str(slot.out) for slot in slots}, indent=2) + "\n")
    new.rename(STATE / "slots.json")


def _free(slot: Slot) -> bool:
    """No other network of the machine overlaps the slot's subnet."""
    routes = json.loads(subprocess.run(["ip", "-j", "route"], capture_output=True, check=True).stdout)
    for route in routes:
        if route["dst"] != "default" and route.get("dev") != slot.bridge:
            with contextlib.suppress(ValueError):
                if ipaddress.ip_network(route["dst"], strict=False).overlaps(slot.subnet):
                    return False
    return True
