"""A container runtime's new file takes its name only when the program makes of it what was planned, and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpunode.model import Expected, WriteFile
from tests.agent.conftest import Host

DAEMON = "/etc/docker/daemon.json"
CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
NVIDIA = {"nvidia": {"path": "nvidia-container-runtime", "args": []}}
WISH = Expected("nvidia", "nvidia")

CRI = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "x"\n'
RUNC = (
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
)
OURS = (
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
    'BinaryName = "/usr/bin/nvidia-container-runtime"\n'
)
NAMED = '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.default_runtime]\nruntime_type = "io.containerd.runc.v2"\n'


def containerd(host: Host) -> None:
    """One that dumps its file as it is, as the real one does but for defaults; without a file it fails, as 1.x does."""
    host.program(
        "containerd",
        f'[ "$1" = --config ] && exec cat "$2"; [ "$2" = default ] && printf \'{CRI}{RUNC}\' && exit;'
        f'[ "$1" = --version ] && echo containerd x 1.6.20 y && exit; exec cat "$GPUNODE_ROOT{CONFIG}"',
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CRI + RUNC, CRI + NAMED + RUNC + OURS),
        (CRI + RUNC, CRI + NAMED + RUNC.replace("System", "system") + OURS.replace("Binary", "binary")),
        (CRI, CRI + NAMED + RUNC + OURS),
        (CRI + OLD + RUNC, CRI + NAMED + OLD.replace("io.containerd.runc.v2", "") + RUNC + OURS),
        (None, CRI + NAMED + RUNC + OURS),
    ],
)
def test_a_containerd_with_what_was_planned_and_nothing_else(host: Host, before: str | None, after: str):
    """The runtime, its name as the default, and runc where it is not named."""
    containerd(host)
    if before is not None:
        host.write(CONFIG, before)
    assert host.apply(WriteFile(CONFIG, after, "why", before, check="containerd", expected=WISH))[-1]["ok"]
    assert host.read(CONFIG) == after


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        (
            CRI + RUNC,
            CRI + NAMED + OURS,
            "cri.runtimes.runc.options.systemdcgroup would be unset instead of true",
        ),
        (CRI + RUNC, CRI + RUNC + OURS, "its default runtime would be runc"),
        (CRI + OLD + RUNC, CRI + OLD + NAMED + RUNC + OURS, "its default runtime would be default"),
        (CRI + RUNC, CRI + NAMED + RUNC, "its runtime nvidia would not be NVIDIA's"),
        (
            CRI + RUNC,
            CRI + NAMED + RUNC + OURS.replace("runc.v2", "runtime.v1.linux"),
            'its runtime nvidia would have the type "io.containerd.runtime.v1.linux"',
        ),
        (
            CRI + RUNC,
            CRI.replace('"x"', '"y"') + NAMED + RUNC + OURS,
            'plugins.io.containerd.grpc.v1.cri.sandbox_image would be "y" instead of "x"',
        ),
        (None, CRI + NAMED + OURS, "cri.runtimes.runc.options.systemdcgroup would be unset instead of true"),
    ],
)
def test_a_containerd_with_anything_else_does_not_get_the_file(
    host: Host, before: str | None, after: str, wrong: str
):
    """The difference is named, and the file stays."""
    containerd(host)
    if before is not None:
        host.write(CONFIG, before)
    failed = host.fail(WriteFile(CONFIG, after, "why", before, check="containerd", expected=WISH))
    assert failed["code"] == "check-failed"
    assert failed["error"].startswith(f"containerd would read the new {CONFIG} otherwise than planned")
    assert wrong in failed["detail"]
    assert (host.read(CONFIG) if before is not None else host.path(CONFIG).exists()) == (before or False)


def test_a_default_runtime_of_before_stays_where_only_the_runtime_is_planned(host: Host):
    """Whatever its name."""
    containerd(host)
    kata = CRI + NAMED.replace("nvidia", "kata") + RUNC
    host.write(CONFIG, kata)
    wish = Expected("nvidia")
    failed = host.fail(
        WriteFile(CONFIG, CRI + NAMED + RUNC + OURS, "why", kata, check="containerd", expected=wish)
    )
    assert failed["detail"] == ["its default runtime would be nvidia"]
    assert host.apply(WriteFile(CONFIG, kata + OURS, "why", kata, check="containerd", expected=wish))[-1][
        "ok"
    ]


def test_an_imported_file_is_judged_in_its_place(host: Host):
    """Mounted over the current one, for the program alone: by itself it does not give the whole configuration."""
    host.write(DROP_IN, "before")
    host.program("unshare", 'shift 5; export SEEN="$1"; shift 2; exec "$@"')
    host.program("containerd", f'printf \'{CRI}{RUNC}\'; [ -z "$SEEN" ] || cat "$SEEN"')
    change = WriteFile(DROP_IN, OURS, "why", "before", check="containerd", expected=WISH)
    assert host.fail(change)["detail"] == ["its default runtime would be runc"]
    assert host.read(DROP_IN) == "before"
    good = WriteFile(DROP_IN, NAMED + OURS, "why", "before", check="containerd", expected=WISH)
    assert host.apply(good)[-1]["ok"]


def test_an_imported_file_where_nothing_can_be_laid_over_another_must_be_readable(host: Host):
    """In a container without rights; the look at the restarted runtime is left."""
    host.write(DROP_IN, "before")
    host.program("unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    host.program(
        "containerd",
        '[ "$1" = --config ] && grep -q broken "$2" && echo "containerd: bad" >&2 && exit 1; exit 0',
    )
    broken = WriteFile(DROP_IN, "broken", "why", "before", check="containerd", expected=WISH)
    assert host.fail(broken)["detail"] == ["containerd: bad"]
    good = WriteFile(DROP_IN, NAMED + OURS, "why", "before", check="containerd", expected=WISH)
    assert host.apply(good)[-1]["ok"]


def test_a_containerd_without_a_file_runs_with_its_defaults(host: Host):
    """1.x does not dump them then, and exits with 1."""
    containerd(host)
    seen = host.facts().containerd
    assert (seen.error, seen.dump) == (None, CRI + RUNC)


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        "{}",
        '{"debug": true}',
        '{"debug": true, "debug": false, "runtimes": null}',
        '{"runtimes": {"kata": {"path": "/k"}}, "default-runtime": "kata"}',
        '{"runtimes": {"nvidia": {"path": "/old"}}}',
    ],
)
def test_a_docker_with_what_was_planned_and_nothing_else(host: Host, before: str | None):
    """The runtime, and its name as the default."""
    if before is not None:
        host.write(DAEMON, before)
    pairs: list[tuple[str, Any]] = json.loads(before or "{}", object_pairs_hook=lambda items: items)
    members = [
        f'"{key}": {json.dumps(value)}' for key, value in pairs if not key.endswith(("runtimes", "runtime"))
    ]
    others = (json.loads(before or "{}").get("runtimes") or {}) | NVIDIA
    members += [f'"runtimes": {json.dumps(others)}', '"default-runtime": "nvidia"']
    after = "{" + ", ".join(members) + "}"
    assert host.apply(WriteFile(DAEMON, after, "why", before, check="docker", expected=WISH))[-1]["ok"]
    assert host.read(DAEMON) == after


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ({"debug": True}, {}, "debug would change"),
        ({"log-opts": {"a": "1"}}, {"log-opts": {"a": "2"}}, "log-opts would change"),
        ({"runtimes": {"kata": {"path": "/k"}}}, {}, "runtimes would change"),
        ({}, {"runtimes": {}}, "it would not have the runtime nvidia"),
        ({}, {"default-runtime": "runc"}, "its default runtime would be runc, not nvidia"),
    ],
)
def test_a_docker_with_anything_else_does_not_get_the_file(
    host: Host, before: dict[str, Any], after: dict[str, Any], wrong: str
):
    """Also one that cannot check its file itself."""
    text = json.dumps(before)
    host.write(DAEMON, text)
    new = json.dumps({"default-runtime": "nvidia", "runtimes": NVIDIA, **after})
    failed = host.fail(WriteFile(DAEMON, new, "why", text, check="docker", expected=WISH))
    assert failed["code"] == "check-failed"
    assert wrong in failed["detail"]
    assert host.read(DAEMON) == text


def test_a_byte_order_mark_is_dockers_to_accept(host: Host):
    """23.0 and newer ignore it; they validate the file."""
    mark = "\ufeff{}"
    host.write(DAEMON, mark)
    new = "\ufeff" + json.dumps({"default-runtime": "nvidia", "runtimes": NVIDIA})
    assert host.apply(WriteFile(DAEMON, new, "why", mark, check="docker", expected=WISH))[-1]["ok"]


def test_runtimes_that_move_into_daemon_json_are_expected_there(host: Host):
    """Those that were flags of docker's command; any other runtime is not."""
    host.program("dockerd", "exit 0")
    before, after = (
        "{}",
        '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "n"}, "kata": {"path": "k"}}}',
    )
    host.write(DAEMON, before)
    change = WriteFile(DAEMON, after, "why", before, check="docker", expected=WISH)
    assert host.fail(change)["code"] == "check-failed"
    assert host.apply(replace(change, expected=replace(WISH, moved=("kata",))))[-1]["ok"]
