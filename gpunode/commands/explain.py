"""Explains lines of a log and codes, out of gpunode's tables. Connects to nothing."""

from gpunode.engine.reporter import ForPrograms, Reporter
from gpunode.explain import NAMED, SXID, XID, Explanation, explain_lines
from gpunode.wording import page, several

UNKNOWN = 7
XIDS = "https://docs.nvidia.com/deploy/xid-errors"
COLUMNS = ("code", "what", "fault", "action", "next", "command", "source")
SECOND = {"or if": "condition", "or fault": "fault", "or action": "action", "or next": "next"}
ALL = (*COLUMNS, *SECOND, "line")


def _without_entry(text: str) -> str:
    """For a number that may be an Xid's, and is in no table; "" for other texts."""
    match = XID.search(text) or SXID.search(text) or NAMED.fullmatch(text.strip())
    number = match["code"] if match else text.strip() if text.strip().isdecimal() else ""
    name = f"{'SXid' if 'sxid' in text.lower() else 'Xid'} {number}"
    return (
        f"{name} is not in gpunode's copy of NVIDIA's catalogue. Check the number. NVIDIA's current catalogue: {XIDS}"
        if number
        else ""
    )


def _second(name: str, meaning: Explanation) -> str:
    """Of a second cause; its action is in its `next`, in words, and a fault of the same kind is not named again."""
    value: str = getattr(meaning.alternative, name, "")
    return ForPrograms(value) if name == "action" or (name == "fault" and value == meaning.fault) else value


def explain(reporter: Reporter, text: str) -> int:
    """Report each meaning once; the exit code: 7 if the cause of no line is known."""
    matches = explain_lines(text)
    lines = len([line for line in text.splitlines() if line.strip()])
    alone = lines == len(matches) == 1  # then its meaning is all there is to say
    reporter.rows(
        "explanation",
        ALL,
        [
            (
                *(getattr(meaning, name) for name in COLUMNS),
                *(_second(name, meaning) for name in SECOND.values()),
                ForPrograms(line) if alone else line,
            )
            for line, meaning in matches
        ],
    )
    explained = len([meaning for _, meaning in matches if meaning.fault != "unknown"])
    summary = f"{several(explained, 'error')} explained in {several(lines, 'line')}."
    if explained < len(matches):
        summary += f" {several(len(matches) - explained, 'error')} with an unknown cause."
    if not matches:
        summary = (
            _without_entry(text)
            or f"gpunode does not know {'this line' if lines == 1 else 'these lines'}. Other symptoms: {page('troubleshooting')}"
        )
    reporter.total("" if alone else summary, {"lines": lines, "explained": explained})
    return 0 if explained else UNKNOWN
