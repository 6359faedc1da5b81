"""How the log reads: `gpunode verify` takes a line of it for a cause."""

import logging

import pytest

from gpunode.deviceplugin.logfmt import Logfmt


def line(message: str, **fields: object) -> str:
    """As it is logged, without the time."""
    record = logging.LogRecord("gpunode", logging.WARNING, "", 0, message, (), None)
    vars(record).update(fields)
    return Logfmt().format(record).partition(" ")[2]


def test_an_event_is_one_line_whatever_it_quotes():
    """What gRPC and YAML say goes over several."""
    assert line("the kubelet says:\nno\r\n\tway", resource="nvidia.com/gpu") == (
        "WARNING the kubelet says: no \tway resource=nvidia.com/gpu"
    )


def test_a_path_that_it_quotes_does_not_reach_the_terminal_as_commands():
    assert line("a\x1b[2Jb: no such file\udcff") == "WARNING a\\x1b[2Jb: no such file\\udcff"


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("GPU-a", "GPU-a"),
        (3, "3"),
        ("Tesla P100", '"Tesla P100"'),
        ('a"b', '"a\\"b"'),
        ("a=b", '"a=b"'),
        ("", '""'),
    ],
)
def test_a_field_ends_where_it_is_seen_to_end(value: object, word: str):
    """A product's name has blanks."""
    assert line("found GPU", product=value, index=0) == f"WARNING found GPU product={word} index=0"
