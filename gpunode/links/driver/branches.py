"""Driver branches: end of life, the kernel they need, and kernels that their modules do not compile for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from gpunode.links.machine.pci import Model
from gpunode.model import Flavour
from gpunode.planning.tables import table


@dataclass(frozen=True, slots=True)
class Branch:
    """A driver branch. `ends` is the month of its last fix, as NVIDIA announced it."""

    number: int
    status: Literal["production", "lts", "new", "ended"]
    kernel: tuple[int, int]
    ends: str = ""

    @property
    def alive(self) -> bool:
        """Whether it still gets fixes."""
        return self.status != "ended"


@cache
def branches() -> Mapping[int, Branch]:
    """All branches by number."""
    return {
        number: Branch(number, row["status"], _kernel(row["kernel"]), str(row.get("ends", "")))
        for number, row in table(__package__, "branches.yaml")["branches"].items()
    }


def flavours_of(model: Model, branch: int) -> tuple[Flavour, ...]:
    """The module flavours of a branch that drive this model, the better one first; () when the branch does not."""
    if not model.first <= branch <= model.last:
        return ()
    usable = tuple(f for f in model.flavours if f == "proprietary" or branch >= model.open_first)
    only = table(__package__, "branches.yaml")["branches"].get(branch, {}).get("flavours")
    return tuple(f for f in usable if only is None or f in only)


def fixed_for(driver: str, kernel: str) -> str:
    """The first version whose modules compile for this kernel, where those of `driver` are known not to; else "". `driver`: a
    full version, or a branch, which stands for its newest."""
    numbers = tuple(map(int, re.findall(r"\d+", driver)))
    version = numbers if len(numbers) > 1 else (*numbers, 998)
    rows = [
        str(row["fixed"])
        for row in table(__package__, "branches.yaml")["unbuildable"]
        if kernel_version(kernel) >= _kernel(row["kernel"])
        and (row["first"],) <= version <= tuple(map(int, str(row["last"]).split(".")))
    ]
    return rows[-1] if rows else ""


def _kernel(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def kernel_version(release: str) -> tuple[int, int]:
    """`uname -r` as numbers; (0, 0) when it does not begin with any."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
