"""Marked lines in YAML files of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan

MARK = "  # gpunode share"


def without(text: str) -> str:
    """The text without the marked lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip("\r\n").endswith(MARK))


def added(text: str, at: int, column: int, lines: Sequence[str]) -> str:
    """The text with these lines, marked and indented, before its line `at`."""
    before = text.splitlines(keepends=True)
    if before and at >= len(before) and not before[-1].endswith("\n"):
        raise ValueError("the last line does not end")
    new = [f"{' ' * column}{line}{MARK}\n" for line in lines]
    return "".join([*before[:at], *new, *before[at:]])


def composed(path: str, text: str) -> yaml.MappingNode:
    """The YAML mapping that the text holds, with positions. Raises CannotPlan."""
    try:
        node = yaml_text.nodes(text)
        yaml_text.data(text)
    except yaml.YAMLError as error:
        raise CannotPlan(
            f"{path} cannot be read: {error}", hint="Fix it; gpunode changes no file that it cannot read."
        ) from None
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise CannotPlan(f"{path} is no YAML mapping in block style", hint="Write it as kubeadm does.")
    return node


def value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    """The node of a key; None without it."""
    return next((there for name, there in node.value if name.value == key), None)


def block(path: str, node: yaml.Node | None, what: str) -> yaml.SequenceNode | None:
    """A list to which lines can be added; None where there is no such key. Raises CannotPlan."""
    if node is None:
        return None
    if not isinstance(node, yaml.SequenceNode) or node.flow_style or not node.value:
        raise CannotPlan(
            f"{path}:{node.start_mark.line + 1}: {what} is no list in block style: gpunode adds lines, and rewrites nobody's",
            hint=f"Write {what} with one `- ` a line, or leave it out.",
        )
    return node


def check(path: str, before: str, after: str, expected: Any) -> None:
    """Raises CannotPlan unless the text reads as expected, and is as before without the marked lines."""
    if yaml_text.data(after) != expected or without(after) != before:
        raise CannotPlan(
            f"{path} is laid out in a way that lines cannot be added to", hint="Write it as kubeadm does."
        )
