"""YAML text as plain data, with the line and column of every key, value and mistake. Pure.

Scalars of a `Document` follow YAML 1.2, as in editors that check a file against a schema: only `true` and `false` are
booleans, so `host_key_check: off` is a word and a host may be called `no`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import yaml
from yaml.reader import Reader

SYNTAX = [
    (r"found unexpected end of stream", "a quote is opened{since} and never closed"),
    (r"a flow sequence", "the list [ … ] that begins{since} needs `,` or `]` before this"),
    (r"a flow mapping", "the mapping {{ … }} that begins{since} needs `,` or `}}` before this"),
    (
        r"values are not allowed",
        "a `:` too many, or a line too far to the right; quote the text if the `:` belongs to it",
    ),
    (r"entries are not allowed", "a `-` begins a list: put it on a line of its own"),
    (r"a simple key|expected ':'", "a key without its `:`"),
    (r"a block (mapping|collection)", "this line does not line up with the block that begins{since}"),
    (r"a (flow|block) node", "a value is missing here, or a `[` or `{{` before it is not closed"),
    (r"undefined alias", "an alias (*name) for which no anchor (&name) was set before"),
    (r"a single document", "a second document begins here; a file has one"),
    (r"escape", "an unknown \\ escape; in 'single quotes' a \\ is just a \\"),
    (r"duplicate anchor", "this anchor's name is taken already"),
]


DEEPEST = 50  # levels; libyaml's composer recurses in C, where the end of the stack ends the process
TOO_DEEP = f"lists and mappings nest deeper than {DEEPEST} levels; remove the inner ones"


class Mistake(Exception):
    """A mistake at a place of a text; as text `line:column: what`, both from 1."""

    def __init__(self, line: int, column: int, what: str) -> None:
        super().__init__(f"{line}:{column}: {what}")


def decode(raw: bytes) -> str:
    """The text of a file without byte order mark. Raises Mistake for control characters and what is not UTF-8."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = position(raw[: error.start].decode("utf-8", "replace"), None)
        raise Mistake(
            line, column, f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    if bad := Reader.NON_PRINTABLE.search(text):
        line, column = position(text, bad.start())
        raise Mistake(line, column, f"control character {bad.group()!a}: is this a text file?")
    return text


def compose(text: str, loader: Any) -> yaml.Node | None:
    """The text's root node; None if it is empty. Raises Mistake."""
    try:
        return nodes(text, loader)
    except yaml.MarkedYAMLError as error:
        raise syntax_mistake(error, text.splitlines()) from None


@lru_cache(maxsize=64)  # many hosts have the same text
def nodes(text: str, loader: Any = yaml.SafeLoader) -> yaml.Node | None:
    """The root node of any text; None if it is empty. Raises yaml.YAMLError."""
    _bound(text, loader)
    return yaml.compose(text, loader)


def data(text: str) -> Any:
    """The data of any text. Raises yaml.YAMLError alone; PyYAML's constructors also raise other errors."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bound(text, loader)
        return yaml.load(text, loader)  # noqa: S506 - a safe loader either way
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise yaml.YAMLError(f"a value does not match its tag: {error}") from None


def _bound(text: str, loader: Any) -> None:
    """Raise yaml.YAMLError for text that nests too deep, before a composer recurses."""
    depth = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                mark: Any = event.start_mark  # of either parser
                raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def position(text: str, index: int | None) -> tuple[int, int]:
    """Line and column, both from 1, of the character at `index` (None: of the text's end)."""
    before = text[:index]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def syntax_mistake(error: yaml.MarkedYAMLError, lines: list[str]) -> Mistake:
    message = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    if (
        "a simple key" in message and error.context_mark
    ):  # the key, not where its `:` was expected at the latest
        mark = error.context_mark
    if mark is None:
        return Mistake(1, 1, str(error.problem))
    line = lines[mark.line] if mark.line < len(lines) else ""
    began = error.context_mark
    since = f" in line {began.line + 1}" if began is not None else ""
    cause = next(
        (text.format(since=since) for match, text in SYNTAX if re.search(match, message)), message.strip()
    )
    if "cannot start" in message:
        bad = line[mark.column : mark.column + 1]
        cause = f"a value cannot begin with {bad}; quote it"
        if bad == "\t":
            cause = "a tab; YAML is indented with spaces only"
    elif "flow sequence" in message and (span := re.search(r"[\w.-]*\[\d+:\d+\][\w.-]*", line)):
        cause = f'a range inside [ ] needs quotes: ["{span.group()}"], or a line of its own: - {span.group()}'
    return Mistake(mark.line + 1, mark.column + 1, cause)


try:
    from yaml import CSafeLoader as SafeLoader  # five times as fast; the wheels have it
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

Where: TypeAlias = tuple[str | int, ...]
"""The path from the top of the file to a value: ("groups", "h100", "hosts", 1)."""

INVALID = object()
"""Replaces a wrong value, already noted, in a list; in mappings such a key is omitted."""

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


class Wrong(Exception):
    """A mistake in the value at `where`, or in its `key`."""

    def __init__(self, where: Where, what: str, *, key: bool = False) -> None:
        super().__init__(what)
        self.where, self.what, self.key = where, what, key


@dataclass
class Document:
    """The file's data, the place of each part of it, and the mistakes found so far."""

    no_merge: ClassVar[str] = "write the keys out"  # instead of `<<`

    data: Any = None
    keys: dict[Where, tuple[int, int]] = field(default_factory=dict)
    values: dict[Where, tuple[int, int]] = field(default_factory=dict)
    written: dict[Where, str] = field(default_factory=dict)  # scalars as written in the file
    problems: dict[tuple[int, int, str], bool] = field(default_factory=dict)  # each once → whether `outside`

    def problem(self, where: Where, message: str, *, key: bool = False, outside: bool = False) -> None:
        """Note a mistake in the value at `where`, or in its key; for a missing value, at its mapping. `outside`: in a file that it names."""
        known = where
        while known and known not in self.values:
            known = known[:-1]
        place = self.keys.get(known) if key else None
        self.note(place or self.values.get(known, (1, 1)), where, message, outside=outside)

    def note(self, place: tuple[int, int], where: Where, message: str, *, outside: bool = False) -> None:
        """Note a mistake at a line and column."""
        line, column = place
        name = format_path(where)
        self.problems[line, column, f"{name}: {message}" if name else message] = outside

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note a Wrong that is raised meanwhile, and continue after the block."""
        try:
            yield
        except Wrong as wrong:
            self.problem(wrong.where, wrong.what, key=wrong.key)

    def line(self, where: Where) -> int:
        """The line on which a value begins."""
        return self.values[where][0]

    @property
    def mistakes(self) -> list[str]:
        """The noted mistakes, each as `line:column: key: what`, in the order of the file; those outside it come last."""
        in_order = sorted(self.problems, key=lambda problem: (self.problems[problem], problem[:2]))
        return [f"{line}:{column}: {text}" for line, column, text in in_order]

    def read(self, raw: bytes) -> None:
        """Read a file's content. Raises Mistake if it is not YAML; other mistakes are noted."""
        root = compose(decode(raw), Loader)
        if root is not None:
            self.data = _Builder(self).value(root, ())


def format_path(where: Where) -> str:
    """The path to a value as text: groups.h100.hosts[1].ssh.port."""
    text = ""
    for part in where:
        if isinstance(part, int) or part == "":
            text += f"[{part}]"
        elif not re.fullmatch(r"[\w<>-]+", part):
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def kind(value: Any) -> str:
    """A value's type, in words; of a scalar also the value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f'the text "{value}"'
    return "a list" if isinstance(value, list) else "a mapping"


class _Builder:
    """Turns PyYAML's nodes into data and notes their places."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.count = 0
        self.open: list[yaml.Node] = []

    def value(self, node: yaml.Node, where: Where) -> Any:
        """The node's data; INVALID for one with a mistake, which is noted."""
        document = self.document
        mark = node.start_mark
        document.values[where] = (mark.line + 1, mark.column + 1)
        self.count += 1
        if self.count > MOST_VALUES or any(node is outer for outer in self.open):
            raise Mistake(mark.line + 1, mark.column + 1, f"{format_path(where)}: an alias that never ends")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, where)
        if len(self.open) == DEEPEST:  # by aliases of aliases
            raise Mistake(mark.line + 1, mark.column + 1, TOO_DEEP)
        if node.tag not in {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            document.problem(where, f"unknown tag `{node.tag}`; remove it")
        self.open.append(node)
        data: Any
        if isinstance(node, yaml.SequenceNode):
            data = [self.value(item, (*where, index)) for index, item in enumerate(node.value)]
        else:
            data = self.mapping(node, where)
        self.open.pop()
        return data

    def mapping(self, node: yaml.Node, where: Where) -> Any:
        document = self.document
        data: dict[str, Any] = {}
        whole = True
        for key, item in node.value:
            place = (key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, yaml.ScalarNode):
                text = "a key is a word, not a list or mapping"
                if isinstance(key, yaml.MappingNode):
                    text += "; {{ templates }} are not filled in here"
                document.note(place, where, text)
                whole = False
                continue
            here = (*where, key.value)
            if here in document.keys:
                text = f"written twice, first in line {document.keys[here][0]}; keep one"
                document.note(place, here, text)
                continue
            document.keys[here] = place
            if key.value == "<<":
                document.note(place, here, f"merge keys are not read; {document.no_merge}")
                continue
            value = self.value(item, here)
            if value is not INVALID:
                data[key.value] = value
        return data if whole else INVALID

    def scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        document = self.document
        text: str = node.value
        document.written[where] = text
        name = node.tag.removeprefix("tag:yaml.org,2002:")
        if name in {"int", "float"} and re.match(r"[-+]?0[0-9]", text):
            document.problem(
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
            document.problem(where, f"`{text}` does not match its tag !!{name}")
            return INVALID
        if name != "str":
            document.problem(where, f"unknown tag `{node.tag}`; remove it")
            return INVALID
        return text
