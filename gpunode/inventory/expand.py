"""Expands ranges, groups and defaults into hosts. Host wins over group, group over defaults, key by key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gpunode.contract.config import LABEL
from gpunode.contract.yaml_text import Where, dotted
from gpunode.inventory.source import Source
from gpunode.inventory.values import DriverPackages, Values, values
from gpunode.local import files as localfile
from gpunode.model import Host, PythonBuild, RunFile, Ssh

RANGE = re.compile(r"\[(\d{1,9}):(\d{1,9})\]")
MOST_HOSTS = 10_000

Conflicts: TypeAlias = dict[tuple[Where, Where], list[str]]
"""Two places with different values -> the hosts that get both."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A host's name in one group's list, with the values written there."""

    name: str
    group: str
    where: Where
    values: Values


def names(text: str) -> list[str]:
    """`gpu-[08:11]` -> gpu-08 … gpu-11, as wide as its first number. Raises ValueError for a bad range."""
    found, end = [""], 0
    for one in RANGE.finditer(text):
        first, last, width = int(one[1]), int(one[2]), len(one[1])
        if last < first:
            near = f"{text[: one.start()]}[{one[2]}:{one[1]}]{text[one.end() :]}"
            raise ValueError(f"the range {one.group()} ends before it starts; did you mean `{near}`?")
        if (last - first + 1) * len(found) > MOST_HOSTS:
            raise ValueError(f"the range names more than {MOST_HOSTS} hosts")
        found = [
            f"{name}{text[end : one.start()]}{n:0{width}}" for name in found for n in range(first, last + 1)
        ]
        end = one.end()
    return [name + text[end:] for name in found]


def range_meant(text: str) -> str | None:
    """`gpu-[1:4]` for what other tools and shells write: `gpu-[1-4]`, `gpu-[1..4]`, `gpu-{1..4}`; None if it is none."""
    near = re.sub(r"[\[{](\d{1,9})\s*(?:-|–|\.\.|:|,|to)\s*(\d{1,9})[\]}]", r"[\1:\2]", text)
    return near if near != text else None


def hosts(source: Source) -> tuple[Host, ...]:
    """All hosts in the order of the file. Conflicts and duplicates are noted in the source."""
    groups = source.data.get("groups", {})
    defaults = values(source, source.data.get("defaults", {}), ("defaults",))
    shared = {name: values(source, group, ("groups", name)) for name, group in groups.items()}
    mentions = mentioned(source)
    written = [where for where in source.keys if len(where) == 2 and where[0] == "groups"]
    if "groups" in source.data and [[]] * len(written) == [group.get("hosts") for group in groups.values()]:
        source.problem(("groups",), "no hosts; name at least one under a group's `hosts`")
    conflicts: Conflicts = {}
    made = []
    for name, several in mentions.items():
        own = merged(name, [mention.values for mention in several], {}, conflicts)
        common = merged(name, [shared[mention.group] for mention in several], own, conflicts)
        everything = {**defaults, **common, **own}
        strict(source, everything)
        configuration(source, everything)
        made.append(host(name, tuple(mention.group for mention in several), everything))
    for (where, first), (one, *more) in conflicts.items():
        who = f"{one} and {len(more)} more" if more else one
        place = f"{dotted(first)} (line {source.line(first)})"
        source.problem(where, f"{who}: {place} has another value; use the same, or set it on the host")
    collisions(source, made, mentions)
    return tuple(made)


def mentioned(source: Source) -> dict[str, list[Mention]]:
    """Each host's mentions, at most one per group, in the order of the file."""
    groups = source.data.get("groups", {})
    found: dict[str, list[Mention]] = {}
    for mention in listed(source, groups):
        name, where = mention.name, mention.where
        same = found.setdefault(name, [])
        if double := next((other for other in same if other.group == mention.group), None):
            source.problem(
                where, f"{name} is already in this group (line {source.line(double.where)}); list it once"
            )
        else:
            same.append(mention)
        if name in groups:
            line = source.keys["groups", name][0]
            source.problem(
                where,
                f"{name} is also a group's name (line {line}); rename one, --limit cannot distinguish them",
            )
    return found


