"""The agent changes packages with apt. The words of apt and dpkg are those of apt 2.2 and 2.6, recorded."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpunode.agent import package_manager as attendance
from gpunode.agent import system
from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.model import Packages, PackageSpec
from gpunode.packages.apt import on_host as apt
from tests import tables
from tests.agent.conftest import Host, collect, wait_until

LISTS = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
URI = "http://apt.example/cuda"
OTHER = "http://old.example/ppa"


def said(text: str, status: int = 0) -> str:
    """A step of apt-get that prints a text."""
    return f"cat <<'END'\n{text}END\nexit {status}\n"


def test_packages_are_installed_held_and_reported_with_their_versions(host: Host):
    """apt runs without questions, keeps the user's files, and needrestart restarts nothing."""
    host.apt(
        packages="",
        install="env > $GPUNODE_ROOT/state/env\n"
        "printf 'ii \\tnvidia-driver-580\\t580.178.04-1\\tamd64\\n' > $GPUNODE_ROOT/state/packages\n",
    )
    (host.bin / "env").symlink_to("/usr/bin/env")
    messages = host.apply(
        Packages(
            "why",
            install=(PackageSpec("nvidia-driver-580", "580.*", downgrade=True),),
            hold=("nvidia-driver-580",),
            refresh=True,
        )
    )
    assert messages[-1] == {"type": "end", "ok": True}
    assert messages[-2]["detail"] == {"packages": {"nvidia-driver-580": "580.178.04-1"}}
    apt = [call for call in host.calls() if call.startswith("apt")]
    assert [call.split()[-1] for call in apt] == [
        "update",
        "nvidia-driver-580=580.*",
        "nvidia-driver-580=580.*",
        "nvidia-driver-580",
    ]
    assert all("--force-confold" in call for call in apt[:3])
    environment = host.read("/state/env")
    for setting in (
        "DEBIAN_FRONTEND=noninteractive",
        "NEEDRESTART_MODE=l",
        "NEEDRESTART_SUSPEND=1",
        "LC_ALL=C",
    ):
        assert setting in environment


def test_progress_comes_from_apts_status(host: Host):
    """With a percentage, and not one line for each of apt's thousands."""
    lines = "".join(f'echo "pmstatus:pkg:{n / 10}:Unpacking pkg {n}" >&$STATUS\n' for n in range(500))
    host.apt(install=lines)
    progress = [
        message
        for message in host.apply(Packages("why", install=(PackageSpec("pkg"),)))
        if message["type"] == "progress"
    ]
    assert progress[0]["text"] == "Unpacking pkg 0"
    assert progress[0]["percent"] == 0.0
    assert len(progress) < 5


def test_only_what_is_installed_is_removed_in_the_same_transaction(host: Host):
    """apt stumbles over names that it does not know, and a replacement must go in as the old one goes out."""
    host.apt(packages="iF \tnvidia-docker2\t2.13.0-1\tall\nrc \tnvidia-docker\t1.0.1-1\tamd64\n")
    host.apply(
        Packages(
            "why",
            install=(PackageSpec("nvidia-container-toolkit", "1.20.1-1", downgrade=True),),
            remove=("nvidia-docker", "nvidia-docker2"),
        )
    )
    host.apply(Packages("why", remove=("nvidia-docker2",)))
    both, alone = [call for call in host.calls() if " install " in call][1::2]  # after a dry run
    assert both.endswith(" nvidia-container-toolkit=1.20.1-1 nvidia-docker2-")
    assert alone.endswith(" --allow-change-held-packages nvidia-docker2-")


@pytest.mark.parametrize(
    ("heading", "code"), [("REMOVED", "would-remove"), ("DOWNGRADED", "would-downgrade")]
)
def test_what_nobody_agreed_to_is_refused_before_it_is_done(host: Host, heading: str, code: str):
    """apt would remove or downgrade packages that the plan did not show."""
    text = (
        f"{LISTS}The following packages will be {heading}:\n  kubelet wanted\n0 upgraded, 1 newly installed\n"
    )
    host.apt(packages="ii \twanted\t1\tall\n", dry=said(text), install="touch $GPUNODE_ROOT/state/done")
    failed = host.fail(
        Packages(
            "why",
            install=(PackageSpec("wanted", "0.9", downgrade=True), PackageSpec("other")),
            remove=("wanted",),
        )
    )
    assert failed["code"] == code
    assert failed["error"].startswith(f"apt would also {code.removeprefix('would-')} kubelet")
    assert not host.path("/state/done").exists()


