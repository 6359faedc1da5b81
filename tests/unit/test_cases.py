"""Every host in tests/cases: what is planned for it, why it is refused, and that what is planned makes it right."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine.chain import decide
from gpunode.errors import Refused
from gpunode.host import diff, wire
from gpunode.model import Desired, Facts, Host, Plan, PluginImage, Service, WriteFile
from tests import cases

COMPONENTS = [step.name for step in pipeline.STEPS]


def made(host: Host, seen: Facts, image: PluginImage | None) -> Plan:
    """The plan for a host, as a run makes it."""
    return pipeline.plan(host, seen, decide(host, seen, image))


@dataclass(frozen=True, eq=False)
class Case:
    """A case of a component's folder. Its tests share what is computed of it, which is frozen."""

    component: str
    wish: Mapping[str, Any]

    @cached_property
    def given(self) -> tuple[Host, Facts, PluginImage | None]:
        """The host: bare, or `after` gpunode made it right, and then with the case's own facts over it."""
        host, image = (
            cases.host(self.wish["base"], self.wish.get("host")),
            cases.image(self.wish.get("image")),
        )
        seen = cases.facts(self.wish["base"], self.wish.get("facts"))
        if self.wish.get("after") == "right":
            seen = cases.applied(seen, made(host, seen, image).changes)
            seen = cases.overlaid(seen, self.wish.get("then", {}))
        return host, seen, image

    @cached_property
    def desired(self) -> Desired:
        return decide(*self.given)

    @cached_property
    def plan(self) -> Plan:
        host, seen, _ = self.given
        return pipeline.plan(host, seen, self.desired)


ALL = [
    pytest.param(Case(folder, case), id=f"{folder}-{cases.ids(case)}")
    for folder in ("host", "desired", *COMPONENTS)
    for case in cases.cases(folder)
]
PLANNED = [p for p in ALL if "refused" not in p.values[0].wish]
REFUSED = [p for p in ALL if "refused" in p.values[0].wish]


@pytest.mark.parametrize("case", PLANNED)
def test_the_plan_is_what_the_case_says(case: Case):
    """Headlines in order, words of `why` and notes, and the text of files."""
    wish, wished, plan = case.desired, case.wish, case.plan
    for name, value in wished.get("desired", {}).items():
        decided = getattr(wish.driver, name) if hasattr(wish.driver, name) else getattr(wish, name)
        decided = [str(spec) for spec in decided] if isinstance(decided, tuple) else decided
        assert decided == value, name
    steps = {step.step: step.changes for step in plan.steps}
    expected = wished.get("changes", {})
    if not isinstance(expected, dict):
        expected = {case.component: expected}
    elif case.component == "host":
        assert {name for name, changes in steps.items() if changes} == {n for n, c in expected.items() if c}
    for name, headlines in expected.items():
        assert [diff.headline(change) for change in steps.get(name, ())] == headlines, name
    for name in wished.get("none", ()):
        assert not steps.get(name), name
    said = "\n".join(f"{change.why} {getattr(change, 'note', '')}" for change in plan.changes)
    for words in wished.get("says", ()):
        assert words in said
    if "notes" in wished:
        assert len(wish.notes) == len(wished["notes"]), wish.notes
    for words in wished.get("notes", ()):
        assert any(words in note for note in wish.notes)
    contents = {change.path: change.content for change in plan.changes if isinstance(change, WriteFile)}
    for path, text in wished.get("content", {}).items():
        assert contents[path] == text
    for path, parts in wished.get("contains", {}).items():
        for part in parts:
            assert part in contents[path]


@pytest.mark.parametrize("case", PLANNED)
def test_a_host_is_right_when_its_plan_was_applied(case: Case):
    """The second plan is empty; after a reboot or a change of modules at the latest the third."""
    host, seen, image = case.given
    seen = cases.applied(seen, case.plan.changes)
    for _ in range(case.wish.get("rounds", 1) - 1):
        seen = cases.applied(seen, made(host, seen, image).changes)
    again = made(host, seen, image)
    assert [diff.headline(change) for change in again.changes] == []


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_cause_and_the_way_out(case: Case):
    """Nothing is planned for such a host."""
    host, seen, image = case.given
    with pytest.raises(Refused) as refused:
        made(host, seen, image)
    assert case.wish["refused"] in refused.value.message
    assert refused.value.host == host.name
    assert refused.value.hint
    assert case.wish.get("hint", "") in refused.value.hint


def test_a_restart_guards_every_file_that_was_written_for_it():
    """What is not guarded is not put back when the unit does not come up with it, new files least of all."""
    for param in PLANNED:
        for step in param.values[0].plan.steps:
            written = {change.path for change in step.changes if isinstance(change, WriteFile)}
            for restart in (
                change for change in step.changes if isinstance(change, Service) and change.start
            ):
                assert written <= set(restart.guards), param.id


def test_every_change_says_why():
    """The person who is asked to say yes is told, in a sentence."""
    for base in ("legacy", "modern"):
        for change in Case("host", {"base": base}).plan.changes:
            assert len(change.why) > 10, diff.headline(change)


def test_the_agent_is_sent_no_words_for_people():
    """Neither why a change is made nor what is wrong without it."""
    for base in ("legacy", "modern"):
        changes = Case("host", {"base": base}).plan.changes
        assert any(change.fault for change in changes)
        assert not {"why", "fault", "note"} & {
            key for change in changes for key in wire.encode_change(change)
        }