def listed(source: Source, groups: Mapping[str, Any]) -> Iterator[Mention]:
    """Every name in every group's list, ranges expanded."""
    for group, variables in groups.items():
        for index, item in enumerate(variables.get("hosts", [])):
            where: Where = ("groups", group, "hosts", index)
            if isinstance(item, dict) and "name" in item:
                yield Mention(item["name"], group, where, values(source, item, where))
            elif isinstance(item, str):
                try:
                    expanded = names(item)
                except ValueError as error:
                    source.problem(where, str(error))
                    continue
                yield from (Mention(name, group, where, {}) for name in expanded)


def merged(name: str, several: list[Values], winner: Values, conflicts: Conflicts) -> Values:
    """One host's values from places of equal rank; different values are a conflict unless `winner` sets the key."""
    result: Values = {}
    for found in several:
        for key, (value, where) in found.items():
            other, first = result.setdefault(key, (value, where))
            if other != value and key not in winner:
                conflicts.setdefault((where, first), []).append(name)
    return result


def host(name: str, groups: tuple[str, ...], values: Values) -> Host:
    """The host with these values; others get the model's defaults."""

    def of(section: str) -> dict[str, Any]:
        return {key[-1]: value for key, (value, _) in values.items() if key[0] == section and len(key) > 1}

    plain = {key[0]: value for key, (value, _) in values.items() if len(key) == 1}
    run = plain.get("driver")
    if isinstance(run, RunFile):
        plain |= {"driver": run.version, "driver_run": run}
    elif isinstance(run, DriverPackages):
        plain |= {"driver": run.branch, "driver_from": run.whose}
    elif "driver" in plain:
        plain["driver"] = str(run)
    if isinstance(plain.get("python"), PythonBuild):
        plain["python_build"] = plain.pop("python")
    repositories = of("repositories")
    return Host(
        name=name,
        groups=groups,
        ssh=Ssh(address=plain.pop("address", name), **of("ssh")),
        feature_gates=of("kubelet"),
        labels=of("labels"),
        driver_repository=repositories.get("driver"),
        toolkit_repository=repositories.get("toolkit"),
        system_repository=repositories.get("system"),
        **plain,
    )


def strict(source: Source, values: Values) -> None:
    """Note a missing known_hosts file with host_key_check strict."""
    check = values.get(("ssh", "host_key_check"))
    file = values.get(("ssh", "known_hosts"))
    if check and check[0] == "strict" and file and not localfile.is_file(Path(file[0])):
        what = "not a file" if localfile.exists(Path(file[0])) else "no such file"
        source.problem(file[1], f"{what}: {file[0]}; with host_key_check: strict gpunode could reach no host")


def configuration(source: Source, values: Values) -> None:
    """Note a label that names an unknown plugin configuration: the plugin on that node would not change."""
    plugin = source.data.get("cluster", {}).get("plugin") or {}
    there = plugin.get("configs")
    name, where = values.get(("labels", LABEL), ("", ()))
    if there and name and name not in there:
        near = difflib.get_close_matches(name, there, n=1)
        instead = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(there)}"
        source.problem(where, f"no configuration of cluster.plugin.configs has this name; {instead}")


def collisions(source: Source, made: list[Host], mentions: Mapping[str, list[Mention]]) -> None:
    """Note two names for one machine: gpunode would change it twice at the same time."""
    seen: dict[tuple[str | None, ...], str] = {}
    for one in made:
        keys: list[tuple[str | None, ...]] = [("is this machine",)]
        if one.connection != "local":
            keys = [(f"is reached at {one.ssh.address} port {one.ssh.port or 22}", one.ssh.jump or "none")]
        if one.node:
            keys.append((f"is node {one.node}",))
        for key in keys:
            other = seen.setdefault(key, one.name)
            if other != one.name:
                line = source.line(mentions[other][0].where)
                source.problem(
                    mentions[one.name][0].where, f"{one.name} {key[0]}, as is {other} (line {line})"
                )