def test_a_downgrade_that_is_wished_is_made(host: Host):
    """The plan showed that version."""
    text = f"{LISTS}The following packages will be DOWNGRADED:\n  libnvidia-container1\n"
    host.apt(dry=said(text))
    spec = PackageSpec("libnvidia-container1", "1.20.1-1", downgrade=True)
    assert host.apply(Packages("why", install=(spec,)))[-1]["ok"]


def test_a_version_alone_asks_for_no_downgrade(host: Host):
    """A package that may be removed for it is listed separately."""
    host.apt(dry=said(f"{LISTS}The following packages will be DOWNGRADED:\n  libnvidia-container1\n"))
    spec = PackageSpec("libnvidia-container1", "1.20.1-1")
    assert host.fail(Packages("why", install=(spec,)))["code"] == "would-downgrade"


def test_a_disk_that_is_too_small_is_reported_before_anything_is_fetched(host: Host):
    """From apt's own figures."""
    text = f"{LISTS}Need to get 400 MB of archives.\nAfter this operation, 900,000 GB of additional disk space will be used.\n"
    host.apt(dry=said(text), install="touch $GPUNODE_ROOT/state/done")
    failed = host.fail(Packages("why", install=(PackageSpec("cuda-drivers"),)))
    assert failed["code"] == "disk-full"
    assert failed["error"].startswith("the packages need 900000400 MB, and ")
    assert not host.path("/state/done").exists()


def test_the_smallest_package_needs_more_than_a_full_disk_has(monkeypatch):
    """In words too, whose figures are rounded."""
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(attendance.os, "statvfs", lambda _: full)
    with pytest.raises(Failure, match=r"^the packages need 1 MB, and /\S* has 0 MB free"):
        attendance.check_space(apt.needs("Need to get 2,052 B of archives.\n"))


@pytest.fixture
def this(host: Host, monkeypatch) -> Run:
    """The agent's functions in this process, working on the host's folder."""
    monkeypatch.setattr(system, "ROOT", str(host.root))
    monkeypatch.setattr(system, "ENV", host.environment)
    host.write("/etc/apt/sources.list.d/gpunode-cuda.list", f"deb [signed-by=/x.asc] {URI}/ ./\n")
    host.write("/etc/apt/sources.list.d/nvidia.list", f"deb {URI} ./\n")
    return Run("run1")


@tables.rows("apt-updates", detail="")
def test_a_repository_of_ours_that_cannot_be_read_ends_it(
    this: Run, monkeypatch, code: str, text: str, status: int, words: str, detail: str
):
    """Also if apt-get update reports it and exits with 0."""
    monkeypatch.setattr(apt, "apt_get", lambda *arguments: (status, text))
    with pytest.raises(Failure) as failure:
        apt.refresh(this)
    assert failure.value.code == code
    assert words in failure.value.error
    assert not detail or detail in failure.value.detail


def test_nothing_is_installed_after_a_repository_has_failed(host: Host):
    """What is cached of it may be old, or another's."""
    host.write("/etc/apt/sources.list.d/gpunode-cuda.list", f"deb [signed-by=/x.asc] {URI}/ ./\n")
    first = tables.read("apt-updates")[0]
    host.apt(update=said(first["text"], first["status"]), install="touch $GPUNODE_ROOT/state/done")
    failed = host.fail(Packages("why", install=(PackageSpec("cuda-drivers"),), refresh=True))
    assert (failed["code"], failed["error"]) == (first["code"], first["words"])
    assert not host.path("/state/done").exists()


