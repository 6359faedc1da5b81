"""TOML files of a host: read as data of known types, and edited so that every other byte stays.

Edits take a text that is known to parse. How a new key is written follows what is around it: a header of its own, a dotted
key, or a place in an inline table; with the quotes, indentation and line ends of the file.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpunode.errors import CannotPlan
from gpunode.planning.files import at

if sys.version_info >= (3, 11):
    import tomllib

Path: TypeAlias = tuple[str, ...]

Kind: TypeAlias = Literal["number", "string", "strings", "switch", "table"]  # `strings`: a list of them
# By path. "*" is any name; case does not count, as for the TOML libraries of Go.
Kinds: TypeAlias = Mapping[Path, Kind]

KINDS: Mapping[Kind, tuple[type, str]] = {
    "number": (int, "a number"),
    "string": (str, "a string"),
    "strings": (list, "a list of strings"),
    "switch": (bool, "true or false"),
    "table": (Mapping, "a table"),
}


def read(text: str, path: str, kinds: Kinds, reader: str) -> dict[str, Any]:
    """The file as data. Raises CannotPlan with file and line where it is not TOML, or where a value is not of its kind; `reader`
    names the program that reads the file, too."""
    hint = f"Fix the file by hand ({reader} reads it too), then run again; gpunode left it unchanged."
    data = _parse(text, path, hint)
    _check(data, kinds, text, path, hint)
    return data


def lookup(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The table at `path`, {} where there is none."""
    for part in path:
        value = data.get(part)
        data = value if isinstance(value, Mapping) else {}
    return data


def _parse(text: str, path: str, hint: str) -> dict[str, Any]:
    # containerd 1.x ignores the mark; the check on the host covers other versions
    text = text.removeprefix("\ufeff")
    try:
        if sys.version_info >= (3, 11):  # ten times as fast, which counts for the dumps of a fleet
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(text)
        return _parse_by_tomlkit(text, path, hint)
    except ValueError as error:  # a number of more than 4300 digits
        raise CannotPlan(f"{path} does not parse\nnot valid TOML: {error}", hint=hint) from None
    except RecursionError:
        raise CannotPlan(f"{path} does not parse\nit is nested too deeply", hint=hint) from None


def _parse_by_tomlkit(text: str, path: str, hint: str) -> dict[str, Any]:
    import tomlkit  # here and in `literal` only: a plan must not wait for it
    from tomlkit.exceptions import ParseError, TOMLKitError

    try:
        return tomlkit.parse(text).unwrap()
    except ParseError as error:
        reason = re.sub(r"\s*at line \d+ col \d+$", "", str(error))
        reason = "the file ends too early" if "\\x00" in reason else reason
        # tomlkit calls the line's end, which the string runs into, a control character
        reason = "a string is not closed" if re.search(r"use \\u000[ad] instead", reason) else reason
        where = f"{path}:{error.line}:{error.col + 1}"
        raise CannotPlan(f"{path} does not parse\n{where}: not valid TOML: {reason}", hint=hint) from None
    except TOMLKitError as error:
        raise CannotPlan(f"{path} does not parse\nnot valid TOML: {error}", hint=hint) from None


def _check(data: Mapping[str, Any], kinds: Kinds, text: str, path: str, hint: str) -> None:
    """Raise CannotPlan for the first value that is not of its kind. `text` is what `data` was read from."""
    for pattern, kind in kinds.items():
        for key, value in _values_at(data, pattern):
            items = []
            if isinstance(value, list):
                items = [(f"[{n}]", item, "string") for n, item in enumerate(value)]
            for suffix, item, wanted_kind in (("", value, kind), *(items if kind == "strings" else ())):
                type_, name = KINDS[wanted_kind]
                if not isinstance(item, type_) or (wanted_kind == "number" and isinstance(item, bool)):
                    raise CannotPlan(
                        f"{_place(text, path, key)}: `{'.'.join(key)}{suffix}` is {_describe(item)}, not {name}",
                        hint=hint,
                    )


