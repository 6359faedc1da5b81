"""The variables of one place (defaults, group or host), flat, with their files read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from gpunode.contract.yaml_text import Where
from gpunode.inventory.source import Source
from gpunode.local import files as localfile
from gpunode.model import PythonBuild, Repository, RunFile


@dataclass(frozen=True, slots=True)
class DriverPackages:
    """Whose packages bring the driver, and of which branch: `auto` or its number."""

    whose: Literal["nvidia", "distribution"]
    branch: str


Values: TypeAlias = dict[tuple[str, ...], tuple[Any, Where]]
"""A variable's name as a path of keys -> its value and its position in the file."""


def values(source: Source, variables: Mapping[str, Any], where: Where) -> Values:
    """The variables of one place: nested keys flattened, paths absolute, repository keys read."""
    flat: Values = {}

    def walk(inner: Mapping[str, Any], name: tuple[str, ...]) -> None:
        for key, value in inner.items():
            full = (*name, key)
            place = (*where, *full)
            if full in {("hosts",), ("name",)}:
                continue
            if full in READERS and isinstance(value, dict):  # one value: nothing of it is merged
                if (found := READERS[full](source, value, place)) is not None:
                    flat[full] = found, place
            elif full[0] == "repositories" and len(full) == 2:
                if (repository := read_repository(source, value, place)) is not None:
                    flat[full] = repository, place
            elif isinstance(value, dict):
                walk(value, full)
            elif full in {("ssh", "key"), ("ssh", "known_hosts")}:
                flat[full] = str(source.relative(value)), place
                if full[1] == "key":
                    private_key(source, value, place)
            elif full == ("work_timeout",):
                flat[full] = seconds(value), place
            else:
                flat[full] = value, place
                if full == ("ssh", "jump"):
                    jump_port(source, value, place)

    walk(variables, ())
    return flat


def seconds(duration: str) -> float:
    """Of `90s`, `30m` or `2h`, as the schema has them."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def jump_port(source: Source, jump: str, where: Where) -> None:
    """Note an invalid port."""
    port = re.search(r":(\d+)$", jump)
    if port and not 1 <= int(port[1]) <= 65535:
        source.problem(where, f"expected a port from 1 to 65535, got {port[1]}")


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
    source.problem(where, f"{what}: {path}{way}")
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
    return DriverPackages(value["from"], version)


def read_run(source: Source, value: Mapping[str, Any], where: Where) -> RunFile | None:
    """NVIDIA's own installer; None if something is wrong, which is noted."""
    version = str(value.get("version", ""))
    if version and "." not in version:
        rule = 'a full version is of the form "580.178.04"'
        source.problem((*where, "version"), f'{rule}; this one is "{version}"')
        return None
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
    if missing or ("file" in value and path is None):
        return None
    archive = str(path) if path else None
    flavour: Any = value.get("flavour")
    return RunFile(value["version"], value["sha256"], archive, value.get("url"), flavour)


def read_python(_: Source, value: Mapping[str, Any], _where: Where) -> PythonBuild | None:
    """A build of Python; None without its address or its checksum, which is noted."""
    return PythonBuild(value["url"], value["sha256"]) if {"url", "sha256"} <= {*value} else None


READERS: Mapping[tuple[str, ...], Callable[[Source, Mapping[str, Any], Where], Any]] = MappingProxyType(
    {("driver",): read_driver, ("python",): read_python}
)


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
