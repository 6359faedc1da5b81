"""Ranges, groups and defaults become hosts; host wins over group, group over defaults, key by key. Files that variables name are read."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gpunode.contract.config import LABEL
from gpunode.contract.yaml_text import INVALID, Where, format_path
from gpunode.inventory.source import Source
from gpunode.local import files as localfile
from gpunode.model import ExpectedGpus, Host, MigRule, PythonBuild, Repository, RunFile, Ssh
from gpunode.planning import mig
from gpunode.planning.tables import table


@dataclass(frozen=True, slots=True)
class DriverPackages:
    """Whose packages bring the driver, and of which branch: `auto` or its number."""

    whose: Literal["nvidia", "distribution"]
    branch: str


RESERVED_TAINTS = ("gpunode.dev/", "node.kubernetes.io/")  # gpunode's own, and the API server's

Values: TypeAlias = dict[tuple[str, ...], tuple[Any, Where]]
"""A variable's name as a path of keys -> its value and its position in the file."""


def read_values(source: Source, variables: Mapping[str, Any], where: Where) -> Values:
    """The variables of one place: nested keys flattened, paths absolute, repository keys read."""
    flat: Values = {}

    def walk(inner: Mapping[str, Any], name: tuple[str, ...]) -> None:
        for key, value in inner.items():
            full = (*name, key)
            place = (*where, *full)
            if full in {("hosts",), ("name",)}:
                continue
            # One value: nothing of it is merged
            if full in READERS and (isinstance(value, dict | list) or full == ("mig",)):
                if (parsed := READERS[full](source, value, place)) is not None:
                    flat[full] = parsed, place
            elif full[0] == "repositories" and len(full) == 2:
                if (repository := read_repository(source, value, place)) is not None:
                    flat[full] = repository, place
            elif isinstance(value, dict):
                walk(value, full)
            elif full in {("ssh", "key"), ("ssh", "known_hosts")}:
                flat[full] = str(source.relative(value)), place
                if full[1] == "key":
                    private_key(source, value, place)
            elif full in {("work_timeout",), ("accept", "valid")}:
                flat[full] = seconds(value), place
            else:
                flat[full] = value, place
                if full in CHECKS:
                    CHECKS[full](source, str(value), place)

    walk(variables, ())
    return flat