def _values_at(data: object, pattern: Path, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values at these keys; none below what is no table."""
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if pattern[0] in ("*", name.lower()):
            key = (*above, name)
            if len(pattern) == 1:
                yield key, value
            else:
                yield from _values_at(value, pattern[1:], key)


def _place(text: str, path: str, key: Path) -> str:
    """`path:line` of the key, or of the first key below it."""
    entry = next((entry for entry in entries(text) if entry.path[: len(key)] == key), None)
    return at(path, text, entry.start).rpartition(":")[0] if entry else path


def _describe(value: object) -> str:
    if isinstance(value, str):
        return f"the string {json.dumps(value, ensure_ascii=False)}"
    if isinstance(value, Mapping | list):
        return "a table" if isinstance(value, Mapping) else "a list"
    return json.dumps(value, default=str)


# --- Positions ---------------------------------------------------------------------------------------------

PART = re.compile(r"""[ \t]*(?:("(?:\\.|[^"\\])*")|'([^']*)'|([^\s.=\[\]"'#]+))[ \t]*""")
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
OTHER = re.compile(r"[^,\]}#\r\n]*[^,\]}#\s]")  # a number, a boolean, or a date with a blank in it
GAP = re.compile(r"(?:[\s\ufeff]|#[^\n]*)*")
LINE = re.compile(r"[^\n]*(?:\n|$)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A `[header]` or a `key = value`. `home` is the table that it is written in; `value` is where a key's begins."""

    path: Path
    home: Path
    start: int
    value: int
    end: int

    @property
    def header(self) -> bool:
        return self.value == self.end


def entries(text: str) -> tuple[Entry, ...]:
    """All of them in order; those of an inline table follow its own."""
    return tuple(_statements(text))


def _statements(text: str) -> Iterator[Entry]:
    home: Path = ()
    offset = _after(GAP, text, 0)
    while offset < len(text):
        if text[offset] == "[":
            double = text.startswith("[[", offset)
            home, end = _key(text, offset + 1 + double)
            end += 1 + double
            yield Entry(home, home[:-1], offset, end, end)
        else:
            pairs = tuple(_pair(text, offset, home))
            yield from pairs
            end = pairs[0].end
        offset = _after(GAP, text, end)


def _pair(text: str, start: int, home: Path) -> Iterator[Entry]:
    key, equals = _key(text, start)
    value = _after(GAP, text, equals + 1)
    path = (*home, *key)
    end, inside = _value(text, value, path)
    yield Entry(path, home, start, value, end)
    yield from inside


def _value(text: str, offset: int, path: Path) -> tuple[int, tuple[Entry, ...]]:
    """Where the value at `offset` ends, and what is in it if it is an inline table."""
    if text[offset] not in "[{":
        pattern = STRING if text[offset] in "\"'" else OTHER
        return _after(pattern, text, offset), ()
    table = text[offset] == "{"
    inside: list[Entry] = []
    offset = _after(GAP, text, offset + 1)
    while text[offset] not in "]}":
        if table:
            pairs = tuple(_pair(text, offset, path))
            inside += pairs
            offset = pairs[0].end
        else:
            offset, _ = _value(text, offset, path)
        offset = _after(GAP, text, offset)
        if text[offset] == ",":
            offset = _after(GAP, text, offset + 1)
    return offset + 1, tuple(inside)


def _key(text: str, offset: int) -> tuple[Path, int]:
    """A dotted key, and where it ends."""
    parts: list[str] = []
    while match := PART.match(text, offset):
        double, single, bare = match.groups()
        parts.append(str(json.loads(double)) if double else single if single is not None else bare)
        offset = match.end()
        if text[offset] != ".":
            break
        offset += 1
    return tuple(parts), offset


def _after(pattern: re.Pattern[str], text: str, offset: int) -> int:
    match = pattern.match(text, offset)
    return match.end() if match else offset


# --- Setting -----------------------------------------------------------------------------------------------


def put(text: str, path: Path, value: Any) -> str:
    """The text with `value` at `path`. A mapping is merged into the table there; a new table is written at once."""
    present = entries(text)
    if isinstance(value, Mapping):
        if any(entry.path[: len(path)] == path for entry in present):
            for name, item in value.items():
                text = put(text, (*path, name), item)
            return text
    elif keys := [e for e in present if e.path == path and not e.header]:
        old = text[keys[-1].value : keys[-1].end]
        quote = old[0] if old[:1] in ("'", '"') else quotes(text)
        return text[: keys[-1].value] + literal(value, quote) + text[keys[-1].end :]
    return _add(text, present, path, value)


def drop(text: str, path: Path) -> str:
    """The text without the tables at `path` and below that have headers of their own, and without the blank line before each."""
    present = entries(text)
    for header in reversed([e for e in present if e.header and e.path[: len(path)] == path]):
        own = (e.end for e in present if e.home == header.path and not e.header and e.start > header.start)
        last = max(header.end, *own)
        before, after = text[: text.rfind("\n", 0, header.start) + 1], text[_after(LINE, text, last) :]
        text = (before.rstrip() + "\n" if before.strip() else "") + after
    return text


def _add(text: str, present: tuple[Entry, ...], path: Path, value: Any) -> str:
    for depth in range(len(path) - 1, -1, -1):
        above = path[:depth]
        inline = [e for e in present if e.path == above and text[e.value : e.value + 1] == "{"]
        if inline:
            return _into_inline(text, inline[-1], path[depth:], value)
        dotted = [e for e in present if len(e.home) < depth < len(e.path) and e.path[:depth] == above]
        dotted = [e for e in dotted if not e.header]
        if dotted:
            return _after_dotted(text, dotted[-1], path[len(dotted[-1].home) :], value)
        if any(e.path[:depth] == above for e in present):
            break
    return _table(text, present, path, value)


def _into_inline(text: str, table: Entry, path: Path, value: Any) -> str:
    for name in reversed(path[1:]):
        value = {name: value}
    quote = quotes(text)
    closing = table.end - 1
    last = len(text[:closing].rstrip())
    empty = text[last - 1] == "{"
    new = f"{' ' if empty else ', '}{_keys(path[:1], quote)} = {literal(value, quote)}"
    return text[:last] + new + (text[last:closing] or (" " if empty else "")) + text[closing:]


def _after_dotted(text: str, last: Entry, path: Path, value: Any) -> str:
    """More dotted keys after the last of its table, written in the same place."""
    quote = quotes(text)
    pairs = [f"{_keys(key, quote)} = {literal(item, quote)}" for key, item in _leaves(path, value)]
    begin = text.rfind("\n", 0, last.start) + 1
    if text[begin : last.start].strip():  # inside an inline table
        return text[: last.end] + "".join(f", {pair}" for pair in pairs) + text[last.end :]
    indent = text[begin : last.start]
    return _insert(text, _after(LINE, text, last.end), [indent + pair for pair in pairs])


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for name, item in value.items():
        yield from _leaves((*path, name), item)


def _table(text: str, present: tuple[Entry, ...], path: Path, value: Any) -> str:
    quote = quotes(text)
    if isinstance(value, Mapping):
        return _block(text, present, path, value)
    home, pair = path[:-1], f"{_keys(path[-1:], quote)} = {literal(value, quote)}"
    own = next((e for e in present if e.header and e.path == home), None)
    if own is not None:
        keys = [e for e in present if e.home == home and not e.header and e.start > own.start]
        after = _after(LINE, text, own.end)
        near = keys and text.count("\n", own.end, keys[0].start) == 1
        return _insert(text, after, [(_indent(text, keys[0]) if near else _indent(text, own) + "  ") + pair])
    inside = next((e for e in present if e.path[: len(home)] == home), None)
    if inside is None:
        return _block(text, present, home, {path[-1]: value})
    # the table may be written once, before or after the tables inside it
    indent = _indent(text, inside)
    return _insert(
        text, inside.start - len(indent), [f"{indent}[{_keys(home, quote)}]", f"{indent}  {pair}", ""]
    )


def _block(text: str, present: tuple[Entry, ...], path: Path, values: Mapping[str, Any]) -> str:
    """A table with a header of its own, after the last that is inside the same one, in the manner of its neighbours."""
    headers = [e for e in present if e.header]
    siblings = [e for e in headers if e.path[:-1] == path[:-1]]
    inside = [e for e in headers if len(path) > 1 and e.path[: len(path) - 1] == path[:-1]]
    above = [e for e in headers if e.path == path[:-1]]
    model = next(reversed(siblings or above), None)
    outer = _indent(text, model) if model else ""
    own = next((e for e in present if model and e.home == model.path and not e.header), None)
    step = _indent(text, own).removeprefix(outer) if own else "  "
    outer += step if above and not siblings else ""
    block = ["", *_lines(path, values, quotes(text), outer, step)]
    if not inside:
        blank = not text.strip("\ufeff") or text.endswith(("\n\n", "\n\r\n"))
        return _insert(text, len(text), block[1:] if blank else block)
    end = max(e.end for e in present if e is inside[-1] or e.home == inside[-1].path)
    after = _after(LINE, text, end)
    if _after(LINE, text, after) > after and text[after : _after(LINE, text, after)].strip():
        block.append("")
    return _insert(text, after, block)


def _lines(path: Path, values: Mapping[str, Any], quote: str, outer: str, step: str) -> Iterator[str]:
    yield f"{outer}[{_keys(path, quote)}]"
    inner = f"{outer}{step}"
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{inner}{_keys((name,), quote)} = {literal(value, quote)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _lines((*path, name), value, quote, inner, step)


def _insert(text: str, offset: int, lines: list[str]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text[:offset]
    if before.strip("\ufeff") and not before.endswith("\n"):
        before += newline
    return before + "".join(line + newline for line in lines) + text[offset:]


def _indent(text: str, entry: Entry) -> str:
    before = text[text.rfind("\n", 0, entry.start) + 1 : entry.start]
    return before if not before.strip() else ""


def _keys(path: Path, quote: str) -> str:
    return ".".join(p if re.fullmatch(r"[A-Za-z0-9_-]+", p) else literal(p, quote) for p in path)


def literal(value: object, quote: str) -> str:
    """A value as it stands in a file that uses these quotes."""
    if isinstance(value, Mapping):
        pairs = [f"{_keys((name,), quote)} = {literal(item, quote)}" for name, item in value.items()]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item, quote) for item in value) + "]"
    if isinstance(value, str) and not re.search(rf"[{quote}\\\x00-\x1f\x7f]", value):
        return f"{quote}{value}{quote}"

    import tomlkit

    return str(tomlkit.item(value).as_string())


def quotes(text: str) -> str:
    """The kind of quotes that this file uses for tables' names."""
    match = re.search(r"^[ \t]*\[?plugins[ \t]*\.[ \t]*(['\"])", text, re.MULTILINE)
    return match[1] if match else '"'
