"""docs/reference out of the code: `python -m tests.reference` writes it, tests/unit/test_reference.py compares it."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from gpunode.agent.failures import HINTS
from gpunode.cli import EPILOG, app
from gpunode.cluster import obstacles
from gpunode.contract.xids import verdict
from gpunode.explain import explain
from gpunode.inventory.validation import schema
from gpunode.packages import SYSTEMS
from gpunode.planning.tables import table as explanations
from tests import jsonlines

FOLDER = Path(__file__).parents[1] / "docs/reference"
WRITTEN = "<!-- Written by `python -m tests.reference`; edit the code instead. -->"


def cell(text: object) -> str:
    """Text in a table: no line and no column ends in it."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(*rows: tuple[object, ...]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(map(cell, row))} |"
        if not number:
            yield "|" + " --- |" * len(row)
    yield ""


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every command with its name."""
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield " ".join(words), command
    for name, child in children.items():
        yield from walk(child, (*words, name))


def option(param: Any) -> tuple[str, str, str]:
    """Of an option or argument: how it is written, its default, what it does."""
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.param_type_name == "argument":
        names = f"`{param.metavar or param.name.upper()}`"
    elif not param.is_flag and param.metavar:
        names = f"{names} `{param.metavar}`"
    shown = param.default not in (None, False, (), "") and not callable(param.default)
    return names, f"`{param.default}`" if shown else "", getattr(param, "help", "") or ""


def sections(command: Any) -> tuple[str, str]:
    """A command's help: what it does, and its example or ""."""
    about, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    return about.strip(), example


def commands() -> Iterator[str]:
    yield from ("# Commands", "", WRITTEN, "", "What `gpunode COMMAND --help` prints, on one page.", "")
    for name, command in walk(typer.main.get_command(app), ("gpunode",)):
        about, example = sections(command)
        yield from (f"## {name}", "", *about.splitlines(), "")
        if example:
            yield from ("```", " ".join(example.split()), "```", "")
        shown = [option(param) for param in command.params if not param.hidden and param.name != "help"]
        if shown:
            yield from table(("option", "default", "does"), *shown)