def seconds(duration: str) -> float:
    """Of `90s`, `30m`, `2h` or `30d`, as the schema has them."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]


def jump_port(source: Source, jump: str, where: Where) -> None:
    port = re.search(r":(\d+)$", jump)
    if port and not 1 <= int(port[1]) <= 65535:
        source.problem(where, f"expected a port from 1 to 65535, got {port[1]}")


def driver_branch(source: Source, driver: str, where: Where) -> None:
    """Note a branch, or a version of one, that NVIDIA does not have."""
    branch, known = driver.partition(".")[0], table("gpunode.planning", "branches.yaml")["branches"]
    if branch.isdigit() and int(branch) not in known:
        ended = [str(number) for number, row in known.items() if row["status"] == "ended"]
        alive = ", ".join(str(number) for number in known if str(number) not in ended)
        source.problem(
            where,
            f"gpunode knows no driver branch {branch}; {alive} get fixes, {', '.join(ended)} have ended",
        )


def private_key(source: Source, name: str, where: Where) -> None:
    """Note a private key file that is missing or is the public key."""
    if name.endswith(".pub"):
        source.problem(where, f"{name} is the public key; name the private key's file: {name[:-4]}")
    else:
        need_file(source, name, where)


def need_file(source: Source, name: str, where: Where, way: str = "") -> Path | None:
    """The path of a file that the inventory names; None if it is missing, which is noted. `way`: to have one."""
    path = source.relative(name)
    try:
        if path.is_file():
            return path
        what = "is a folder, expected a file" if path.is_dir() else "no such file"
    except OSError as error:  # a folder above it without permission
        what = f"cannot be read: {error.strerror}"
    source.problem(where, f"{what}: {path}{way}", outside=True)
    return None


def read_driver(source: Source, value: Mapping[str, Any], where: Where) -> RunFile | DriverPackages | None:
    """Where a driver comes from; None if something is wrong, which is noted."""
    if "from" not in value:
        return None  # which is noted
    if value["from"] == "run":
        return read_run(source, value, where)
    for key in [key for key in value if key not in ("from", "version")]:
        source.problem((*where, key), f"`{key}` is for `from: run` alone; remove it", key=True)
    version = str(value.get("version", "auto"))
    if "." in version:
        source.problem(
            (*where, "version"),
            f'`from: {value["from"]}` takes a branch such as 580; this one is "{version}"',
        )
        return None
    driver_branch(source, version, (*where, "version"))
    return DriverPackages(value["from"], version)


def read_run(source: Source, value: Mapping[str, Any], where: Where) -> RunFile | None:
    """NVIDIA's own installer; None if something is wrong, which is noted."""
    version = str(value.get("version", ""))
    short = bool(version) and "." not in version
    if short:
        rule = 'a full version is of the form "580.178.04"'
        source.problem((*where, "version"), f'{rule}; this one is "{version}"')
    driver_branch(source, version, (*where, "version"))
    missing = [key for key in ("version", "sha256") if key not in value]
    for key in missing:
        if (*where, key) not in source.keys:
            source.problem(where, f"`{key}` is missing; `from: run` needs it")
    if sum((*where, key) in source.keys for key in ("file", "url")) != 1:
        source.problem(where, "`from: run` needs one of `file` and `url`")
        return None
    if "file" not in value and "url" not in value:
        return None
    path = need_file(source, value["file"], (*where, "file")) if "file" in value else None
    if short or missing or ("file" in value and path is None):
        return None
    archive = str(path) if path else None
    flavour: Any = value.get("flavour")
    return RunFile(value["version"], value["sha256"], archive, value.get("url"), flavour)


def read_python(_: Source, value: Mapping[str, Any], _where: Where) -> PythonBuild | None:
    """A build of Python; None without its address or its checksum, which is noted."""
    return PythonBuild(value["url"], value["sha256"]) if {"url", "sha256"} <= {*value} else None


def read_gpus(_: Source, value: Mapping[str, Any], _where: Where) -> ExpectedGpus | None:
    """The GPUs that a host should have; None without their number, which is noted."""
    return ExpectedGpus(value["count"], value.get("model", "")) if "count" in value else None


def read_taints(source: Source, taints: list[Any], where: Where) -> tuple[str, ...] | None:
    """A node's taints; None where one is not the user's to set, or two have the same key and effect, which is noted."""
    seen: dict[tuple[str, str], str] = {}
    wrong = False
    for number, taint in enumerate(map(str, taints)):
        both, _, effect = taint.rpartition(":")
        key = both.partition("=")[0]
        problem = ""
        if owner := next((name for name in RESERVED_TAINTS if key.startswith(name)), ""):
            problem = f"taints of {owner} are not set by an inventory; remove it"
        elif other := seen.get((key, effect)):
            problem = f"a node has one taint of a key and an effect; keep this or {other}"
        if problem:
            source.problem((*where, number), problem)
        wrong = wrong or bool(problem)
        seen[key, effect] = taint
    return None if wrong else tuple(map(str, taints))


def read_mig(source: Source, value: Any, where: Where) -> tuple[MigRule, ...] | None:
    """The MIG layouts by model; None where no GPU of that name in the table can have its layout, which is noted."""
    rules, wrong = [], False
    for model, text in value.items() if isinstance(value, dict) else (("", value),):
        layout = tuple(text) if isinstance(text, list) else None if text == "off" else (text,)
        if INVALID in (text, *(layout or ())):
            wrong = True  # which is noted
            continue
        place = (*where, model) if isinstance(value, dict) else where
        problems = {name: mig.problem(layout, known) for name, known in mig.models(model, layout).items()}
        problem = "name at least one profile, or write off" if layout == () else ""
        if layout and problems and all(problems.values()):
            name, problem = next(iter(problems.items()))
            problem = f"{name}: {problem}" if model and model != name else problem
        elif layout and not problems:
            problem = mig.unknown(model, layout)
        if problem:
            source.problem(place, problem)
        wrong = wrong or bool(problem)
        rules.append(MigRule(model, layout, source.place(place)))
    return None if wrong else tuple(rules)


