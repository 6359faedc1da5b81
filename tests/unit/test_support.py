"""docs/support.md is what the tables and cases say, and names tests that exist."""

from __future__ import annotations

import re

from tests import support
from tests.unit.test_articles import named_in


def test_the_document_is_that_of_the_tables() -> None:
    """After a change of gpunode/compat or of the cases: `python -m tests.support`."""
    assert support.PATH.read_text(encoding="utf-8") == support.text()


def test_what_was_run_has_a_row_and_its_test_exists() -> None:
    """Nothing is called proven that no row names."""
    text = support.text()
    rows = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert [name for path, name in rows if name not in named_in(path)] == []
    assert all(test in text for _, test in support.RAN.values())
