"""Before a kubelet's file is moved into place, the agent checks how systemd reads it."""

import pytest

from gpunode.links.kubelet import registration
from gpunode.model import WriteFile
from tests.agent.conftest import Host

UNIT = "/etc/systemd/system/kubelet.service.d/10-own.conf"
FILE = "/etc/kubernetes/cfg/kubelet.conf"
SHOW = """[ "$1" = show ] || exit 0
for last; do :; done
grep Environment= "$GPUNODE_ROOT/run/systemd/system/$last"
"""
RUN = """for word; do case "$word" in EnvironmentFile=*) file="${word#EnvironmentFile=-}"; esac; done
echo INVOCATION_ID=$$
[ ! -e "$file" ] || cat "$file"
"""


@pytest.fixture
def asked(host: Host) -> Host:
    """A host with a systemd that prints a file's content, word by word."""
    host.path("/run/systemd/system").mkdir(parents=True)
    host.program("systemctl", SHOW)
    host.program("systemd-run", RUN)
    return host


@pytest.mark.parametrize("path", [UNIT, FILE])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A=--x --feature-gates=A=true --y", "A=--x --feature-gates=A=false,B=true --y"),
        ("A=--x", "A=--x --feature-gates=A=true"),
        ('A="--feature-gates=\\"A=true\\""', 'A=""'),
        ("A=--feature-gates=A=true --x", "A=--x"),
        ("A=--x", f"A=--x {registration.FLAG}"),
        (f"A=--x {registration.FLAG}", "A=--x"),
    ],
)
def test_a_file_that_sets_what_gpunode_writes_is_written(asked: Host, path: str, before: str, after: str):
    """Feature gates and the taint that a kubelet registers with; and nothing is left of the question."""
    old, new = f"[Service]\nEnvironment={before}\n", f"[Service]\nEnvironment={after}\n"
    asked.write(path, old)
    assert asked.apply(WriteFile(path, new, "why", before=old, check="systemd"))[-1]["ok"]
    assert asked.read(path) == new
    assert list(asked.path("/run/systemd/system").iterdir()) == []
    assert any(call.startswith(("systemctl show", "systemd-run")) for call in asked.calls())


@pytest.mark.parametrize("path", [UNIT, FILE])
def test_a_file_that_would_change_more_is_left_alone(asked: Host, path: str):
    """The word is named, what it is set to is not."""
    old, new = "Environment=A=--x --token=abc\n", "Environment=A=--x --feature-gates=A=true\n"
    asked.write(path, old)
    failed = asked.fail(WriteFile(path, new, "why", before=old, check="systemd"))
    assert failed["code"] == "check-failed"
    assert failed["error"].endswith("otherwise than planned: it would lose --token")
    assert "abc" not in str(failed)
    assert asked.read(path) == old


def test_a_taint_of_the_users_stays(asked: Host):
    """Only gpunode's own may come and go."""
    old, new = "A=--x --register-with-taints=dedicated=ml:NoSchedule\n", "A=--x\n"
    asked.write(FILE, old)
    failed = asked.fail(WriteFile(FILE, new, "why", before=old, check="systemd"))
    assert failed["error"].endswith("it would lose --register-with-taints")


@pytest.mark.parametrize("path", [UNIT, FILE])
def test_a_new_file_may_hold_gates_only(asked: Host, path: str):
    """There was nothing before."""
    assert asked.apply(WriteFile(path, "Environment=--feature-gates=A=true\n", "why", check="systemd"))[-1][
        "ok"
    ]
    failed = asked.fail(WriteFile(f"{path}.service", "Environment=--x\n", "why", check="systemd"))
    assert failed["error"].endswith("it would get Environment")


@pytest.mark.parametrize("path", [UNIT, FILE])
def test_a_systemd_that_cannot_be_asked_stops_nothing(asked: Host, path: str):
    """Old ones know no --pipe."""
    for program in ("systemctl", "systemd-run"):
        asked.program(program, "exit 1")
    assert asked.apply(WriteFile(path, "A=--x\n", "why", check="systemd"))[-1]["ok"]


def test_a_systemd_that_cannot_collect_is_asked_without(asked: Host):
    """As before 236: with its answer, a file that would change more is left alone."""
    refuses = "unrecognized option '--collect'"
    asked.program(
        "systemd-run",
        f'case "$*" in *--collect*) echo "systemd-run: {refuses}" >&2; exit 1;; esac\n{RUN}',
    )
    old, new = "A=--x --token=abc\n", "A=--x --feature-gates=A=true\n"
    asked.write(FILE, old)
    failed = asked.fail(WriteFile(FILE, new, "why", before=old, check="systemd"))
    assert failed["error"].endswith("it would lose --token")
