"""A YAML file as plain data in which every key and value knows its line and column.

Scalars are read as YAML 1.2 reads them, which is how editors check the file against the schema: only `true` and
`false` are booleans, so `host_key_check: off` is a word and a host may be called `no`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml.reader import Reader

from gpunode.errors import InventoryError
from gpunode.inventory.syntax import syntax

try:
    from yaml import CSafeLoader as SafeLoader  # five times as fast; the wheels have it
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

Where: TypeAlias = tuple[str | int, ...]
"""The way from the top of the file to a value: ("groups", "h100", "hosts", 1)."""

INVALID = object()
"""Stands in a list where a value was reported as wrong; in mappings such a key is left out."""

MOST_VALUES = 300_000  # aliases of aliases can make a short file endless


class Loader(SafeLoader):
    """PyYAML's parser with the scalars of YAML 1.2 instead of 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the name and kind PyYAML wants


for _kind, _pattern, _first in [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
]:
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), _first)


def dotted(where: Where) -> str:
    """The way to a value as people write it: groups.h100.hosts[1].ssh.port."""
    text = ""
    for part in where:
        if isinstance(part, int) or part == "":
            text += f"[{part}]"
        elif not re.fullmatch(r"[\w<>-]+", part):
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


@dataclass
class Source:
    """The file's data, where each part of it stands, and the mistakes found in it so far."""

    path: Path
    data: Any = None
    keys: dict[Where, tuple[int, int]] = field(default_factory=dict)
    values: dict[Where, tuple[int, int]] = field(default_factory=dict)
    written: dict[Where, str] = field(default_factory=dict)  # scalars as they stand in the file
    problems: set[tuple[int, int, str]] = field(default_factory=set)

    def problem(self, where: Where, message: str, *, key: bool = False) -> None:
        """Note a mistake in the value at `where`, or in its key."""
        self.note((self.keys if key else self.values)[where], where, message)

    def note(self, place: tuple[int, int], where: Where, message: str) -> None:
        """Note a mistake at a line and column."""
        line, column = place
        name = dotted(where)
        self.problems.add((line, column, f"{name}: {message}" if name else message))

    def line(self, where: Where) -> int:
        """The line on which a value begins."""
        return self.values[where][0]

    def relative(self, name: str) -> Path:
        """A path that is written in this file: `~` is the user's home, the rest starts beside the file."""
        try:
            path = Path(name).expanduser()
        except RuntimeError:  # ~nobody: left as it is, it will not exist
            path = Path(name)
        return (self.path.parent / path).absolute()

    def stop(self) -> None:
        """Raise all mistakes noted so far, in the order of the file."""
        if self.problems:
            raise InventoryError(
                [f"{self.path}:{line}:{col}: {text}" for line, col, text in sorted(self.problems)]
            )


def read(path: Path) -> Source:
    """The file as data. Raises InventoryError when it cannot be read or is no YAML; lesser mistakes are noted."""
    source = Source(path)
    text = decode(path)
    if bad := Reader.NON_PRINTABLE.search(text):
        line, column = position(text, bad.start())
        raise InventoryError(
            [f"{path}:{line}:{column}: control character {bad.group()!a}: is this a text file?"]
        )
    try:
        root = yaml.compose(text, Loader)
    except yaml.MarkedYAMLError as error:
        raise InventoryError([f"{path}:{syntax(error, text.splitlines())}"]) from None
    if root is None:
        raise InventoryError([f"{path}: the file is empty; it needs `groups` with `hosts`"])
    source.data = Builder(source).value(root, ())
    if source.data is INVALID:
        source.stop()
    if not isinstance(source.data, dict):
        source.problem((), f"expected `groups:` and the like at the top, got {kind(source.data)}")
        source.stop()
    return source


def decode(path: Path) -> str:
    """The file's text; a byte order mark is dropped."""
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        inside = sorted(entry.name for entry in path.iterdir() if entry.suffix in {".yaml", ".yml"})
        there = f"; in it: {', '.join(inside[:5])}" if inside else ""
        raise InventoryError([f"{path}: is a directory, expected a YAML file{there}"]) from None
    except FileNotFoundError:
        raise InventoryError([f"{path}: no such file{near_file(path)}"]) from None
    except OSError as error:
        raise InventoryError([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = position(raw[: error.start].decode("utf-8", "replace"), None)
        text = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise InventoryError([f"{path}:{line}:{column}: {text}"]) from None


def near_file(path: Path) -> str:
    """`; did you mean …?` when the folder has a file of a similar name."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; there is no folder {path.parent} either"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def position(text: str, index: int | None) -> tuple[int, int]:
    """Line and column, both from 1, of the character at `index` (None: of what follows the text)."""
    before = text[:index]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value}"'
    return "a list" if isinstance(value, list) else "a mapping"


class Builder:
    """Turns PyYAML's nodes into data and notes their places."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.count = 0
        self.open: list[yaml.Node] = []

    def value(self, node: yaml.Node, where: Where) -> Any:
        """The node's data; what makes no sense becomes a noted mistake and None."""
        source = self.source
        mark = node.start_mark
        source.values[where] = (mark.line + 1, mark.column + 1)
        self.count += 1
        if self.count > MOST_VALUES or any(node is outer for outer in self.open):
            raise InventoryError(
                [
                    f"{source.path}:{mark.line + 1}:{mark.column + 1}: {dotted(where)}: an alias that never ends"
                ]
            )
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, where)
        if node.tag not in {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            source.problem(where, f"unknown tag `{node.tag}`; an inventory has no tags")
        self.open.append(node)
        data: Any
        if isinstance(node, yaml.SequenceNode):
            data = [self.value(item, (*where, index)) for index, item in enumerate(node.value)]
        else:
            data = self.mapping(node, where)
        self.open.pop()
        return data

    def mapping(self, node: yaml.Node, where: Where) -> Any:
        source = self.source
        data: dict[str, Any] = {}
        whole = True
        for key, item in node.value:
            place = (key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, yaml.ScalarNode):
                text = "a key is a word, not a list or mapping"
                if isinstance(key, yaml.MappingNode):
                    text += "; {{ templates }} are not filled in here"
                source.note(place, where, text)
                whole = False
                continue
            here = (*where, key.value)
            if here in source.keys:
                source.note(place, here, f"written twice, first in line {source.keys[here][0]}; keep one")
                continue
            source.keys[here] = place
            if key.value == "<<":
                source.problem(
                    here,
                    "merge keys are not read; what hosts share goes into a group or `defaults`",
                    key=True,
                )
                continue
            value = self.value(item, here)
            if value is not INVALID:
                data[key.value] = value
        return data if whole else INVALID

    def scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        source = self.source
        text: str = node.value
        source.written[where] = text
        name = node.tag.removeprefix("tag:yaml.org,2002:")
        if name in {"int", "float"} and re.match(r"[-+]?0[0-9]", text):
            source.problem(
                where,
                f'{text} begins with 0, which some read as octal: write {text.lstrip("0") or 0}, or "{text}" for text',
            )
            return INVALID
        try:
            if name == "null":
                return None
            if name == "bool":
                return {"true": True, "false": False}[text.lower()]
            if name == "int":
                return int(text)
            if name == "float":
                return float(text)
        except (ValueError, KeyError):
            source.problem(where, f"`{text}` is not what its tag !!{name} says")
            return INVALID
        if name != "str":
            source.problem(where, f"unknown tag `{node.tag}`; an inventory has no tags")
            return INVALID
        return text