def test_a_repository_whose_name_begins_like_ours_is_not_ours(this: Run, monkeypatch):
    """http://apt.example/cuda-old is the user's."""
    text = f"W: Failed to fetch {URI}-old/InRelease  404  Not Found\n"
    monkeypatch.setattr(apt, "apt_get", lambda *arguments: (0, text))
    monkeypatch.setattr(this, "progress", lambda *arguments: None)
    apt.refresh(this)
    assert this.warnings == [f"apt could not fetch from {URI}-old: 404  Not Found"]


def test_a_repository_of_the_user_that_is_broken_is_a_warning(host: Host):
    """Hosts have old lists; but it is remembered as a reason when a package is then missing."""
    text = f"W: Failed to fetch {OTHER}/dists/jammy/InRelease  Could not resolve 'old.example'\n"
    host.write("/etc/apt/sources.list.d/gpunode-cuda.sources", f"Types: deb\nURIs: {URI}\nSuites: ./\n")
    host.apt(update=said(text), dry=said(f"{LISTS}E: Unable to locate package cuda-drivers\n", 100))
    messages = host.apply(Packages("why", install=(PackageSpec("cuda-drivers"),), refresh=True))
    warning = f"apt could not fetch from {OTHER}: Could not resolve 'old.example'"
    assert [message["text"] for message in messages if message["type"] == "progress"] == [warning]
    assert messages[-2]["code"] == "package-missing"
    assert messages[-2]["detail"] == [warning]


@tables.rows("apt-installs", detail="")
def test_why_an_install_failed_is_reported_in_a_sentence(
    host: Host, this: Run, code: str, text: str, words: str, detail: str
):
    """With the lines that show it."""
    host.write("/var/lib/dkms/nvidia/580.178.04/build/make.log", "nv.c:12: error: implicit declaration\n")
    host.program("apt-cache", "echo ' hello | 2.10-3 | http://x'; echo ' hello | 2.10-2 | http://y'")
    failure = apt.install_failure(this, LISTS + text, [{"name": "hello", "version": ""}])
    assert failure.code == code
    assert words in failure.error
    assert not detail or detail in failure.detail


@pytest.mark.parametrize("step", ["dry", "install"])
def test_a_failure_of_apt_ends_it(host: Host, step: str):
    """Whether it shows in the dry run or in earnest."""
    host.apt(**{step: said("E: Unable to locate package hello\n", 100)})
    assert (
        host.fail(Packages("why", install=(PackageSpec("hello"),), hold=("hello",)))["code"]
        == "package-missing"
    )
    assert not [call for call in host.calls() if call.startswith("apt-mark")]


def test_an_interrupted_dpkg_is_finished_first(host: Host):
    """apt would refuse to install anything before that."""
    host.apt()
    host.write("/var/lib/dpkg/updates/0001", "")
    host.program(
        "dpkg",
        'case "$*" in *--configure*) rm $GPUNODE_ROOT/var/lib/dpkg/updates/0001;; *) echo amd64;; esac',
    )
    assert host.apply(Packages("why", install=(PackageSpec("hello"),)))[-1]["ok"]
    calls = [call for call in host.calls() if "--configure" in call or "install" in call]
    assert "--configure" in calls[0]


