"""Why a pod is not admitted or scheduled: the API server's and the scheduler's sentences, each with its fix (`obstacles.yaml`). Pure."""

import re
from dataclasses import dataclass
from typing import Literal

from gpunode.errors import Problem
from gpunode.planning.tables import table
from gpunode.wording import advise

QUOTA = "quota-exceeded"  # code


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence's pattern, and the fix, which may name the pattern's groups."""

    code: str
    match: str
    fix: str


def rules(part: Literal["admission", "scheduling"]) -> tuple[Rule, ...]:
    rows = table(__package__, "obstacles.yaml")
    return tuple(
        Rule(row["code"], row["match"], row["fix"].replace("{elsewhere}", rows["elsewhere"]))
        for row in rows[part]
    )


def match_admission(text: str) -> Problem | None:
    """Why a pod was not admitted, in the cluster's own words; None where the text has none of the known sentences."""
    return _first(rules("admission"), text)


def match_scheduling(text: str) -> Problem | None:
    """Why a pod is on no node, by the scheduler's message; the first cause of those that it has."""
    return _first(rules("scheduling"), text)


def _first(known: tuple[Rule, ...], text: str) -> Problem | None:
    for rule in known:
        if match := re.search(rule.match, text):
            names = {name: value or "" for name, value in match.groupdict().items()}
            return Problem(rule.code, text, fix=advise(rule.fix.format(**names)))
    return None
