"""The rules of redaction, each by its example, and tables of texts that are hidden or kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpunode.agent import shapes
from gpunode.agent.redaction import redacted

CASES = Path(__file__).parents[1] / "cases" / "redaction"
HIDDEN, FORMATS, KEPT = (
    yaml.safe_load((CASES / f"{name}.yaml").read_text("utf-8")) for name in ("hidden", "formats", "kept")
)
RULES = (*shapes.MAKERS, shapes.CRYPT, *shapes.PLACES, *shapes.ARGUMENTS)


@pytest.mark.parametrize("text", [*HIDDEN.values(), *FORMATS], ids=lambda text: repr(text)[:40])
def test_a_secret_is_hidden_and_stays_so(text: str) -> None:
    """In whichever format; redacting again changes nothing."""
    shown = redacted(text)
    assert "hunter2" not in shown
    assert "ter2hunter" not in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize("text", KEPT)
def test_usual_text_is_kept(text: str) -> None:
    """Hashes, identifiers, paths, versions, and what programs report about secrets."""
    assert redacted(text) == text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_finds_its_example(rule: shapes.Rule) -> None:
    """By its own pattern, and where its hints let it be tried."""
    found = re.search(rule.pattern, rule.example, re.IGNORECASE | re.MULTILINE)
    assert found
    assert "hunter2" in (found["value"] if "value" in found.re.groupindex else found[0])
    if rule in shapes.PLACES:
        assert any(hint in rule.example.lower() for hint in rule.hints.split("|"))
    assert "hunter2" not in redacted(rule.example)


def test_a_text_with_very_many_names_ends_hidden() -> None:
    """No reader reads so many, and each takes time."""
    shown = redacted("a token=hunter2 " * 12_000)
    assert "hunter2" not in shown
    assert shown.startswith("a token=<secret, 7 characters> a token=<secret, 7 characters>")
