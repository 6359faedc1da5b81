"""SELinux' part of changes, by scripted programs: no kernel here enforces it."""

import pytest

from gpunode.engine import undo
from gpunode.host import wire
from gpunode.model import SelinuxBoolean, WriteFile
from tests.agent.conftest import Host


def test_a_new_file_gets_the_label_of_its_path(host: Host):
    """One that is replaced keeps its own."""
    host.write("/sys/fs/selinux/enforce", "1")
    host.program("restorecon", "")
    host.write("/etc/old", "a")
    assert host.apply(WriteFile("/etc/new", "x", "why"), WriteFile("/etc/old", "b", "why", before="a"))[-1][
        "ok"
    ]
    assert [call for call in host.calls() if call.startswith("restorecon")] == [
        f"restorecon {host.path('/etc/new')}"
    ]


def test_without_selinux_nothing_is_labelled(host: Host):
    """Though the program may be there."""
    host.program("restorecon", "exit 9")
    assert host.apply(WriteFile("/etc/new", "x", "why"))[-1]["ok"]
    assert not [call for call in host.calls() if call.startswith("restorecon")]


def test_a_boolean_is_set_for_good(host: Host):
    """Now and after every boot."""
    host.program("setsebool", "")
    assert host.apply(SelinuxBoolean("container_use_devices", "why"))[-1]["ok"]
    assert "setsebool -P container_use_devices on" in host.calls()


def test_a_boolean_that_cannot_be_set_is_named(host: Host):
    """With the program's words; where there is none, too."""
    failed = host.fail(SelinuxBoolean("b", "why"))
    assert (failed["code"], failed["error"]) == ("selinux-failed", "setsebool -P b on: setsebool: not found")
    host.program("setsebool", "echo 'Could not change policy booleans' >&2; exit 255")
    assert host.fail(SelinuxBoolean("b", "why"))["error"].endswith("Could not change policy booleans")


@pytest.mark.parametrize("before", ["off", "on"])
def test_an_undo_switches_a_boolean_back_to_what_it_was(host: Host, before: str):
    """By the journal, which asked getsebool before the change; also where the run has switched it twice."""
    host.write("/state/b", before)
    host.program("getsebool", 'read -r now <"$GPUNODE_ROOT/state/b"; echo "b --> $now"')
    host.program("setsebool", 'echo "$3" >"$GPUNODE_ROOT/state/b"')
    for on in (True, False, True):
        assert host.ask(host.job(SelinuxBoolean("b", "why", on=on), record="r1", why=["why"]))[-1]["ok"]
    (message,) = host.ask(wire.journal_job("r1"))
    planned = undo.plan(wire.read(message)["entries"], "r1", host.facts())
    assert planned == ((SelinuxBoolean("b", "as before run r1", on=before == "on"),), ())
    assert host.apply(*planned[0])[-1]["ok"]
    assert host.read("/state/b").strip() == before
