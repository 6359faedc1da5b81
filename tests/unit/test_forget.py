"""The plan that takes a host out of gpunode's hands: what goes, what comes back, and what stays."""

from dataclasses import replace

import pytest

from gpunode.agent.record import STATE
from gpunode.engine import converge, forget, impact
from gpunode.links.runtime import config_toml
from gpunode.links.runtime.docker import daemon_json, without_nvidia
from gpunode.model import (
    Change,
    Entry,
    Facts,
    File,
    ForgetHost,
    Left,
    Packages,
    PluginImage,
    Reboot,
    RemoveFile,
    RemoveImage,
    Service,
    Unit,
    WriteFile,
)
from tests import cases

from .test_undo import DOCKER, DRIVER, RUNTIME, STUCK, USER, changed, facts, restart, sha, there
from .test_undo import file as entry

HOST, DAEMON = cases.host("gpu-1"), "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
# Of packages that stay, and made by the runtime at its restart.
OTHERS = (
    "/etc/nvidia-container-runtime/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)


# With a feature gate without which provision lets the kubelet start.
GATES = {"modern": "/etc/default/kubelet", "rocky": "/etc/sysconfig/kubelet"}


def probed(seen: Facts) -> Facts:
    """With digests, and gpunode's folder."""
    files = {path: replace(file, sha256=sha(file.content)) for path, file in seen.files.items()}
    return replace(seen, files={STATE: File(STATE, exists=True), **files})


def provisioned(bare: Facts) -> tuple[Facts, tuple[Entry, ...]]:
    """The host after its provision, and its journal."""
    seen, journal = bare, list[Entry]()
    for _ in range(converge.ROUNDS):
        outcome = converge.plan_host(HOST, seen, None)
        assert outcome.plan is not None, outcome.why
        for change in outcome.plan.changes:
            if isinstance(change, WriteFile | RemoveFile):
                after = change.content if isinstance(change, WriteFile) else None
                journal.append(entry(change.path, change.before, after))
        seen = cases.applied(seen, outcome.plan.changes)
    return probed(seen), tuple(journal)


def texts(seen: Facts) -> dict[str, str | None]:
    return {path: file.content for path, file in seen.files.items() if file.exists and path not in OTHERS}


@pytest.mark.parametrize("base", ["legacy", "modern", "k3s", "microk8s", "rocky", "suse"])
def test_a_provision_is_taken_back_to_the_last_byte(base: str):
    """And nothing is left to take back then. All packages stay, and none is held."""
    bare = cases.facts(base)
    seen, journal = provisioned(bare)
    outcome = forget.plan_host(HOST, forget.Aim(journal), seen)
    assert outcome.plan is not None, outcome.why
    after = cases.applied(seen, outcome.plan.changes)
    kept = [left.what for left in outcome.left or () if left.code == "kept"]
    assert kept == ([GATES[base]] if base in GATES else [])
    same = {path: text for path, text in texts(bare).items() if path not in kept}
    assert {path: text for path, text in texts(after).items() if path not in kept} == same
    assert [package.name for package in after.packages.values() if package.held] == []
    assert (
        forget.plan_host(HOST, forget.Aim(journal), replace(probed(after), files=after.files)).status
        == "right"
    )


NVIDIA = (
    '{"log": 1, "default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
)
GONE = ForgetHost("nothing of gpunode's stays")
CDI, HEADER = "/etc/systemd/system/gpunode-cdi.service", "# Written by gpunode: x\n"
K3S_TAINT = "/etc/rancher/k3s/config.yaml.d/92-gpunode-taint.yaml"
USERS = "/etc/systemd/system/docker.service.d/zz-after-gpunode.conf"
UNKNOWN = "neither a record nor its header shows that gpunode wrote it"
CHANGED = [Left("kept", "/etc/a", "changed since the run")]
BETWEEN = [Left("kept", "/etc/a", "changed between two writes of gpunode")]


@pytest.mark.parametrize(
    ("journal", "files", "changes", "left"),
    [
        ([], {}, [], []),
        ([], {STATE: ""}, [GONE], []),
        ([entry("/etc/a", "1", "2")], {"/etc/a": "1"}, [], []),
        ([entry("/etc/a", "1", "2")], {"/etc/a": "3"}, [], CHANGED),
        # A write that was killed before its end, twice written, made by gpunode.
        ([entry("/etc/a", "1", "2"), entry("/etc/a", "2", "3")], {"/etc/a": "2"}, [("/etc/a", "1"), GONE], []),
        ([entry("/etc/a", None, "2")], {"/etc/a": "2"}, [("/etc/a", None), GONE], []),
        # Its own files by name and header; the link of a unit before the unit.
        (
            [],
            {CDI: HEADER, forget.LINKS.replace("*", "cdi"): HEADER},
            [(forget.LINKS.replace("*", "cdi"), None), (CDI, None), GONE],
            [],
        ),
        ([], {K3S_TAINT: HEADER}, [(K3S_TAINT, None), GONE], []),
        # What is kept is not removed, and no other file with its name: a user's, one of the user's that begins as gpunode's.
        ([entry(CDI, None, HEADER)], {CDI: f"{HEADER}more", forget.LINKS.replace("*", "cdi"): "y"}, [], [replace(CHANGED[0], what=CDI)]),
        ([], {CDI: "x"}, [], [Left("kept", CDI, UNKNOWN)]),
        ([], {USERS: HEADER}, [], [Left("kept", USERS, UNKNOWN)]),
        # What the user added since stays. What was there before gpunode stays, too.
        ([entry(DAEMON, "{}", "other", unit=DOCKER)], {DAEMON: NVIDIA}, [(DAEMON, '{"log": 1}'), restart(DAEMON), GONE], []),
        ([entry(DAEMON, "{}", "other")], {DAEMON: '{"log": 1}'}, [], [replace(CHANGED[0], what=DAEMON)]),
        ([], {DAEMON: NVIDIA}, [], []),
        # Also what the user changed between two runs, of which one may be a forget that came to no end.
        ([entry("/etc/a", "1", "2"), entry("/etc/a", "u", "3", run="r2")], {"/etc/a": "3"}, [], BETWEEN),
        ([entry(DAEMON, "{}", "2"), entry(DAEMON, "u", NVIDIA, run="r2")], {DAEMON: NVIDIA}, [(DAEMON, '{"log": 1}'), GONE], []),
        ([entry(DAEMON, "{}", "2"), entry(DAEMON, NVIDIA, '{"log": 1}', run="r2")], {DAEMON: '{"log": 1}'}, [], [replace(BETWEEN[0], what=DAEMON)]),
    ],
)  # fmt: skip
def test_files(journal: list[Entry], files: dict[str, str | None], changes: list[Change], left: list[Left]):
    seen = facts(files, docker=cases.facts("legacy").docker)
    outcome = forget.plan_host(HOST, forget.Aim(journal), seen)
    planned = [
        (change.path, getattr(change, "content", None))
        if isinstance(change, WriteFile | RemoveFile)
        else change
        for change in outcome.plan.changes
    ]
    assert planned == changes
    assert list(outcome.left or ()) == left


def test_a_stopped_docker_is_not_started():
    unit = Unit(DOCKER, "loaded", "inactive", "dead", "disabled")
    seen = replace(facts({DAEMON: NVIDIA}), units={DOCKER: unit})
    assert kinds(forget.Aim((entry(DAEMON, "{}", "other", unit=DOCKER),)), seen) == [WriteFile, ForgetHost]


def kinds(aim: forget.Aim, seen: Facts) -> list[type[Change]]:
    outcome = forget.plan_host(HOST, aim, seen)
    assert outcome.plan is not None
    return [type(change) for change in outcome.plan.changes]


def test_containers_that_outlive_nvidias_runtime_are_named():
    outcome = forget.plan_host(HOST, forget.Aim(tuple(RUNTIME)), there(nvidia_container_toolkit="2"))
    assert outcome.left == (Left("irreversible", "containers of NVIDIA's runtime", STUCK),)


def test_the_records_alone_go_where_the_software_is_kept():
    """The node goes on offering its GPUs."""
    seen = facts({STATE: "", "/etc/modules-load.d/gpunode.conf": "nvidia", DAEMON: NVIDIA})
    outcome = forget.plan_host(HOST, forget.Aim(keep_software=True), seen)
    assert outcome.plan.changes == (ForgetHost("driver, toolkit and plugin stay", offers=False),)
    assert outcome.left == ()


def test_an_image_goes_that_gpunode_has_loaded():
    """One that nodes pull does not."""
    seen = facts({}, images={"docker": {"p:1": "sha256:1"}}, docker=cases.facts("legacy").docker)
    assert kinds(forget.Aim(image=PluginImage("p:1", "/p.tar")), seen) == [RemoveImage, ForgetHost]
    assert kinds(forget.Aim(image=PluginImage("p:1", None)), seen) == []


@pytest.mark.parametrize(
    "text",
    [
        "{}\n",
        '{"a": 1}',
        '{\n  "a": 1\n}\n',
        '{\n  "runtimes": {"x": {"path":"y"}},\n "b": 2}\n',
        '{\r\n "log":{}\r\n}\r\n',
        '{\n  "runtimes": {\n    "x": {\n      "path": "y"\n    }\n  }\n}\n',
    ],
)
def test_what_was_merged_into_daemon_json_comes_out_again(text: str):
    """Every other byte stays."""
    assert without_nvidia(daemon_json(text, default=True), text) == text


OWN_RUNTIME = '{"runtimes": {"nvidia": {"path": "%s"}}, "default-runtime": "%s"}'


@pytest.mark.parametrize(
    "original",
    [
        OWN_RUNTIME % ("nvidia-container-runtime", "runc"),
        OWN_RUNTIME % ("/opt/mine/nvidia-container-runtime", "crun"),
        '{"a": 1, "default-runtime": "crun"}',
    ],
)
def test_a_docker_runtime_of_before_gpunode_stays(original: str):
    merged = daemon_json(original, default=True)
    since = merged[:-1] + ', "log": 1}'
    assert without_nvidia(since, original) == original[:-1] + ', "log": 1}'


def test_a_containerd_runtime_of_before_gpunode_stays():
    """With its binary, and the default runtime of before."""
    root = 'plugins."io.containerd.grpc.v1.cri".containerd'
    tables = "".join(
        f"\n[{root}.runtimes.{name}]\n  runtime_type = 'io.containerd.runc.v2'\n[{root}.runtimes.{name}.options]\n  BinaryName = '/opt/{name}'\n"
        for name in ("crun", "nvidia")
    )
    original = f"version = 2\n[{root}]\n  default_runtime_name = 'crun'\n{tables}"
    merged = config_toml.containerd_toml(original, default=True)
    assert "/opt/nvidia" not in merged
    since = "\n# by hand\n"
    result = config_toml.without_nvidia(merged + since, original, CONTAINERD, second=False)
    assert "'/opt/nvidia'" in result
    before = config_toml.read(original, CONTAINERD)["plugins"]
    assert config_toml.read(result, CONTAINERD)["plugins"] == before


@pytest.mark.parametrize("second", [False, True])
def test_a_table_that_was_added_to_containerds_file_comes_out_again(second: bool):
    """What somebody has written since stays, wherever it is; a default runtime that was not there before is runc's."""
    before = str(cases.facts("modern").files[CONTAINERD].content)
    merged = config_toml.containerd_toml(before, default=True, second=second)
    since = "\n# by hand\n[metrics]\n  address = '127.0.0.1:1338'\n"
    assert config_toml.without_nvidia(merged + since, before, CONTAINERD, second=second) == before + since
    small = config_toml.containerd_toml("version = 2\n", default=True)
    assert "nvidia" not in config_toml.without_nvidia(small, "", CONTAINERD, second=False)


@pytest.mark.parametrize("driver", [(), (changed(packages={DRIVER: (None, "2")}), changed("kernel_module"))])
def test_a_unit_is_disabled_while_its_file_exists(driver: tuple[Entry, ...]):
    """With a reboot at the end, too."""
    unit = Unit("gpunode-cdi.service", "loaded", "inactive", "dead", "enabled")
    seen = there(("nvidia",), (USER,), libnvidia_ml1="2") if driver else facts({})
    seen = replace(seen, files={CDI: File(CDI, exists=True, content=HEADER)}, units={unit.name: unit})
    service = Entry("a", "r1", kind="service", unit=unit.name, enabled="disabled", active="inactive")
    planned = [Service, Packages, RemoveFile, Reboot] if driver else [Service, RemoveFile, ForgetHost]
    assert kinds(forget.Aim((*driver, service)), seen) == planned


def test_records_go_after_the_reboot_that_a_driver_needs():
    """They name the packages: a run that is killed in between is planned from them again. The question names the reboot, no more is
    done later than was asked for."""
    journal = (changed(packages={DRIVER: (None, "2")}), changed("kernel_module"))
    seen = replace(there(("nvidia",), (USER,), libnvidia_ml1="2"), files={STATE: File(STATE, exists=True)})
    first = forget.plan_host(HOST, forget.Aim(journal), seen)
    assert [type(change) for change in first.plan.changes] == [Packages, Reboot]
    after = replace(there(), files=seen.files)
    then = forget.plan_host(HOST, forget.Aim(journal), after)
    assert then.plan.changes == (GONE,)
    assert impact.describe_unaccepted(then.plan.changes, impact.acts(first.plan.changes)) == ""
