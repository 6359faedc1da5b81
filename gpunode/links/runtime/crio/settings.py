"""CRI-O's settings for runtimes, merged from its files as it merges them. Pure.

crio.conf(5), crio.conf.d(5): crio.conf first, then crio.conf.d in the order of names; of an option the last one counts, and
a runtime's table replaces an earlier one of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.links.runtime.containerd.config_toml import lookup
from gpunode.links.runtime.containerd.source import parse
from gpunode.links.runtime.typed import Kinds, check
from gpunode.model import Facts
from gpunode.planning import files

MAIN = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d/"
TABLE = ("crio", "runtime")
HINT = "Fix the file by hand (CRI-O reads it too), then run again; it was not touched."
KINDS: Kinds = {
    TABLE[:1]: "table",
    TABLE: "table",
    (*TABLE, "default_runtime"): "string",
    (*TABLE, "selinux"): "switch",
    (*TABLE, "cgroup_manager"): "string",
    (*TABLE, "runtimes"): "table",
    (*TABLE, "runtimes", "*"): "table",
    (*TABLE, "runtimes", "*", "runtime_path"): "string",
    (*TABLE, "runtimes", "*", "runtime_type"): "string",
}
BELOW = ("crun", "runc")  # what it brings, the preferred one first


@dataclass(frozen=True, slots=True)
class Settings:
    """`default`: the default runtime's name, "" for CRI-O's own. `setters`: the file that each option comes from, by
    `default_runtime` or a runtime's name. `labels`: containers get SELinux labels. `cgroups`: who keeps
    theirs."""

    default: str = ""
    labels: bool = False
    cgroups: str = "systemd"
    runtimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    setters: Mapping[str, str] = field(default_factory=dict)

    @property
    def below(self) -> str:
        """The runtime that starts containers without NVIDIA's, or below it."""
        if self.default and self.default != "nvidia":
            return self.default
        return next((name for name in BELOW if name in self.runtimes), "crun")


def paths(facts: Facts) -> tuple[str, ...]:
    """Its files, in the order in which they count."""
    there = (path for path, file in facts.files.items() if file.exists and path.startswith(FOLDER))
    return (MAIN, *sorted(there))


def read(facts: Facts) -> Settings:
    """What all files come to. Raises CannotPlan for one that is not TOML."""
    default, labels, cgroups = "", False, "systemd"
    runtimes: dict[str, Mapping[str, Any]] = {}
    setters: dict[str, str] = {}
    for path in paths(facts):
        text = files.text(facts, path) or ""
        data = parse(text, path, HINT)
        check(data, KINDS, text, path, HINT)
        table = lookup(data, TABLE)
        if "default_runtime" in table:
            default, setters["default_runtime"] = table["default_runtime"], path
        labels = table.get("selinux", labels)
        cgroups = table.get("cgroup_manager", cgroups)
        found = table.get("runtimes", {})
        runtimes |= found
        setters |= dict.fromkeys(found, path)
    return Settings(default, labels, cgroups, runtimes, setters)
