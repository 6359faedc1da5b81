"""docs/support.md is what the tables and cases say, and names tests that exist."""

import re
from xml.etree import ElementTree

import pytest

from tests import support
from tests.lab import matrix
from tests.unit.test_articles import named_in


def test_the_document_is_that_of_the_tables():
    """After a change of a table or of the cases: `python -m tests.support`."""
    assert support.PATH.read_text(encoding="utf-8") == support.text()


def test_what_was_run_has_a_row_and_its_test_exists():
    """Nothing is called proven that no row names."""
    text = support.text()
    rows = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert [name for path, name in rows if name not in named_in(path)] == []
    assert all(test in text for _, test in support.RAN.values())


def test_a_row_of_the_matrix_has_tests_or_a_reason():
    """Its files are there, and where it names tests, some are called so."""
    parameters = "apt", "dnf"  # ids of test_runfile.py's hosts
    for row in matrix.ROWS:
        assert bool(row.tests) != bool(row.why), row.name
        named = set.union(set(), *(named_in(f"tests/lab/{name}") for name in row.tests))
        assert row.only in ("", *parameters) or any(row.only in name for name in named), row.name


def test_results_are_of_rows():
    """One that is renamed is run again."""
    assert set(matrix.results()) <= {row.name for row in matrix.ROWS if row.tests}


RUN = """<testsuites><testsuite>
<testcase classname="tests.lab.test_runfile" name="test_bare[apt]" time="3.5" />
<testcase classname="tests.lab.test_runfile" name="test_bare[dnf]" time="2"><failure message="no">no</failure></testcase>
<testcase classname="tests.lab.test_runfile" name="test_back[dnf]" time="2"><error message="no">no</error></testcase>
<testcase classname="tests.lab.test_rpm" name="test_bare" time="1"><skipped message="no dnf" /></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("row", "ok", "words"),
    [
        (matrix.Row("apt", ("test_runfile.py",), "apt"), True, "1 passed, 0 failed, in 4 s"),
        (matrix.Row("dnf", ("test_runfile.py",), "dnf"), False, "0 passed, 2 failed, in 4 s"),
        (matrix.Row("both", ("test_runfile.py",)), False, "1 passed, 2 failed, in 8 s"),
        (matrix.Row("skipped", ("test_rpm.py",)), False, "0 passed, 0 failed, in 1 s"),
        (matrix.Row("never begun", ("test_reboot.py",)), False, "0 passed, 0 failed, in 0 s"),
    ],
    ids=lambda value: value.name if isinstance(value, matrix.Row) else "",
)
def test_a_row_has_passed_when_its_own_tests_have(row: matrix.Row, ok: bool, words: str):
    result = matrix.result(row, ElementTree.fromstring(RUN).iter("testcase"), "0123456789")
    assert (result.ok, result.words) == (ok, words)
