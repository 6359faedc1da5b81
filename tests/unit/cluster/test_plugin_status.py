"""What is read of the plugin's status, from where, and what is answered where there is none."""

import re

import pytest

from gpunode.cluster.api import Api
from gpunode.contract.status import ENFORCED, MARK, Resource, Status, Unavailable, dumps
from gpunode.contract.status import Reason as Why
from gpunode.deviceplugin.cluster import events
from gpunode.errors import Problem
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.capacity import link as capacity
from gpunode.links.capacity import overview
from gpunode.links.plugin import Spec, published
from gpunode.links.plugin.published import COMPONENT, CONTAINER
from gpunode.model import PluginImage
from tests import tables

from .conftest import DAEMONSET, GPU_NODE, NS, PluginController, add_node, publish, status
from .fake import FakeApi, Fault

LOST = status(lost=(Unavailable("GPU-0", "0", "xid-79", "Xid 79"),))


@pytest.fixture
def node(api: Api, fake: FakeApi, told: list[str]) -> None:
    """A node `a` whose plugin runs since 10 o'clock, and of whose four GPUs three are allocatable."""
    add_node(fake, "a", 4, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, Spec(NS, PluginImage("plugin:1")), seconds=10, notify=told.append)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "3"}})
    state = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}
    fake.update(
        "Pod", f"{DAEMONSET}-a", NS, status={"containerStatuses": [{"name": CONTAINER, "state": state}]}
    )


def read(api: Api) -> Status | Problem:
    """The status of the node `a`."""
    (pod,) = api.find("Pod", NS)[0]
    return published.read(api, nodes.fetch(api)[0], pod)


def why(api: Api) -> str:
    """Why the node `a` offers not all of its GPUs."""
    return capacity.why_not(api, nodes.fetch(api)[0], 4, NS).what


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("annotation", [True, False])
def test_the_annotation_is_read_where_the_pod_keeps_it_else_the_log(
    api: Api, fake: FakeApi, annotation: bool
):
    publish(fake, "a", LOST, annotation=annotation)
    assert read(api) == LOST


@pytest.mark.usefixtures("node")
@tables.rows("unreadable-statuses")
def test_a_plugin_without_a_readable_status_is_answered_with_that_fact(
    api: Api, fake: FakeApi, log: str, code: str, fix: str
):
    fake.logs[f"{DAEMONSET}-a", CONTAINER] = log
    state = read(api)
    assert isinstance(state, Problem)
    assert (state.code, state.fix) == (code, fix)


@pytest.mark.usefixtures("node")
def test_a_plugin_of_an_older_version_is_wrong_in_its_status(api: Api, fake: FakeApi):
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "4"}})
    fake.logs[f"{DAEMONSET}-a", CONTAINER] = "T1 INFO registered\n"
    (row,) = overview.status(api, NS)
    assert row.wrong.startswith("the plugin is older than this gpunode")
    assert row.last_line == "T1 INFO registered"


@pytest.mark.usefixtures("node")
def test_a_log_that_cannot_be_read_is_said_so(api: Api, fake: FakeApi):
    fake.fail("GET", "/log", Fault(403, "Forbidden", "pods/log is forbidden"))
    state = read(api)
    assert isinstance(state, Problem)
    assert state.code == "no-log"
    assert "pods/log is forbidden" in state.what


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        ([("09:58", "GPUUnhealthy")], True),
        ([("09:58", "GPUGone")], True),
        ([("09:57", "GPUUnhealthy"), ("09:58", "GPUHealthy")], False),
        ([("09:57", "GPUHealthy"), ("09:58", "GPUUnhealthy")], True),
        ([("10:01", "GPUUnhealthy")], False),  # the status has it
        ([("09:58", "GPUHeld")], False),
    ],
)
def test_a_gpu_that_was_unhealthy_before_the_plugin_was_started_again_is_shown_with_its_age(
    api: Api, fake: FakeApi, reasons: list[tuple[str, str]], shown: bool
):
    """It may be why the GPU is missing now. What the plugin reports now comes first."""
    publish(fake, "a", status())
    for clock, reason in reasons:
        fake.put(
            {
                "kind": "Event",
                "metadata": {"name": f"e{clock[-1]}", "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": "a", "uid": "a"},
                "source": {"component": COMPONENT},
                "reason": reason,
                "message": "some words",
                "lastTimestamp": f"2026-01-01T{clock}:00Z",
            }
        )
    pattern = r"; before its last start, \d+ h ago, the plugin reported: some words$"
    assert bool(re.search(pattern, why(api))) == shown
    publish(fake, "a", LOST)
    assert why(api).endswith("; the plugin reports: GPU 0 (GPU-0) is Unhealthy: Xid 79")


def test_memory_limits_that_are_not_enforced_have_their_reasons_once():
    none = Why("not-enforced", "cgroup v1")
    state = status(memory_limits={"a": none, "b": Why(ENFORCED, ""), "c": none})
    assert published.why_unlimited(state) == "cgroup v1"
    assert published.why_unlimited(Problem("x", "y")) == ""


def test_the_last_line_for_people_is_no_status():
    assert published.log_line(f"T1 INFO one\nT2 INFO {MARK} {dumps(LOST)}\n") == "T1 INFO one"
    assert published.log_line(f"T2 INFO {MARK} {dumps(LOST)}\n") == ""


def test_reader_and_writer_agree_on_names():
    assert COMPONENT == events.COMPONENT


def other_words(text: str) -> str:
    """The same document with every sentence for people replaced."""
    return re.sub(r'"words":"[^"]+"', '"words":"zzz"', text)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    "published",
    [
        LOST,
        status(problem=Why("layout", "profiles differ")),
        status(lost=(Unavailable("GPU-1", "1", "mig-uncut", "MIG is on", listed=False),)),
        status(resources={"nvidia.com/gpu": Resource(4, False)}, not_ready=Why("not-registered", "x")),
        status().with_refusal(Why("config-refused", "x")),
    ],
)
def test_no_judgement_rests_on_words(api: Api, fake: FakeApi, published: Status):
    """Not on those of the status, nor on those of the log."""

    def judged() -> list[object]:
        problem = capacity.why_not(api, nodes.fetch(api)[0], 4, NS)
        (row,) = overview.status(api, NS)
        return [
            problem.code,
            problem.holders,
            bool(row.wrong),
            row.reason.code if row.reason else "",
            row.capacity,
            row.allocatable,
        ]

    publish(fake, "a", published)
    before = judged()
    key = f"{DAEMONSET}-a", CONTAINER
    fake.logs[key] = other_words(fake.logs[key]).replace("allocated", "yyy")
    assert "zzz" in fake.logs[key]
    assert judged() == before
