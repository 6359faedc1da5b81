"""Feature gates of a kubelet, where its arguments or its configuration file set them; all else stays as it is."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan
from gpunode.links.kubelet import systemd
from gpunode.model import Desired, Facts, KubeletStart, UnitSetting, WriteFile
from gpunode.planning import files

AT_START = "it reads its gates at its start"

Gates: TypeAlias = Mapping[str, bool | None]
"""Wished gates; None: must not be set."""

FLAG = re.compile(
    r"""(?P<open>(?<=[\s"'])["'])?--?feature-gates(?P<between>=|[ \t]+)(?P<quote>\\?["']|)"""
    r"""(?P<value>[A-Za-z]\w*=\w+(?:,[A-Za-z]\w*=\w+)*,?)(?P=quote)(?P<close>["'])?(?=["'\s\\]|$)"""
)


def format_gates(gates: Gates) -> str:
    """Gates as the flag takes them."""
    return ",".join(f"{name}={_word(bool(state))}" for name, state in gates.items())


def kubelet_args(text: str, gates: Gates) -> str:
    """An environment file or a unit with the gates that it sets brought to what is wished."""
    lines = re.split(r"(?<=\n)", text)
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(("#", ";")):
            lines[number] = _line(line, gates)
    return "".join(lines)


def into_flags(text: str, gates: Gates) -> Iterator[str]:
    """The text with these gates in one of the flags that it has, from the last to the first."""
    for match in reversed(list(FLAG.finditer(text))):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not line.lstrip().startswith(("#", ";")):
            comma = "" if match["value"].endswith(",") else ","
            yield f"{text[: match.end('value')]}{comma}{format_gates(gates)}{text[match.end('value') :]}"


def into_variable(text: str, variable: str, flag: str) -> str:
    """An environment file with the flag at the end of the variable's value, or with the variable where it has none."""
    present = [assignment for assignment in systemd.read_environment(text) if assignment.name == variable]
    if not present:
        end = "\r\n" if "\r\n" in text else "\n"
        # A line that ends in a backslash continues in the next, which must not be the new one.
        before = "" if not text or (text.endswith("\n") and not text.endswith(f"\\{end}")) else end
        return f"{text}{before}{variable}={flag}{end}"
    value, end_of = present[-1].value, present[-1].end
    space = " " if value and not value.endswith((" ", "\t", "\n")) else ""
    return f"{text[:end_of]}{space}{flag}{text[end_of:]}"


def into_unit_variable(text: str, variable: str, flag: str) -> str:
    """A unit with the flag at the end of the value that its last Environment= of this variable gives it."""
    for setting in reversed(systemd.read_unit(text)):
        raw = text[setting.start : setting.stop]
        flat = re.sub(r"\\\r?\n", lambda m: " " * len(m[0]), raw)
        for word in reversed(systemd.split(flat) or ()) if setting.key == "Environment" else ():
            if not word.value.startswith(f"{variable}="):
                continue
            start, stop = setting.start + word.start, setting.start + word.stop
            space = " " if word.value[-1] not in "= \t" else ""
            if text[stop - 1] in "\"'":
                return f"{text[: stop - 1]}{space}{flag}{text[stop - 1 :]}"
            return f'{text[:start]}"{text[start:stop]}{space}{flag}"{text[stop:]}'
    return text


def into_command(text: str, setting: UnitSetting, gates: Gates) -> str:
    """A unit with a flag at the end of this command; on a line of its own where its arguments are."""
    raw = text[setting.start : setting.stop]
    last = raw.rstrip(" \t\r\n\\")
    line = re.search(r"(\\\r?\n[ \t]*)-[^\n]*$", last)
    end = setting.start + len(last)
    return f"{text[:end]}{f' {line[1]}' if line else ' '}--feature-gates={format_gates(gates)}{text[end:]}"


def flag_value(value: str, gates: Gates) -> str:
    """A flag's value with the gates that it sets brought to what is wished; "" where none is left."""
    kept = []
    for name, _, state in (part.partition("=") for part in value.split(",") if part):
        desired = gates.get(name, state)
        if desired is not None:
            same = isinstance(desired, str) or state.lower() == _word(desired)
            kept.append(f"{name}={state if same else _word(bool(desired))}")
    return ",".join(kept)


def _line(line: str, gates: Gates) -> str:
    for match in reversed(list(FLAG.finditer(line))):
        kept = flag_value(match["value"], gates)
        if kept == match["value"].rstrip(","):
            continue
        if kept:
            line = line[: match.start("value")] + kept + line[match.end("value") :]
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


def config_gates(text: str, gates: Gates) -> str:
    """A KubeletConfiguration whose `featureGates` agree with what is wished; only what it sets is changed.

    The text is valid YAML: a host whose configuration is not is refused before.
    """
    if "featureGates" not in text:
        return text
    for name in gates:
        text = _config_gate(text, _gates_node(compose(text)), name, gates[name])
    return text


def into_config(text: str, gates: Gates) -> str | None:
    """A KubeletConfiguration with these gates too; None where it is none that can hold them."""
    root = compose(text)
    if not isinstance(root, yaml.MappingNode) or not root.value:
        return None
    if not any((key.value, value.value) == ("kind", "KubeletConfiguration") for key, value in root.value):
        return None
    pairs = [f"{name}: {_word(bool(state))}" for name, state in gates.items()]
    node = next((value for key, value in root.value if key.value == "featureGates"), None)
    if root.flow_style:
        quoted = [f'"{name}": {_word(bool(state))}' for name, state in gates.items()]
        if node is None:
            return _into_flow(text, root, [f'"featureGates": {{{", ".join(quoted)}}}'])
        return _into_flow(text, node, quoted) if isinstance(node, yaml.MappingNode) else None
    end = "\r\n" if "\r\n" in text else "\n"
    if node is None:
        key, value = root.value[-1]
        lines = "".join(f"{end}  {pair}" for pair in pairs)
        return _into_block(text, value, f"{' ' * key.start_mark.column}featureGates:{lines}", end)
    if not isinstance(node, yaml.MappingNode):  # null: `featureGates:` and nothing more
        lines = "".join(f"{end}  {pair}" for pair in pairs)
        return None if node.value else text[: node.start_mark.index] + lines + text[node.end_mark.index :]
    if node.flow_style:
        return _into_flow(text, node, pairs)
    key, value = node.value[-1]
    indent = " " * key.start_mark.column
    return _into_block(text, value, end.join(f"{indent}{pair}" for pair in pairs), end)


def _into_flow(text: str, node: yaml.MappingNode, entries: list[str]) -> str:
    """The mapping with more entries after its last, each on a line of its own if that one is."""
    if not node.value:
        at = node.start_mark.index + 1
        return f"{text[:at]}{', '.join(entries)}{text[at:]}"
    key, value = node.value[-1]
    line = re.search(r"\r?\n[ \t]*$", text[: key.start_mark.index])
    gap = line[0] if line else " "
    at = value.end_mark.index
    return text[:at] + "".join(f",{gap}{entry}" for entry in entries) + text[at:]


def _into_block(text: str, last: yaml.Node, lines: str, end: str) -> str:
    """The text with lines below the line in which this node, the last of its mapping, ends."""
    while isinstance(last, yaml.CollectionNode) and last.value and not last.flow_style:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    at = last.end_mark.index
    if text[at - 1 : at] != "\n":  # a block scalar ends where the next line begins
        stop = text.find("\n", at)
        at = len(text) if stop < 0 else stop + 1
    before = text[:at] if text[:at].endswith("\n") else f"{text[:at]}{end}"
    return f"{before}{lines}{end}{text[at:]}"


def compose(text: str) -> yaml.Node | None:
    """The text's nodes; None where it has some that only other readers of YAML take.

    JSON may be indented with tabs, which are none of YAML's.
    """
    try:
        flat = text.replace("\t", " ") if text.lstrip().startswith("{") else text
        return yaml_text.nodes(flat)
    except yaml.YAMLError:
        return None


def _gates_node(root: yaml.Node | None) -> tuple[yaml.Node, yaml.MappingNode] | None:
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if key.value == "featureGates" and isinstance(value, yaml.MappingNode):
                return key, value
    return None


def _config_gate(
    text: str, node: tuple[yaml.Node, yaml.MappingNode] | None, name: str, state: bool | None
) -> str:
    if node is None:
        return text
    owner, mapping = node
    for number, (key, value) in enumerate(mapping.value):
        if key.value != name:
            continue
        if state is not None:
            if str(value.value).lower() == _word(state):
                return text
            return text[: value.start_mark.index] + _word(state) + text[value.end_mark.index :]
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


# --- Starts -------------------------------------------------------------------------------------------------


def reasons(desired: Desired, start: KubeletStart) -> str:
    """The desired gates that this start sets to another value, each with the reason for the desired state; "" for none."""
    names = (name for name, state in desired.gates.items() if start.gates.get(name) != state)
    return "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as required')}" for name in names)


def missing(gates: Gates, start: KubeletStart) -> dict[str, bool | None]:
    return {name: state for name, state in gates.items() if state is not None and name not in start.gates}


def write(
    facts: Facts,
    desired: Desired,
    before: KubeletStart,
    texts: Mapping[str, str],
    after: KubeletStart,
    refusal: CannotPlan,
) -> tuple[WriteFile, ...]:
    """Write these texts, by path, which make the start `after`. Raises `refusal` where more than gates would change."""
    if not differ_only_in(before, after, desired.gates):
        raise refusal
    why = reasons(desired, before) or "gates that must not be set"
    return tuple(
        change
        for path, text in texts.items()
        if text or files.text(facts, path) is not None
        for change in files.write(facts, path, text, why)
    )


def differ_only_in(before: KubeletStart, after: KubeletStart, gates: Gates) -> bool:
    """True if the gates are as desired afterwards, and everything else that the kubelet is started with is the same."""
    desired = {name: state for name, state in before.gates.items() if name not in gates}
    desired |= {name: state for name, state in gates.items() if state is not None}
    return after.gates == desired and (after is before or _other_settings(before) == _other_settings(after))


def _other_settings(start: KubeletStart) -> object:
    """Everything that systemd and the kubelet read from the files, except gates."""
    variables = {name: _without_flag(value.split()) for name, value in start.variables.items()}
    config = {key: value for key, value in start.config.items() if key != "featureGates"}
    return _without_flag(start.argv), {name: value for name, value in variables.items() if value}, config


def _without_flag(argv: Iterable[str]) -> list[str]:
    bare: list[str] = []
    skip = False
    for word in argv:
        flag = re.match(r"[\"']*--?feature-gates(=|$)", word)
        if not flag and not skip:
            bare.append(word)
        skip = bool(flag and not flag[1])
    return bare
