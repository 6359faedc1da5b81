"""Environment files are read as systemd reads them; tests/lab/test_environment_files.py asks a real one the same."""

from __future__ import annotations

import pytest

from gpunode.links.kubelet.systemd import read_environment

# A file, and what it sets.
FILES = {
    "plain": ("# A=0\n; A=0\nA=1\n  B = x y  \n\nno assignment\nA=2\n9=x\nD-D=x\n", {"A": "2", "B": "x y"}),
    "quotes": ('B="x y"\nC=\'z\'\nE=""\nF=it\'s "so"\n', {"B": "x y", "C": "z", "E": "", "F": 'it\'s "so"'}),
    "continued": (
        "A=a \\\n  b\nB=a\\\nb\nC=\\\n--v=2\nD=a \\\n\nE=1\n",
        {"A": "a   b", "B": "ab", "C": "--v=2", "D": "a ", "E": "1"},
    ),
    "lines": ("A=\"--a=1\n  --b=2\n\"\nB='x\n y'\n", {"A": "--a=1\n  --b=2\n", "B": "x\n y"}),
    "lines continued": ("A=\"--a=1 \\\n  --b=2\"\nB='x \\\ny'\n", {"A": "--a=1   --b=2", "B": "x \\\ny"}),
    "backslashes": (
        'A=a\\ b\\"\nB="a\\"b\\\\c\\$d\\`e\\nf"\nC=\'a\\b\'\n',
        {"A": 'a b"', "B": 'a"b\\c$d`e\\nf', "C": "a\\b"},
    ),
    "one after the other": (
        'A="a" "b"\'c\' d e\nB="x"y" z\nC="" \\\n\n',
        {"A": "abcd e", "B": 'xy" z', "C": ""},
    ),
    "other line ends": ("A=1\r\nB='2'\r\n", {"A": "1", "B": "2"}),
    "no line end": ("A=1\nB=2 \\", {"A": "1", "B": "2 "}),
    "an open quote": ('A="x\nB=2\n', {"A": "x\nB=2\n"}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_sets_what_systemd_takes_it_to_set(name: str) -> None:
    """Quotes that are glued together, lines that go on, escapes: none is the shell's way."""
    text, sets = FILES[name]
    assert {one.name: one.value for one in read_environment(text)} == sets


@pytest.mark.parametrize("name", [name for name in FILES if name != "an open quote"])
def test_what_is_put_into_a_value_is_in_it_and_changes_nothing_else(name: str) -> None:
    """At the place that is said for it, whatever quotes and continued lines there are."""
    text, _ = FILES[name]
    before = read_environment(text)
    for number, one in enumerate(before):
        after = read_environment(f"{text[: one.end]} --x{text[one.end :]}")
        assert [other.value for other in after if other.name != one.name] == [
            other.value for other in before if other.name != one.name
        ]
        assert after[number].value.split() == [*one.value.split(), "--x"]


def test_a_quote_that_is_never_closed_is_reported() -> None:
    """It takes in all that follows."""
    (one,) = read_environment(FILES["an open quote"][0])
    assert not one.closed
    assert all(
        one.closed for text, _ in FILES.values() for one in read_environment(text) if one.value != "x\nB=2\n"
    )