def keys(part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, values, default and description of every key below a part of the schema."""
    for name, outer in part.get("properties", {}).items():
        inner = {
            **(schema()["$defs"][outer["$ref"].rsplit("/", 1)[1]] if "$ref" in outer else outer),
            **outer,
        }
        yield f"`{prefix}{name}`", values(inner), default(inner), inner.get("description", "")
        yield from keys(inner, f"{prefix}{name}.")


KINDS = {
    "array": "list",
    "boolean": "`true`, `false`",
    "integer": "number",
    "number": "number",
    "object": "mapping",
    "string": "text",
}


def values(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    kinds = part.get("type", "")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return ", ".join(KINDS[kind] for kind in kinds if kind)


def default(part: dict[str, Any]) -> str:
    return f"`{str(part['default']).lower()}`" if "default" in part else ""


def inventory() -> Iterator[str]:
    whole = schema()
    variables = whole["properties"]["defaults"]
    group = whole["properties"]["groups"]["additionalProperties"]["properties"]
    top = {**whole["properties"], "defaults": {**variables, "properties": {}}}
    host = {name: value for name, value in whole["$defs"]["host"]["properties"].items() if name not in group}
    yield from ("# Keys of the inventory", "", WRITTEN, "")
    yield "From the schema that checks the file and completes it in editors. [The inventory](../inventory.md) has examples and reasons."
    yield ""
    head = ("key", "values", "default", "is")
    for title, part in (
        ("The file", {"properties": top}),
        ("A group", {"properties": {"hosts": group["hosts"]}}),
        ("A host", {"properties": host}),
        ("Variables", variables),
    ):
        yield from (f"## {title}", "")
        if part is variables:
            yield from ("In `defaults`, in a group and in a host; the narrower one wins.", "")
        yield from table(head, *keys(part))


def codes() -> Iterator[str]:
    yield from ("# Codes", "", WRITTEN, "", "## Exit codes", "")
    ends = [part.split(" ", 1) for part in EPILOG.removeprefix("Exit codes: ").split(" · ")]
    yield from table(("code", "means"), *((f"`{code}`", words) for code, words in ends))
    yield from ("## Why a change failed", "", "`code` of a host's [outcome](../json.md), and what to do.", "")
    every = {**HINTS, **{code: hint for system in SYSTEMS.values() for code, hint in system.hints.items()}}
    yield from table(("code", "do"), *((f"`{code}`", hint) for code, hint in sorted(every.items())))
    yield from (
        "## Pods that are not admitted or scheduled",
        "",
        "`code` of a plan's `error` line (gpunode tries the pods before any change) and of a node's reason, and what to do. Words in braces",
        "come from the API server's message. `not-admitted`: any other message.",
        "",
    )
    yield from table(
        ("code", "do"),
        *(
            (f"`{rule.code}`", rule.fix)
            for rule in (*obstacles.rules("admission"), *obstacles.rules("scheduling"))
        ),
    )
    yield from (
        "## Xids",
        "",
        "What the driver's Xid events mean and require, after NVIDIA's catalogue. `gpunode explain xid N` shows more.",
        "",
    )
    known = [(number, explain(f"xid {number}")) for number in range(1, 173)]
    yield from table(
        ("Xid", "is", "fault", "action", "for the device plugin"),
        *(
            (
                number,
                re.sub(r"[A-Z0-9]+(?:_[A-Z0-9]+)+", r"`\g<0>`", change.what.partition(": ")[2]),
                change.fault,
                f"`{change.action}`",
                verdict(number).value,
            )
            for number, change in known
            if change
        ),
    )
    yield from actions()
    yield from (
        "## Codes of messages",
        "",
        "Of links, reasons, refusals and deviations in JSON lines; a code has one meaning.",
        "",
    )
    for title, known in explanations("gpunode.explain", "codes.yaml").items():
        yield from (f"### {title[0].upper()}{title[1:]}", "")
        yield from table(("code", "is"), *((f"`{code}`", what) for code, what in known.items()))
    yield from (
        "## Error lines",
        "",
        "Lines of other programs that [`gpunode explain`](commands.md#gpunode-explain) knows, and CUDA's numbers.",
        "",
    )
    rows = explanations("gpunode.explain", "lines.yaml")
    yield from table(
        ("code", "is", "fault", "action"),
        *((f"`{row['code']}`", row["what"], row["fault"], f"`{row['action']}`") for row in rows),
    )


def actions() -> Iterator[str]:
    yield from (
        "## Actions",
        "",
        "`action` of what [`gpunode explain`](commands.md#gpunode-explain) prints.",
        "",
    )
    advice = {
        name: text
        for name, text in explanations("gpunode.explain", "actions.yaml").items()
        if name != "later"
    }
    yield from table(
        ("action", "do", "command"),
        *(
            (
                f"`{name}`",
                " ".join(filter(None, (value["next"], value.get("first")))),
                f"`{value.get('around', '{}').format(value['command'])}`" if value.get("command") else "",
            )
            for name, value in advice.items()
        ),
    )


def lines() -> Iterator[str]:
    yield from ("# Keys of JSON lines", "", WRITTEN, "")
    yield "What `--json` writes, by `type`. [JSON lines](../json.md) has the rules. *Not always*: only where there is something to report."
    yield ""
    for name, kind in jsonlines.KINDS.items():
        yield from (f"## {name}", "", kind["is"], "")
        yield from table(("key", "type", "is"), *jsonlines.keys(kind))


PAGES = {"commands.md": commands, "inventory.md": inventory, "codes.md": codes, "json.md": lines}


def text(name: str) -> str:
    return "\n".join(PAGES[name]()).rstrip() + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / page).write_text(text(page), encoding="utf-8")
