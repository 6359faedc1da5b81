"""Explains lines of a log and codes, out of gpunode's tables. Connects to nothing."""

from __future__ import annotations

from gpunode.engine.reporter import Reporter
from gpunode.explain import explain_lines
from gpunode.wording import page, several

UNKNOWN = 7


def explain(reporter: Reporter, text: str) -> int:
    """Report each meaning once; the exit code: 7 if no line is known."""
    matches = list(explain_lines(text))
    reporter.rows(
        "explanation",
        ("code", "what", "fault", "action", "next", "command", "source", "line"),
        [
            (each.code, each.what, each.fault, each.action, each.next, each.command, each.source, line)
            for line, each in matches
        ],
    )
    lines = len([line for line in text.splitlines() if line.strip()])
    summary = f"{several(len(matches), 'error')} explained in {several(lines, 'line')}."
    if not matches:
        summary = f"gpunode does not know {'this line' if lines == 1 else 'these lines'}. Other symptoms: {page('troubleshooting.md')}"
    reporter.total(summary, {"lines": lines, "explained": len(matches)})
    return 0 if matches else UNKNOWN