READERS: Mapping[tuple[str, ...], Callable[[Source, Any, Where], Any]] = {
    ("driver",): read_driver,
    ("python",): read_python,
    ("gpus",): read_gpus,
    ("taints",): read_taints,
    ("mig",): read_mig,
}

CHECKS: Mapping[tuple[str, ...], Callable[[Source, str, Where], None]] = {
    ("ssh", "jump"): jump_port,
    ("driver",): driver_branch,
}


def read_repository(source: Source, value: Mapping[str, str], where: Where) -> Repository | None:
    """The repository with its key's text; None if something is wrong, which is noted."""
    place = (*where, "key")
    path = need_file(source, value["key"], place) if "key" in value else None
    if path is None:
        return None
    try:
        key = localfile.read(path).decode("ascii", "replace")
    except OSError as error:
        source.problem(place, f"{path} cannot be read: {error.strerror}")
        return None
    if "-----BEGIN PGP PRIVATE KEY BLOCK-----" in key:
        source.problem(place, f"{path} is a PRIVATE key; export the public one: gpg --armor --export")
    elif "-----BEGIN PGP PUBLIC KEY BLOCK-----" not in key:
        convert = f"gpg --no-default-keyring --keyring {path} --armor --export"
        source.problem(place, f"{path} is no armoured public key; convert a binary one: {convert}")
    elif "uri" in value:
        return Repository(value["uri"], key, "".join(value.get("fingerprint", "").split()).upper())
    return None


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


def expand_range(text: str) -> list[str]:
    """`gpu-[08:11]` -> gpu-08 … gpu-11, as wide as its first number. Raises ValueError for a bad range."""
    names, end = [""], 0
    for match in RANGE.finditer(text):
        first, last, width = int(match[1]), int(match[2]), len(match[1])
        if last < first:
            near = f"{text[: match.start()]}[{match[2]}:{match[1]}]{text[match.end() :]}"
            raise ValueError(f"the range {match.group()} ends before it starts; did you mean `{near}`?")
        if (last - first + 1) * len(names) > MOST_HOSTS:
            raise ValueError(f"the range names more than {MOST_HOSTS} hosts")
        names = [
            f"{name}{text[end : match.start()]}{n:0{width}}" for name in names for n in range(first, last + 1)
        ]
        end = match.end()
    return [name + text[end:] for name in names]


def range_meant(text: str) -> str | None:
    """`gpu-[1:4]` for what other tools and shells write: `gpu-[1-4]`, `gpu-[1..4]`, `gpu-{1..4}`; None if it is none."""
    near = re.sub(r"[\[{](\d{1,9})\s*(?:-|–|\.\.|:|,|to)\s*(\d{1,9})[\]}]", r"[\1:\2]", text)
    return near if near != text else None


def make_hosts(source: Source) -> tuple[Host, ...]:
    """All hosts in the order of the file. Conflicts and duplicates are noted in the source."""
    groups = source.data.get("groups", {})
    defaults = read_values(source, source.data.get("defaults", {}), ("defaults",))
    shared = {name: read_values(source, group, ("groups", name)) for name, group in groups.items()}
    mentions = mentions_of(source)
    written = [where for where in source.keys if len(where) == 2 and where[0] == "groups"]
    if "groups" in source.data and [[]] * len(written) == [group.get("hosts") for group in groups.values()]:
        source.problem(("groups",), "no hosts; name at least one under a group's `hosts`")
    conflicts: Conflicts = {}
    hosts = []
    for name, several in mentions.items():
        own = merge_values(name, [mention.values for mention in several], {}, conflicts)
        common = merge_values(name, [shared[mention.group] for mention in several], own, conflicts)
        everything = {**defaults, **common, **own}
        note_missing_known_hosts(source, everything)
        note_unknown_configuration(source, everything)
        hosts.append(make_host(name, tuple(mention.group for mention in several), everything))
    for (where, first), (first_host, *more) in conflicts.items():
        who = f"{first_host} and {len(more)} more" if more else first_host
        place = f"{format_path(first)} (line {source.line(first)})"
        source.problem(where, f"{who}: {place} has another value; use the same, or set it on the host")
    if all(source.problems.values()):  # a port that was not read is no port 22
        note_collisions(source, hosts, mentions)
    return tuple(hosts)


