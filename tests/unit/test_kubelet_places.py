"""Gates merged into the kubelets of public places; tests/lab/test_kubelet_places.py has a real systemd read the same."""

from typing import Any

import pytest

from gpunode.errors import GpunodeError
from gpunode.model import Service
from tests import cases
from tests.cases import places

ALL = [pytest.param(case, id=cases.ids(case)) for case in cases.cases("kubelet-places")]
MERGED = [param for param in ALL if "lines" in param.values[0]]
REFUSED = [param for param in ALL if "refused" in param.values[0]]


def test_every_case_says_what_comes_of_it():
    """And after which public files it was written."""
    assert len(MERGED) + len(REFUSED) == len(ALL)
    assert all(param.values[0]["after"] for param in ALL)


@pytest.mark.parametrize("case", MERGED)
def test_only_the_lines_with_gates_change_and_a_second_plan_is_empty(case: dict[str, Any]):
    """The kubelet is restarted for them, with every file guarded. The second plan: once it runs with what was written."""
    *files, restart = changes = places.plan(case, places.seen(case))
    assert places.lines(changes) == case["lines"]
    assert isinstance(restart, Service)
    assert set(restart.guards) == {change.path for change in files} == set(case["lines"])
    texts = places.written(case, changes)
    assert places.plan(case, places.seen(case, texts)) == ()


@pytest.mark.parametrize("case", REFUSED)
def test_a_place_that_is_not_safe_is_refused(case: dict[str, Any]):
    """With the line, or with what to add."""
    with pytest.raises(GpunodeError) as refused:
        places.plan(case, places.seen(case))
    assert case["refused"] in refused.value.message
    assert case["hint"] in refused.value.hint
