"""Ctrl-C while hosts are worked on."""

import io
import signal
from typing import Any, cast

import pytest

from gpunode.engine.batch import Interrupt
from gpunode.model import Event
from gpunode.report.lines import Lines


class Reporter:
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: Any) -> None:
        self.notes.append(str(text))


def test_the_first_one_ends_nothing():
    reporter, before = Reporter(), signal.getsignal(signal.SIGINT)
    with Interrupt(cast("Any", reporter), lambda: ["gpu-1"]) as stop:
        assert not stop.set
        signal.raise_signal(signal.SIGINT)
        assert stop.set
    assert signal.getsignal(signal.SIGINT) is before
    assert len(reporter.notes) == 1
    assert reporter.notes[0].endswith("Press Ctrl-C again to exit now and leave them unfinished.")


@pytest.mark.parametrize("begun", [["gpu-1", "gpu-2"], []])
def test_the_second_one_leaves_and_names_the_hosts_that_have_begun(begun: list[str]):
    reporter = Reporter()

    def twice() -> None:
        with Interrupt(cast("Any", reporter), lambda: begun, "The same command continues."):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    named = "Unfinished: gpu-1, gpu-2; cordoned nodes stay cordoned. The same command continues."
    assert reporter.notes[1:] == ([named] if begun else [])


class Interrupted(io.RawIOBase):
    """A file whose first write is interrupted by Ctrl-C."""

    def __init__(self) -> None:
        self.text = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.text:
            signal.raise_signal(signal.SIGINT)
        self.text += bytes(data)
        return len(data)


def test_one_while_a_line_is_written_costs_no_line():
    raw = Interrupted()
    reporter = Lines(quiet=False, out=io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))
    with Interrupt(reporter, list) as stop:
        reporter.event(Event("stage", None, "first"))
        reporter.event(Event("stage", None, "second"))
    assert stop.set
    assert sorted(line.split(b'"message": "')[1][:6] for line in raw.text.splitlines()) == [
        b"Interr",
        b'first"',
        b"second",
    ]
