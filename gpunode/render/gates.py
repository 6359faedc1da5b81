"""Feature gates of a kubelet, where its arguments or its configuration file set them; all else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import yaml

from gpunode import envfile

Gates: TypeAlias = Mapping[str, bool | None]
"""Wished gates; None: must not be set."""

FLAG = re.compile(
    r"""(?P<open>(?<=[\s"'])["'])?--?feature-gates(?P<between>=|[ \t]+)(?P<quote>["']?)"""
    r"""(?P<value>[A-Za-z]\w*=\w+(?:,[A-Za-z]\w*=\w+)*,?)(?P=quote)(?P<close>["'])?(?=["'\s\\]|$)"""
)


def kubelet_args(text: str, gates: Gates, variable: str | None = None) -> str:
    """An environment file or a unit with the gates that it sets brought to what is wished.

    With `variable`, gates that no argument sets yet are added to that variable's value; without, only what is
    there is changed.
    """
    text, found = _existing(text, gates)
    missing = {name: state for name, state in gates.items() if state is not None and name not in found}
    return _added(text, variable, missing) if variable and missing else text


def _existing(text: str, gates: Gates) -> tuple[str, set[str]]:
    found: set[str] = set()
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(("#", ";")):
            lines[number] = _line(line, gates, found)
    return "".join(lines), found


def _line(line: str, gates: Gates, found: set[str]) -> str:
    for match in reversed(list(FLAG.finditer(line))):
        parts = [part.partition("=") for part in match["value"].split(",") if part]
        found.update(name for name, _, state in parts if gates.get(name) is not None)
        kept = []
        for name, _, state in parts:
            wish = gates.get(name, state)
            if wish is not None:
                same = isinstance(wish, str) or state.lower() == _word(wish)
                kept.append(f"{name}={state if same else _word(bool(wish))}")
        if kept == [f"{name}={state}" for name, _, state in parts]:
            continue
        if kept:
            line = line[: match.start("value")] + ",".join(kept) + line[match.end("value") :]
        else:
            line = _without(line, match)
    return line


def _without(line: str, match: re.Match[str]) -> str:
    """The line without a whole flag, and without one of the spaces round it."""
    whole = match["open"] is not None and match["open"] == match["close"]
    start = match.start() if whole or match["open"] is None else match.start() + 1
    stop = match.end() if whole or match["close"] is None else match.start("close")
    before, after = line[:start], line[stop:]
    if after[:1] in (" ", "\t"):
        after = after.lstrip(" \t")
    elif before[-1:] in (" ", "\t"):
        before = before.rstrip(" \t")
    return before + after


def _word(state: bool) -> str:
    return "true" if state else "false"


def _added(text: str, variable: str, gates: Mapping[str, bool | None]) -> str:
    written = ",".join(f"{name}={_word(bool(state))}" for name, state in gates.items())
    flags = [m for m in FLAG.finditer(text) if not _is_comment(text, m.start())]
    if flags:
        end = flags[-1].end("value")
        comma = "" if flags[-1]["value"].endswith(",") else ","
        return f"{text[:end]}{comma}{written}{text[end:]}"
    unit = re.compile(rf"""^([ \t]*Environment=)(["']?){variable}=([^"'\n]*)\2[ \t]*$""", re.MULTILINE)
    if unit.search(text):
        flag = f"--feature-gates={written}"
        return unit.sub(lambda m: f'{m[1]}"{variable}={f"{m[3]} {flag}".lstrip()}"', text, count=1)
    set_now = [one for one in envfile.read(text) if one.name == variable]
    if not set_now:
        # A line that ends in a backslash goes on in the next: that must not be ours.
        line_end = "" if not text or (text.endswith("\n") and not text.endswith("\\\n")) else "\n"
        return f"{text}{line_end}{variable}=--feature-gates={written}\n"
    value, end = set_now[-1].value, set_now[-1].end
    space = " " if value and not value.endswith((" ", "\t", "\n")) else ""
    return f"{text[:end]}{space}--feature-gates={written}{text[end:]}"


def _is_comment(text: str, offset: int) -> bool:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line.lstrip().startswith(("#", ";"))


def config_gates(text: str, gates: Gates) -> str:
    """A KubeletConfiguration whose `featureGates` agree with what is wished; only what it sets is changed.

    The text is valid YAML: a host whose configuration is not is refused before.
    """
    if "featureGates" not in text:
        return text
    for name in gates:
        root = yaml.compose(text, yaml.SafeLoader)
        text = _config_gate(text, _gates_node(root), name, gates[name])
    return text


def _gates_node(root: yaml.Node | None) -> tuple[yaml.Node, yaml.MappingNode] | None:
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if key.value == "featureGates" and isinstance(value, yaml.MappingNode):
                return key, value
    return None


def _config_gate(
    text: str, node: tuple[yaml.Node, yaml.MappingNode] | None, name: str, wish: bool | None
) -> str:
    if node is None:
        return text
    owner, mapping = node
    for number, (key, value) in enumerate(mapping.value):
        if key.value != name:
            continue
        if wish is not None:
            if value.value.lower() == _word(wish):
                return text
            return text[: value.start_mark.index] + _word(wish) + text[value.end_mark.index :]
        if len(mapping.value) == 1 and owner.start_mark.column > 0:  # inside a JSON object: its members stay
            return text[: mapping.start_mark.index] + "{}" + text[mapping.end_mark.index :]
        if len(mapping.value) == 1:
            return _cut(text, owner.start_mark.index, value.end_mark.index, flow=mapping.flow_style)
        if not mapping.flow_style:
            return _cut(text, key.start_mark.index, value.end_mark.index)
        if number + 1 < len(mapping.value):
            following = mapping.value[number + 1][0]
            return text[: key.start_mark.index] + text[following.start_mark.index :]
        before = mapping.value[number - 1][1]
        return text[: before.end_mark.index] + text[value.end_mark.index :]
    return text


def _cut(text: str, start: int, end: int, *, flow: bool = False) -> str:
    """The text without these lines, whole; comments at the end of the last one go with it."""
    if flow:
        end = text.index("}", end) + 1
    start = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    return text[:start] + (text[stop + 1 :] if stop >= 0 else "")
