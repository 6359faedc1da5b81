"""Ctrl-C while hosts are worked on."""

import signal
from typing import Any, cast

import pytest

from gpunode.engine.batch import Interrupt


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
