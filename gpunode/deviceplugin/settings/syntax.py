"""Decodes and parses YAML; a syntax error becomes a Mistake with line, column and cause. Pure."""

from __future__ import annotations

import re
from typing import Any

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
        raise syntax(error, text.splitlines()) from None


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


def syntax(error: yaml.MarkedYAMLError, lines: list[str]) -> Mistake:
    """The cause of a YAML syntax error, in words."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Mistake(1, 1, str(error.problem))
    words = f"{error.context or ''} {error.problem or ''}"
    line = lines[mark.line] if mark.line < len(lines) else ""
    began = error.context_mark
    since = f" in line {began.line + 1}" if began is not None else ""
    cause = next(
        (text.format(since=since) for match, text in SYNTAX if re.search(match, words)), words.strip()
    )
    if "cannot start" in words:
        bad = line[mark.column : mark.column + 1]
        cause = f"a value cannot begin with {bad}; quote it"
        if bad == "\t":
            cause = "a tab; YAML is indented with spaces only"
    elif "flow sequence" in words and (span := re.search(r"[\w.-]*\[\d+:\d+\][\w.-]*", line)):
        cause = f'a range inside [ ] needs quotes: ["{span.group()}"], or a line of its own: - {span.group()}'
    return Mistake(mark.line + 1, mark.column + 1, cause)
