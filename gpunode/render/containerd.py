"""containerd's config.toml: the nvidia runtime beside the others, comments, order and style kept.

Edits are made in the text and then read back: when the result does not say exactly what was meant, it is refused.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from gpunode.render.unfit import Unfit

if sys.version_info >= (3, 11):
    import tomllib

Path: TypeAlias = tuple[str, ...]

BINARY = "/usr/bin/nvidia-container-runtime"
# Where the CRI plugin's settings are, by the file's `version`; a file without one is version 1.
PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
HINT = "Mend the file by hand (containerd reads it too), then run again; it was not touched."
HEADER = re.compile(r"^[ \t]*\[(?!\[)(?P<key>.+)\][ \t]*(?:#.*)?$")


def parse(text: str, path: str) -> dict[str, Any]:
    """The file as data."""
    if sys.version_info >= (3, 11):  # ten times as fast, and a fleet's worth of dumps is a lot
        with suppress(tomllib.TOMLDecodeError):
            return tomllib.loads(text)
    try:
        return tomlkit.parse(text).unwrap()
    except ParseError as error:
        reason = re.sub(r"\s*at line \d+ col \d+$", "", str(error))
        reason = "the file ends too early" if "\\x00" in reason else reason
        # tomlkit calls the line's end, which the string runs into, a control character
        reason = "a string is not closed" if re.search(r"use \\u000[ad] instead", reason) else reason
        where = f"{path}:{error.line}:{error.col + 1}"
        raise Unfit(f"{path} does not parse\n{where}: not valid TOML: {reason}", hint=HINT) from None
    except TOMLKitError as error:
        raise Unfit(f"{path} does not parse\nnot valid TOML: {error}", hint=HINT) from None


def section(data: Mapping[str, Any], path: str, version: int = 1) -> Path:
    """Where a file of this `version` keeps the CRI plugin's `containerd` table; one without a version has this one."""
    version = data.get("version", version)
    if not isinstance(version, int) or version not in PLUGINS:
        raise Unfit(
            f"{path}: `version = {version}` is none that gpunode knows (1 to 4)",
            hint="Set `runtime: none` for this host and add the nvidia runtime by hand.",
        )
    return ("plugins", PLUGINS[version], "containerd")


