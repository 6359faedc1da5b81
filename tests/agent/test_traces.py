"""The agent reads who wrote a file: gpunode's record of runs, and the package database."""

import hashlib

import pytest

from gpunode.model import Packages, PackageSpec, RemoveFile, Trace, WriteFile
from tests.agent.conftest import Host

PATH = "/etc/tool/a.conf"


def traces(host: Host) -> dict[str, Trace]:
    seen = host.facts(files=(PATH, "/etc/other"))
    assert not seen.errors.keys() & {"traces", "unconfirmed"}
    return dict(seen.traces)


def test_the_record_of_runs_tells_what_gpunode_wrote_and_how_often_another_changed_it(host: Host):
    """A file that does not exist has no trace; a run that failed counts for no other's change."""
    assert traces(host) == {}
    host.write("/etc/other", "")
    host.apply(WriteFile(PATH, "a", "why"))
    wrote = hashlib.sha256(b"a").hexdigest()
    assert traces(host) == {PATH: Trace(PATH, run="run1", wrote=wrote), "/etc/other": Trace("/etc/other")}
    host.write(PATH, "b")
    assert traces(host)[PATH] == Trace(PATH, run="run1", wrote=wrote, undone=1)
    host.apply(WriteFile(PATH, "a", "why", before="b"))
    assert traces(host)[PATH] == Trace(PATH, run="run2", wrote=wrote, undone=1)
    host.write(PATH, "b")
    assert traces(host)[PATH].undone == 2
    host.path(PATH).unlink()
    assert traces(host)[PATH] == Trace(PATH, run="run2", wrote=wrote, undone=2)
    host.write(PATH, "b")
    host.write("/etc/other", "now")
    host.fail(WriteFile(PATH, "c", "why", before="b"), WriteFile("/etc/other", "x", "why", before="then"))
    host.write(PATH, "b")
    assert traces(host)[PATH].undone == 2


@pytest.mark.parametrize(("text", "packaged"), [("as packed", True), ("edited", False)])
@pytest.mark.parametrize("system", ["dpkg", "rpm"])
def test_the_package_database_tells_whose_file_it_is_and_whether_it_was_edited(
    host: Host, system: str, text: str, packaged: bool
):
    if system == "dpkg":
        digest = hashlib.md5(b"as packed").hexdigest()
        status = (
            f"Package: first\nConffiles:\n /etc/b {digest}\n\nPackage: tool\nConffiles:\n {PATH} {digest}\n"
        )
        host.write("/var/lib/dpkg/status", status + "Version: 1\n\nPackage: last\n")
    else:
        digest = hashlib.sha256(b"as packed").hexdigest()
        host.write("/etc/os-release", "ID=rocky\nID_LIKE='rhel centos fedora'\n")
        host.program(
            "rpm", f"printf 'file /x is not owned\\ntool\\t/usr/y\\t\\ntool\\t{PATH}\\t{digest}\\n'; exit 1"
        )
    host.write(PATH, text)
    assert traces(host) == {PATH: Trace(PATH, package="tool", packaged=packaged)}


def test_a_record_that_another_apply_removes_meanwhile_is_no_error(host: Host):
    host.apply(WriteFile(PATH, "a", "why"))
    for name in ("journal.jsonl", "unconfirmed-0.json"):
        gone = host.path(f"/var/lib/gpunode/runs/old/{name}")
        gone.parent.mkdir(exist_ok=True)
        gone.symlink_to("nowhere")  # listed, and gone when it is read
    assert traces(host)[PATH].run == "run1"


def test_a_file_that_gpunode_removed_has_no_trace(host: Host):
    host.apply(WriteFile(PATH, "a", "why"))
    host.apply(RemoveFile(PATH, "a", "why"))
    assert traces(host) == {}


def test_the_package_database_is_not_asked_for_what_gpunode_wrote(host: Host):
    host.apply(WriteFile(PATH, "a", "why"))
    host.write("/etc/os-release", "ID=rocky\nID_LIKE='rhel centos fedora'\n")
    host.program("rpm", "")
    assert traces(host)[PATH].run == "run1"
    assert not [call for call in host.calls() if call.startswith("rpm -qf")]


def test_the_record_of_runs_tells_which_packages_gpunode_held(host: Host):
    """Not those that were held before."""
    theirs = "hi \ttheirs\t1\tamd64\n"
    host.apt(theirs, install=f"printf '{theirs}hi \tours\t1\tamd64\n' > \"$GPUNODE_ROOT/state/packages\"")
    host.write("/etc/os-release", "ID=debian\n")
    names = ("ours", "theirs")
    assert host.apply(Packages("why", install=tuple(map(PackageSpec, names)), hold=names))[-1]["ok"]
    assert host.facts(packages=names).holds == {"ours": "run1"}
    rest = "ii \\tother\\t1\\tamd64\\n"
    host.write("/state/apt/install", f"printf '{rest}' > \"$GPUNODE_ROOT/state/packages\"")
    assert host.apply(Packages("why", remove=names))[-1]["ok"]
    assert host.facts(packages=names).holds == {}
