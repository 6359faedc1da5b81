"""A YAML syntax error in words, with the line and column to look at."""

from __future__ import annotations

import re

import yaml

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
    (r"undefined alias", "an alias (*name) for which no anchor (&name) was set before"),
    (r"a single document", "a second document begins here; an inventory is one"),
    (r"escape", "an unknown \\ escape; in 'single quotes' a \\ is just a \\"),
    (r"duplicate anchor", "this anchor's name is taken already"),
]


def syntax(error: yaml.MarkedYAMLError, lines: list[str]) -> str:
    """line:column: and the cause of a YAML syntax error, in words."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f" {error.problem}"
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
    return f"{mark.line + 1}:{mark.column + 1}: {cause}"