def lookup(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The table at `path`, {} where there is none."""
    for part in path:
        value = data.get(part)
        data = value if isinstance(value, Mapping) else {}
    return data


def is_right(data: Mapping[str, Any], path: str, *, default: bool) -> bool:
    """Whether containerd, with this configuration, has the nvidia runtime as it is wished."""
    cri = lookup(data, section(data, path))
    runtime = lookup(cri, ("runtimes", "nvidia"))
    named = cri.get("default_runtime_name") == "nvidia"
    return lookup(runtime, ("options",)).get("BinaryName") == BINARY and named == default


def containerd_toml(
    text: str,
    *,
    default: bool,
    systemd_cgroup: bool | None = None,
    path: str = "/etc/containerd/config.toml",
    version: int = 1,
) -> str:
    """The file with the nvidia runtime in it: a copy of the default runtime's settings with NVIDIA's binary.

    `default` makes it the default runtime; otherwise a default that is nvidia becomes runc again.
    `systemd_cgroup` is what the running containerd uses for the default runtime where this file does not say;
    `version` is that of a file that names none: a drop-in has the main file's.
    """
    data = parse(text, path)
    root = section(data, path, version)
    cri = lookup(data, root)
    wished = copy.deepcopy(data)
    runtime = _runtime(cri, systemd_cgroup)
    if lookup(cri, ("runtimes", "nvidia")) != runtime:
        _put(wished, (*root, "runtimes", "nvidia"), runtime)
        text = _write_runtime(text, root, runtime, exists="nvidia" in lookup(cri, ("runtimes",)))
    name = "nvidia" if default else "runc"
    if default != (cri.get("default_runtime_name") == "nvidia"):
        _put(wished, (*root, "default_runtime_name"), name)
        text = _write_default(text, root, name, exists="default_runtime_name" in cri)
    try:
        same = tomlkit.parse(text).unwrap() == wished
    except TOMLKitError:
        same = False
    if not same:
        raise Unfit(
            f"{path}: the nvidia runtime cannot be merged into the way this file is written",
            hint=f"Add `[{'.'.join(root)}.runtimes.nvidia]` with BinaryName = {BINARY!r} by hand, "
            "or set `runtime: none` for this host.",
        )
    return text


def _runtime(cri: Mapping[str, Any], systemd_cgroup: bool | None) -> dict[str, Any]:
    there = lookup(cri, ("runtimes", "nvidia"))
    name = cri.get("default_runtime_name", "runc")
    base = there or lookup(cri, ("runtimes", "runc" if name == "nvidia" else name))
    runtime = {"runtime_type": "io.containerd.runc.v2", **copy.deepcopy(base)}
    options = dict(runtime.get("options", {}))
    if systemd_cgroup is not None and not there:
        options.setdefault("SystemdCgroup", systemd_cgroup)
    runtime["options"] = options | {"BinaryName": BINARY}
    return runtime


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    *parents, last = path
    for part in parents:
        data = data.setdefault(part, {})
    data[last] = value


# --- editing the text ---------------------------------------------------------------------------------------


def _headers(lines: list[str]) -> Iterator[tuple[int, Path]]:
    """Line numbers and paths of the tables' headers."""
    for number, line in enumerate(lines):
        match = HEADER.match(line)
        if match:
            try:
                table: Any = tomlkit.parse(f"[{match['key']}]\n").unwrap()
            except TOMLKitError:
                continue
            path: list[str] = []
            while table:
                path.append(next(iter(table)))
                table = table[path[-1]]
            yield number, tuple(path)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _end(lines: list[str], start: int) -> int:
    """The line after a table's last key: comments and blank lines before the next header belong to that one."""
    last = start
    for number in range(start + 1, len(lines)):
        stripped = lines[number].strip()
        if stripped.startswith("["):
            break
        if stripped and not stripped.startswith("#"):
            last = number
    return last + 1


def _key(root: Path, quote: str) -> str:
    return ".".join(p if re.fullmatch(r"[\w-]+", p) else f"{quote}{p}{quote}" for p in root)


def _literal(value: object, quote: str) -> str:
    if isinstance(value, str) and quote not in value and "\\" not in value:
        return f"{quote}{value}{quote}"
    return str(tomlkit.item(value).as_string())


def _quote(text: str) -> str:
    """The kind of quotes that this file uses for tables' names."""
    match = re.search(r"^[ \t]*\[plugins\.(['\"])", text, re.MULTILINE)
    return match[1] if match else '"'


def _write_runtime(text: str, root: Path, runtime: Mapping[str, Any], *, exists: bool) -> str:
    if exists:
        return _replace_runtime(text, root, runtime)
    lines = _lines(text)
    headers = list(_headers(lines))
    siblings = [n for n, path in headers if path[:-1] == (*root, "runtimes")]
    inside = [n for n, path in headers if path[: len(root) + 1] == (*root, "runtimes")]
    quote = _quote(text)
    outer = _indent(lines[siblings[-1]]) if siblings else ""
    step = _indent(lines[siblings[-1] + 1]).removeprefix(outer) if siblings else "  "
    key = _key((*root, "runtimes", "nvidia"), quote)
    block = ["", *_table(key, runtime, quote, outer, step)]
    at = _end(lines, inside[-1]) if inside else len(lines)
    if inside and at < len(lines) and lines[at].strip():
        block.append("")
    if not inside and text and lines and not lines[-1].strip():
        block = block[1:]
    merged = [*lines[:at], *block, *lines[at:]]
    return "\n".join(merged).lstrip("\n") + "\n"


def _table(key: str, values: Mapping[str, Any], quote: str, outer: str, step: str) -> Iterator[str]:
    yield f"{outer}[{key}]"
    inner = f"{outer}{step}"
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{inner}{name} = {_literal(value, quote)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _table(f"{key}.{_key((name,), quote)}", value, quote, inner, step)


def _replace_runtime(text: str, root: Path, runtime: Mapping[str, Any]) -> str:
    """Set the values that differ in the runtime that is there."""
    document = tomlkit.parse(text)
    table: Any = document
    for part in (*root, "runtimes", "nvidia"):
        table = table[part]
    for name, value in runtime.items():
        if name == "options":
            options = table.setdefault("options", tomlkit.table())
            for option, wish in value.items():
                if option not in options or options[option] != wish:
                    options[option] = wish
        elif name not in table:
            table[name] = value
    return tomlkit.dumps(document)


def _write_default(text: str, root: Path, name: str, *, exists: bool) -> str:
    lines = _lines(text)
    quote = _quote(text)
    start = next((n for n, path in _headers(lines) if path == root), None)
    entry = f"default_runtime_name = {quote}{name}{quote}"
    if start is None:
        # the table may be written once, before or after the tables inside it
        inside = [n for n, path in _headers(lines) if path[: len(root)] == root]
        at = inside[0] if inside else len(lines)
        indent = _indent(lines[at]) if inside else ""
        block = [f"{indent}[{_key(root, quote)}]", f"{indent}  {entry}", ""]
        return "\n".join([*lines[:at], *block, *lines[at:]]).rstrip("\n") + "\n"
    if exists:
        for number in range(start + 1, _end(lines, start)):
            match = re.match(r"(\s*default_runtime_name\s*=\s*)(['\"])[^'\"]*\2(.*)$", lines[number])
            if match:
                lines[number] = f"{match[1]}{match[2]}{name}{match[2]}{match[3]}"
    else:
        indent = _indent(lines[start]) + "  "
        if (
            start + 1 < len(lines)
            and lines[start + 1].strip()
            and not lines[start + 1].strip().startswith("[")
        ):
            indent = _indent(lines[start + 1])
        lines.insert(start + 1, indent + entry)
    return "\n".join(lines) + "\n"
