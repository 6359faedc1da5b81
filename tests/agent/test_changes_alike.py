"""What dnf, dnf 5, yum and zypper have in common: a dry run whose findings have a cause, a lock that is waited for. apt's own:
test_changes_packages.py."""

import os

import pytest

from gpunode.model import Packages
from tests.agent import test_changes_dnf as dnf
from tests.agent import test_changes_dnf5 as dnf5
from tests.agent import test_changes_yum as yum
from tests.agent import test_changes_zypper as zypper
from tests.agent.conftest import Host

SYSTEMS = {"dnf": dnf.Rocky, "dnf5": dnf5.Fedora, "yum": yum.Centos, "zypper": zypper.Suse}
FOUND = {"dnf": dnf.FOUND, "dnf5": dnf5.FOUND, "yum": yum.FOUND, "zypper": zypper.FOUND}


@pytest.mark.parametrize(
    ("system", "code", "text", "status", "words"),
    [
        pytest.param(system, *row, id=f"{system}-{row[0]}-{number}")
        for system, rows in FOUND.items()
        for number, row in enumerate(rows)
    ],
)
def test_what_a_dry_run_finds_has_its_cause_and_nothing_is_changed(
    host: Host, system: str, code: str, text: str, status: int, words: str
):
    """What nobody agreed to, what does not fit onto the disk, what the repositories do not have."""
    made = SYSTEMS[system](host)
    made.says("dry", text, status)  # type: ignore[attr-defined]
    failed = host.fail(Packages("why", install=made.wish))  # type: ignore[attr-defined]
    assert (failed["code"], failed["error"][: len(words)]) == (code, words)
    assert made.changing() == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("system", "file", "holder", "who", "code"),
    [
        ("dnf", "/var/cache/dnf/metadata_lock.pid", "/usr/libexec/platform-python\0/usr/bin/dnf-automatic\0",
         "platform-python dnf-automatic", "dnf-locked"),
        ("yum", "/var/run/yum.pid", "/usr/bin/python\0/usr/sbin/yum-cron\0", "python yum-cron", "dnf-locked"),
        ("zypper", "/run/zypp.pid", "/usr/bin/zypper\0patch\0", "zypper", "zypper-locked"),
    ],
)  # fmt: skip
def test_a_lock_is_waited_for_with_its_holders_name(
    host: Host, system: str, file: str, holder: str, who: str, code: str
):
    """Others change packages when they like. Nobody is ended, no lock deleted."""
    made, pid = SYSTEMS[system](host), os.getpid()
    host.write(file, f"{pid}\n")
    host.write(f"/proc/{pid}/cmdline", holder)
    messages = host.apply(Packages("why", install=made.wish))  # type: ignore[attr-defined]
    assert messages[1]["text"] == f"waiting for {system}: {who} (pid {pid}) is using it"
    assert (messages[-2]["code"], messages[-2]["error"]) == (code, f"{system} is in use by {who} (pid {pid})")
    assert not [call for call in host.calls() if call.startswith(system)]
    assert host.path(file).exists()
