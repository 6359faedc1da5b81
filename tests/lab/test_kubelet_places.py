"""What comes of merged kubelet files, judged by a real systemd: gates, and nothing else."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpunode.links.kubelet import places as kubelets
from gpunode.links.kubelet.start import flag_gates
from tests import cases
from tests.cases import places

from . import systemd_reader
from .api import Lab

pytestmark = pytest.mark.lab
CASES = [case for case in cases.cases("kubelet-places") if "lines" in case]


@pytest.fixture(scope="module")
def started(lab: Lab) -> dict[str, tuple[systemd_reader.Started, systemd_reader.Started]]:
    """How systemd starts each case's kubelet before and after a plan; all asked in one go."""
    node = lab.node("modern")
    pairs = [(case["files"], merged(case)) for case in CASES]
    told = systemd_reader.ask(
        lambda script: node.exec(["sh", "-s"], input=script).stdout,
        [texts for pair in pairs for texts in pair],
    )
    return {case["name"]: (told[2 * n], told[2 * n + 1]) for n, case in enumerate(CASES)}


def merged(case: Mapping[str, Any]) -> dict[str, str]:
    """The case's files once its plan was applied."""
    return places.written(case, places.plan(case, places.seen(case)))


@pytest.mark.parametrize("case", CASES, ids=cases.ids)
def test_systemd_starts_the_kubelet_with_other_gates_and_nothing_else(
    started: dict[str, tuple[systemd_reader.Started, systemd_reader.Started]], case: dict[str, Any]
):
    """Words and variables are the same but for the gates, and the gates are those that were planned."""
    before, after = started[case["name"]]
    assert before.words
    assert bare(after.words) == bare(before.words)
    assert variables(after) == variables(before)
    assert flag_gates(shell(after.words)) == planned(case)


@pytest.mark.parametrize("case", CASES, ids=cases.ids)
def test_systemd_reads_units_and_files_as_gpunode_does(
    started: dict[str, tuple[systemd_reader.Started, systemd_reader.Started]], case: dict[str, Any]
):
    """What a plan rests on is what systemd would start, before and after."""
    for told, texts in zip(started[case["name"]], (case["files"], merged(case)), strict=True):
        start = kubelets.read(places.seen(case, texts))
        assert told.words[1:] == start.argv[1:]
        plain = {name: value for name, value in start.variables.items() if name not in systemd_reader.NOISE}
        assert {name: told.variables.get(name) for name in plain} == plain


def planned(case: Mapping[str, Any]) -> dict[str, bool]:
    """The gates that the command line has after the plan."""
    return flag_gates(kubelets.read(places.seen(case, merged(case))).argv[1:])


def shell(words: Sequence[str]) -> list[str]:
    """The words, also those within one that is a shell's script."""
    return [part for word in words for part in (word.split() if " --" in word else [word])]


def bare(words: Sequence[str]) -> list[str]:
    """Without the gates, and the place of the program."""
    text = "\0".join(shell(words)[1:])
    return [word for word in re.sub(r"--feature-gates[=\0][^\0]*", "", text).split("\0") if word]


def variables(started: systemd_reader.Started) -> dict[str, list[str]]:
    """The variables without gates, and without those that held nothing else."""
    values = {
        name: re.sub(r"--feature-gates[= ]\S*", "", value).split()
        for name, value in started.variables.items()
    }
    return {name: words for name, words in values.items() if words}