def mentions_of(source: Source) -> dict[str, list[Mention]]:
    """Each host's mentions, at most one per group, in the order of the file."""
    groups = source.data.get("groups", {})
    mentions: dict[str, list[Mention]] = {}
    for mention in list_mentions(source, groups):
        name, where = mention.name, mention.where
        same = mentions.setdefault(name, [])
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
    return mentions


def list_mentions(source: Source, groups: Mapping[str, Any]) -> Iterator[Mention]:
    for group, variables in groups.items():
        for index, item in enumerate(variables.get("hosts", [])):
            where: Where = ("groups", group, "hosts", index)
            if isinstance(item, dict) and "name" in item:
                yield Mention(item["name"], group, where, read_values(source, item, where))
            elif isinstance(item, str):
                try:
                    expanded = expand_range(item)
                except ValueError as error:
                    source.problem(where, str(error))
                    continue
                yield from (Mention(name, group, where, {}) for name in expanded)


def merge_values(name: str, several: list[Values], winner: Values, conflicts: Conflicts) -> Values:
    """One host's values from places of equal rank; different values are a conflict unless `winner` sets the key."""
    result: Values = {}
    for values in several:
        for key, (value, where) in values.items():
            other, first = result.setdefault(key, (value, where))
            if other != value and key not in winner:
                conflicts.setdefault((where, first), []).append(name)
    return result


def make_host(name: str, groups: tuple[str, ...], values: Values) -> Host:
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
    if isinstance(plain.get("gpus"), int):
        plain["gpus"] = ExpectedGpus(plain["gpus"])
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
        **{f"accept_{key}": value for key, value in of("accept").items()},
        **plain,
    )


def note_missing_known_hosts(source: Source, values: Values) -> None:
    """Note a missing known_hosts file with host_key_check strict."""
    check = values.get(("ssh", "host_key_check"))
    file = values.get(("ssh", "known_hosts"))
    if check and check[0] == "strict" and file and not localfile.is_file(Path(file[0])):
        what = "not a file" if localfile.exists(Path(file[0])) else "no such file"
        source.problem(file[1], f"{what}: {file[0]}; with host_key_check: strict gpunode could reach no host")


def note_unknown_configuration(source: Source, values: Values) -> None:
    """Note a label that names an unknown plugin configuration: the plugin on that node would not change."""
    plugin = source.data.get("cluster", {}).get("plugin") or {}
    configs = plugin.get("configs")
    name, where = values.get(("labels", LABEL), ("", ()))
    if configs and name and name not in configs:
        near = difflib.get_close_matches(name, configs, n=1)
        instead = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(configs)}"
        source.problem(where, f"no configuration of cluster.plugin.configs has this name; {instead}")


def note_collisions(source: Source, hosts: list[Host], mentions: Mapping[str, list[Mention]]) -> None:
    """Note two names for one machine: gpunode would change it twice at the same time."""
    seen: dict[tuple[str | None, ...], str] = {}
    for host in hosts:
        keys: list[tuple[str | None, ...]] = [("is this machine",)]
        if host.connection != "local":
            keys = [(f"is reached at {host.ssh.address} port {host.ssh.port or 22}", host.ssh.jump or "none")]
        if host.node:
            keys.append((f"is node {host.node}",))
        for key in keys:
            other = seen.setdefault(key, host.name)
            if other != host.name:
                line = source.line(mentions[other][0].where)
                source.problem(
                    mentions[host.name][0].where, f"{host.name} {key[0]}, as is {other} (line {line})"
                )