@contextlib.contextmanager
def hold_lock(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """Another apt: a process that holds dpkg's lock as dpkg does; killed at the end."""
    path = host.write("/var/lib/dpkg/lock-frontend", "")
    code = (
        "import fcntl, sys, time\n"
        f"file = open({str(path)!r}, 'w')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    host.write(f"/proc/{process.pid}/cmdline", "/usr/bin/python3\0/usr/bin/unattended-upgrade\0")
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_who_else_uses_apt_is_named_while_and_after_waiting(host: Host):
    """A lock that is not given back in time ends the apply, with nothing done."""
    host.apt()
    with hold_lock(host) as process:
        messages = host.apply(Packages("why", install=(PackageSpec("hello"),)))
    who = f"python3 unattended-upgrade (pid {process.pid})"
    assert messages[1]["text"] == f"waiting for apt: {who} is using it"
    assert messages[-2]["code"] == "apt-locked"
    assert messages[-2]["error"] == f"apt is in use by {who}"
    assert not [call for call in host.calls() if call.startswith("apt-get")]


def test_a_lock_that_is_given_back_is_waited_for(host: Host):
    """unattended-upgrades runs at boot, when hosts are provisioned."""
    host.apt()
    heard: list[bytes] = []
    with hold_lock(host):
        job = host.job(Packages("why", install=(PackageSpec("hello"),)))
        apply = host.start({**job, "apt_wait": 600})
        assert apply.stdout
        while b"waiting for apt" not in b"".join(heard):
            heard.append(next(apply.stdout))
    messages, complete = collect([*heard, *apply.stdout], job["nonce"])
    assert complete
    assert messages[-1]["ok"]


def test_apts_own_words_about_a_lock_are_understood(host: Host):
    """Another apt took the lock between our check and apt's."""
    text = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4242 (apt-get)\n"
    host.write("/proc/4242/cmdline", "/usr/bin/apt-get\0install\0")
    host.apt(dry=said(text, 100))
    failed = host.fail(Packages("why", install=(PackageSpec("hello"),)))
    assert (failed["code"], failed["error"]) == ("apt-locked", "apt is in use by apt-get (pid 4242)")


def test_a_locks_file_that_cannot_be_written_is_no_lock(host: Host):
    """The second line is that of a held lock, but for its end."""
    text = (
        "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (28: No space left on device)\n"
        "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?\n"
    )
    host.apt(dry=said(text, 100))
    assert host.fail(Packages("why", install=(PackageSpec("hello"),)))["code"] == "disk-full"


@pytest.mark.parametrize("step", ["dpkg", "apt-mark"])
def test_dpkgs_own_words_about_a_lock_are_understood(host: Host, step: str):
    """They end with advice about the lock's file."""
    host.apt()
    host.write("/var/lib/dpkg/updates/0001", "")
    host.write("/proc/4242/cmdline", "/usr/bin/unattended-upgrade\0")
    locked = "dpkg: error: dpkg frontend lock was locked by another process with pid 4242\nSee <https://…>.\n"
    host.program("dpkg", "echo amd64")
    host.program(step, f'case "$*" in *--print*) echo amd64;; *) {said(locked, 2)}\nesac')
    failed = host.fail(Packages("why", install=(PackageSpec("hello"),), hold=("hello",)))
    error = "apt is in use by unattended-upgrade (pid 4242)"
    assert (failed["code"], failed["error"]) == ("apt-locked", error)


def test_a_host_without_apt_is_told_so(host: Host):
    """The other package managers are not spoken yet."""
    assert (
        host.fail(Packages("why", install=(PackageSpec("hello"),)))["code"] == "unsupported-package-manager"
    )


def test_a_daemon_started_by_a_package_does_not_keep_apt_waiting(host: Host):
    """It inherits apt's output and would hold a pipe open for ever."""
    host.apt(install='sleep 600 & echo $! > "$GPUNODE_ROOT/state/daemon"\n')
    assert host.apply(Packages("why", install=(PackageSpec("hello"),)))[-1]["ok"]
    os.kill(int(host.read("/state/daemon")), signal.SIGKILL)  # it still ran


def test_a_disk_that_apt_fills_is_reported_as_such_though_its_words_cannot_be_recorded(host: Host):
    """On a small file system of its own; without the right to mount one, not tested."""
    place = host.path("/var/lib/gpunode")
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system here")
    try:
        host.apt(
            install='cat /dev/zero > "$GPUNODE_ROOT/var/lib/gpunode/fill"; echo "No space left on device"; exit 100'
        )
        failed = host.fail(Packages("why", install=(PackageSpec("slow"),)))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert failed["code"] == "disk-full"
    assert failed["error"] == "the disk is full"
    assert failed["detail"][-1] == "No space left on device"


SECRET = "http://user:s3cr3t@apt.example/cuda"


TOLD = (
    f"'{SECRET}/./hello_1_all.deb' hello_1_all.deb 644 \n"  # install --print-uris
    f"E: Conflicting values set for option Trusted regarding source {SECRET}/ ./\n"
    "E: Failed to fetch https://us%40er:p@s3cr3t@apt.example/x.deb  401  Unauthorized\n"
    "E: Failed to fetch https://user:s3cr3t/T0ken@apt.example/x.deb  401  Unauthorized\n"
    f"W: {SECRET}: the proxy refuses password=s3cr3t\n"
)


@pytest.mark.parametrize("step", ["update", "dry", "install"])
@pytest.mark.parametrize("status", [0, 100])
def test_no_password_of_a_repository_is_told_or_recorded(host: Host, step: str, status: int):
    """As apt 2.6 prints it. The host's name stays, to show where it happened."""
    host.apt(**{step: said(TOLD, status)})
    messages = host.apply(Packages("why", install=(PackageSpec("hello"),), refresh=True))
    record = host.path("/var/lib/gpunode/runs/run1")
    kept = "".join(path.read_text() for path in record.rglob("*") if path.is_file())
    assert "s3cr3t" not in str(messages) + kept
    assert kept.count("@apt.example/") >= TOLD.count("@apt.example/")


def test_no_password_is_told_of_the_programs_beside_apt_get(host: Host):
    """apt-mark and apt's status channel have the same words."""
    host.apt(
        install=f"echo 'pmerror:x:1:{SECRET}' >&$STATUS; echo 'pmstatus:x:1:{SECRET}' >&$STATUS; sleep 0.1\n"
    )
    host.program("apt-mark", f"echo 'E: Conflicting values regarding source {SECRET}/ ./' >&2; exit 100")
    messages = host.apply(Packages("why", install=(PackageSpec("hello"),), hold=("hello",)))
    assert "apt.example/cuda" in str(messages)
    assert "s3cr3t" not in str(messages)


def test_apt_is_not_logged_to_a_disk_before_its_passwords_are_gone(host: Host):
    """A machine may lose power at any time: until then its words are in memory, for root alone."""
    host.apt(dry=f"echo \"'{SECRET}'\"\n" + 'until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n')
    host.start(host.job(Packages("why", install=(PackageSpec("hello"),))))
    live = host.path("/run/gpunode/run1/packages.log")
    wait_until(lambda: live.exists() and "s3cr3t" in live.read_text())
    assert stat.S_IMODE(live.parent.stat().st_mode) == 0o700
    assert not host.path("/var/lib/gpunode/runs/run1/output.log").exists()
    host.write("/state/go", "")
    wait_until(lambda: not live.exists())


@pytest.mark.parametrize("program", ["apt-get", "dpkg"])
def test_a_package_manager_that_hangs_is_ended_and_what_it_waited_for_named(host: Host, program: str):
    """A package's script waits for an answer. The next run finishes what dpkg left half done."""
    host.apt(install="echo $$ > $GPUNODE_ROOT/state/pid; echo Setting up hello; sleep 3600\n")
    if program == "dpkg":
        host.write("/var/lib/dpkg/updates/0001", "")
        host.program(
            "dpkg", 'case "$*" in *--configure*) echo $$ > $GPUNODE_ROOT/state/pid; sleep 3600;; esac'
        )
    start = host.start({**host.job(Packages("why", install=(PackageSpec("hello"),))), "apt_silence": 1})
    wait_until(lambda: host.path("/state/pid").exists() and host.read("/state/pid"))
    pid = int(host.read("/state/pid"))
    out, _ = start.communicate()
    failed = next(json.loads(line) for line in out.splitlines() if b'"failed"' in line)
    assert failed["code"] == "packages-hang"
    assert "the package manager printed nothing" in failed["error"]
    assert f"(pid {pid})" in failed["error"]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_package_manager_that_says_something_is_given_time(host: Host):
    """On its status channel or in its log: longer altogether than it may be silent."""
    host.apt(
        install="for n in 1 2 3; do sleep 1; echo $n; sleep 1; echo pmstatus:x:$n:Unpacking >&$STATUS; done\n"
    )
    job = {**host.job(Packages("why", install=(PackageSpec("hello"),))), "apt_silence": 4}
    assert host.ask(job)[-1]["ok"]
