"""The command that starts the agent, what goes in and what comes out, and what it means when nothing does."""

import hashlib
import json
import shutil
import subprocess
import tarfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from gpunode.errors import AgentFailed, AgentUnusable, HostError, SudoRefused
from gpunode.host import bootstrap, wire
from gpunode.local import streams
from gpunode.model import (
    Change,
    Expected,
    InstallDriver,
    KernelModule,
    LoadImage,
    Packages,
    PackageSpec,
    PythonBuild,
    Reboot,
    RemoveFile,
    Service,
    Watch,
    WriteFile,
)
from tests import tables

OLD = "import sys;sys.version_info=(3,5,2);sys.version='3.5.2 (default)';exec(sys.argv[1])"
SHELLS = [shell for shell in ("dash", "bash", "zsh", "ksh", "fish", "tcsh", "busybox") if shutil.which(shell)]
PROGRAM = b"def main(program, job):\n    import sys\n    print('ran', job.decode(), sys.stdin.read())\n"


class Machine:
    """A folder of programs that a command finds, which root runs unless `id` is made to say otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.link("sh")
        self.program("id", "echo 0")

    def link(self, name: str, target: str = "") -> None:
        (self.folder / name).symlink_to(target or str(shutil.which(name)))

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python_with(self, first: str) -> None:
        """A python3 that runs this before the agent."""
        self.program("python3", f'shift 3; exec /usr/bin/python3 -I -S -c "{first}" "$@"')

    def run(
        self,
        *,
        sudo: bool = True,
        stdin: bytes,
        password: bool = False,
        shell: str = "/bin/sh",
        python: str = "",
        install: str = "",
    ) -> Any:
        words = [str(shutil.which(shell)), *(["sh"] if shell == "busybox" else []), "-c"]
        environment = {"PATH": str(self.folder), "LANG": "de_DE.UTF-8"}
        return subprocess.run(
            [*words, bootstrap.command(sudo, password, python, install)],
            input=stdin,
            env=environment,
            capture_output=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    """With its python3 where root's is looked for."""
    monkeypatch.setattr(bootstrap, "PYTHONS", ("/no/python3", str(tmp_path / "python3")))
    monkeypatch.setattr(bootstrap, "SUDO_PATH", "/no")
    made = Machine(tmp_path)
    made.link("python3", "/usr/bin/python3")
    return made


@pytest.fixture
def stdin(monkeypatch) -> bytes:
    """A small program in place of the agent, and a job."""
    monkeypatch.setattr(wire, "_program", lambda: zlib.compress(PROGRAM))
    return wire.encode({"job": 1}) + b"payload"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_the_command_on(machine: Machine, stdin: bytes, shell: str):
    """The program, the job and what follows arrive whole."""
    done = machine.run(sudo=True, stdin=stdin, shell=shell)
    assert done.stdout == b'\n@gpunode-ready\nran {"job":1} payload\n'
    assert done.stderr == b""


def test_the_command_holds_nothing_that_a_shell_could_change():
    """Single quotes around it are enough: csh has its exclamation mark, fish its backslash, both the newline."""
    for password in (True, False):
        command = bootstrap.command(sudo=True, password=password)
        assert not set(command) & set("!\\\n")
        assert command.count("'") == 4
    assert len(command) < 1600


def test_roots_python_is_not_the_users(machine: Machine, stdin: bytes):
    """Whoever may write to a folder of the user's PATH would be root; and what root's program starts is looked for in
    the system's folders."""
    theirs = machine.folder / "theirs"
    theirs.mkdir()
    for name in ("id", "sudo"):
        (theirs / name).write_text("#!/bin/sh\n" + SUDO_AS[name])
        (theirs / name).chmod(0o755)
    (theirs / "python3").write_text("#!/bin/sh\necho mine\n")
    (theirs / "python3").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", bootstrap.command(sudo=True, password=False)],
        input=stdin,
        env={"PATH": f"{theirs}:{machine.folder}"},
        capture_output=True,
        check=False,
    )
    assert done.stdout == b'\n@gpunode-ready\nran {"job":1} payload\n'
    assert done.stderr == f"PATH={bootstrap.ROOT_PATH}\n".encode()


SUDO_AS = {
    "id": "echo 1000\n",
    "sudo": 'echo "PATH=$PATH" >&2; while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n',
}


def test_sudo_is_not_the_users_where_the_system_has_one(machine: Machine, stdin: bytes, monkeypatch):
    """It reads the password. A sudo of the user's PATH is taken where there is no other."""
    machine.program("id", "echo 1000")
    (machine.folder / "system").mkdir()
    for name in ("sudo", "system/sudo"):
        machine.program(name, f'echo {name} >&2; while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    for there, taken in (("/no", b"sudo\n"), (f"/no:{machine.folder}/system", b"system/sudo\n")):
        monkeypatch.setattr(bootstrap, "SUDO_PATH", there)
        assert machine.run(sudo=True, stdin=stdin).stderr == taken
    monkeypatch.setattr(bootstrap, "SUDO_PATH", "/no")
    (machine.folder / "sudo").unlink()
    assert b"@gpunode-no-sudo" in machine.run(sudo=True, stdin=stdin).stdout


def test_a_python_that_only_the_users_path_has_is_named(machine: Machine, stdin: bytes):
    """Root does not run it; for a user who needs no sudo, and for root's own login, it is good enough."""
    (machine.folder / "python3").rename(machine.folder / "python")
    elsewhere = machine.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "python3").symlink_to("/usr/bin/python3")
    path = f"{elsewhere}:{machine.folder}"

    def ran(*, sudo: bool) -> Any:
        command = ["/bin/sh", "-c", bootstrap.command(sudo, password=False)]
        return subprocess.run(command, input=stdin, env={"PATH": path}, capture_output=True, check=False)

    assert b"ran" in ran(sudo=False).stdout
    machine.program("id", "echo 0")
    assert b"ran" in ran(sudo=True).stdout
    machine.program("id", "echo 1000")
    machine.program("sudo", SUDO_AS["sudo"])
    done = ran(sudo=True)
    error = bootstrap.explain("gpu-07", done.stdout.splitlines(), done.stderr.decode(), done.returncode)
    assert isinstance(error, AgentUnusable)
    assert f"its only python3 is {elsewhere}/python3" in error.message
    assert "`python:`" in error.hint
    machine.program("id", "echo 0")
    named = machine.run(sudo=True, stdin=stdin, python=f"{elsewhere}/python3")
    assert b"ran" in named.stdout


def test_the_inventorys_python_is_the_only_one(machine: Machine, stdin: bytes):
    """It is taken though another is there, and missed though another is there."""
    machine.program("python3.9", "echo named")
    assert machine.run(sudo=False, stdin=stdin, python=f"{machine.folder}/python3.9").stdout == b"named\n"
    error = refusal(machine, stdin, python="/opt/python3")
    assert error.message == "it has no /opt/python3, which `python:` in the inventory names"


def test_a_newer_python_beside_one_that_is_too_old_is_found(machine: Machine, stdin: bytes, monkeypatch):
    """As on Ubuntu 16.04 with Python 3.5, and another one built beside it; a pattern finds the one with its minor version."""
    there = f"{machine.folder}/python3"
    monkeypatch.setattr(bootstrap, "PYTHONS", (there, f"{there}.[0-9]*"))
    machine.python_with(OLD)
    machine.link("python3.11", "/usr/bin/python3")
    assert machine.run(sudo=True, stdin=stdin).stdout == b'\n@gpunode-ready\nran {"job":1} payload\n'


def refusal(machine: Machine, stdin: bytes, *, build: PythonBuild | None = None, **how: Any) -> HostError:
    done = machine.run(stdin=stdin, **how)
    noise: list[bytes] = []
    messages, complete = drain(done.stdout.splitlines(keepends=True), "n", noise)
    assert messages == []
    assert not complete
    return bootstrap.explain("gpu-07", noise, done.stderr.decode(), done.returncode, build)


def drain(lines: list[bytes], nonce: str, noise: list[bytes]) -> tuple[list[dict[str, Any]], bool]:
    messages = []
    decoding = wire.decode(lines, nonce, noise)
    while True:
        try:
            messages.append(next(decoding))
        except StopIteration as stop:
            return messages, bool(stop.value)


HALF = (  # Debian's python3-minimal: an interpreter with half a library
    "import sys;m=sys.meta_path[:];find=lambda n,p=None,t=None:None if n=='json' else next(filter(None,(f.find_spec(n,p)for f in m)),None);"
    "sys.meta_path[:]=[type('Finder',(),dict(find_spec=staticmethod(find)))];exec(sys.argv[1])"
)


@pytest.mark.parametrize(
    ("python", "message", "hint"),
    [
        ("", "it has no python3", "Python 3.6"),
        (
            OLD,
            "its python3 is 3.5.2; 3.6 or newer is needed",
            "or set `python:` in the inventory to a standalone build",
        ),
        (HALF, " has no module json", "python3-minimal"),
    ],
    ids=["none", "too old", "half"],
)
def test_a_host_whose_python_cannot_run_the_agent_is_told_so(
    machine: Machine, stdin: bytes, python: str, message: str, hint: str
):
    """With the command that fixes it. Python 3.5 cannot even parse the agent."""
    (machine.folder / "python3").unlink()
    if python:
        machine.python_with(python)
    error = refusal(machine, stdin)
    assert isinstance(error, AgentUnusable)
    assert error.message.endswith(message)
    assert hint in error.hint


def test_a_host_without_python_gets_one_by_its_own_package_manager(machine: Machine, stdin: bytes):
    """Which one is found first, and run only when that was asked for; then the agent starts in the same command."""
    python = machine.folder / "python3"
    python.unlink()
    machine.program("dnf", "exit 1")
    machine.program(
        "yum", f"echo installing; echo $* >{machine.folder}/asked; ln -s /usr/bin/python3 {python}"
    )
    machine.link("ln")
    error = refusal(machine, stdin)
    assert isinstance(error, AgentUnusable)
    assert error.install == bootstrap.INSTALLS["dnf"]
    assert "dnf -q -y install python3" in error.hint
    assert not python.exists()
    done = machine.run(sudo=True, stdin=stdin, install=bootstrap.INSTALLS["yum"])
    assert done.stdout == b'\n@gpunode-ready\nran {"job":1} payload\n'
    assert done.stderr == b"installing\n"
    assert (machine.folder / "asked").read_text() == "-q -y install python3\n"


def test_a_python_that_cannot_be_installed_is_reported_with_the_package_managers_words(
    machine: Machine, stdin: bytes
):
    (machine.folder / "python3").unlink()
    machine.program("dnf", "echo Error: Unable to find a match: python3 >&2; exit 1")
    error = refusal(machine, stdin, install=bootstrap.INSTALLS["dnf"])
    assert "Unable to find a match" in error.message


@pytest.mark.parametrize("there", ["none", "3.5"])
def test_a_host_without_a_python_that_is_new_enough_gets_the_inventorys_build(
    machine: Machine, stdin: bytes, tmp_path, monkeypatch, there: str
):
    """As on CentOS 7 and Ubuntu 16.04: by plain sh, and only as what its checksum says it is."""
    (machine.folder / "python3").unlink()
    if there == "3.5":
        machine.python_with(OLD)
    place = tmp_path / "opt"
    monkeypatch.setattr(bootstrap, "PLACE", str(place))
    monkeypatch.setattr(bootstrap, "PYTHONS", (f"{machine.folder}/python3", f"{place}/python/bin/python3"))
    archive = tmp_path / "build.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        tar.addfile(link)
    machine.program("curl", f"exec cp {archive} $3")
    for name in ("mkdir", "mktemp", "sha256sum", "tar", "rm", "mv", "cp", "gzip"):
        machine.link(name)
    wrong, right = (
        PythonBuild("http://mirror.example/python.tar.gz", digest)
        for digest in ("0" * 64, hashlib.sha256(archive.read_bytes()).hexdigest())
    )
    error = refusal(machine, stdin, build=right)
    assert isinstance(error, AgentUnusable)
    assert "unpacks the one of http://mirror.example/python.tar.gz" in error.hint
    assert not place.exists()
    failed = machine.run(sudo=True, stdin=stdin, install=bootstrap.unpack_command(wrong))
    assert b"ran" not in failed.stdout
    assert list(place.iterdir()) == []
    done = machine.run(sudo=True, stdin=stdin, install=error.install)
    assert done.stdout == b'\n@gpunode-ready\nran {"job":1} payload\n', done.stderr
    assert [entry.name for entry in place.iterdir()] == ["python"]


@tables.rows("refusals-of-sudo")
def test_sudos_refusals_are_understood(machine: Machine, stdin: bytes, words: str, message: str):
    """Its own words, as sudo 1.9 and sudo-rs write them, with the remark on the host's name that is nobody's concern."""
    machine.program("id", "echo 1000")
    machine.program(
        "sudo", f'echo "sudo: unable to resolve host gpu-07: Name or service not known\n{words}" >&2; exit 1'
    )
    error = refusal(machine, stdin)
    assert isinstance(error, SudoRefused)
    assert error.message == message


@pytest.mark.parametrize("banner", ["Users may not run miners.", "Staff are not allowed to run miners."])
def test_a_banner_is_no_refusal_of_sudos(banner: str):
    assert isinstance(bootstrap.explain("gpu-07", [], f"{banner}\nKilled", 137), AgentFailed)


def test_sudo_is_told_to_speak_english_and_not_to_ask(machine: Machine, stdin: bytes):
    """In the user's language its words would not be recognised."""
    machine.program("id", "echo 1000")
    machine.program("sudo", 'echo "$LC_ALL $1" >&2; exit 1')
    done = machine.run(sudo=True, stdin=stdin)
    assert done.stderr == b"C -n\n"


def test_a_host_without_sudo_is_told_so(machine: Machine, stdin: bytes):
    """And root needs none."""
    machine.program("id", "echo 1000")
    error = refusal(machine, stdin)
    assert isinstance(error, SudoRefused)
    assert error.message == "it has no sudo"


def test_any_other_silence_is_quoted():
    """A nologin shell, a restricted account: what was said is the best there is."""
    error = bootstrap.explain("gpu-07", [b"This account is currently not available.\n"], "", 1)
    assert isinstance(error, AgentFailed)
    assert "exit status 1" in error.message
    assert "This account is currently not available." in error.message
    assert "(none)" in bootstrap.explain("gpu-07", [], "", None).message


def test_messages_are_found_among_noise():
    """Before, between and after; and only those of this job."""
    noise: list[bytes] = []
    lines = [
        b"Welcome!\r\n",
        b'{"type": "not ours"}\n',
        b"@gpunode-begin other\n",
        b"\n",
        b"@gpunode-begin n1\n",
        b'{"type": "a"}\n',
        b"warning: something\n",
        b'{"type": "b"}\r\n',
        b"@gpunode-end n1\n",
        b'{"type": "c"}\n',
    ]
    messages, complete = drain(lines, "n1", noise)
    assert [message["type"] for message in messages] == ["a", "b"]
    assert complete
    assert noise[0] == b"Welcome!\r\n"
    assert len(noise) == 5


def test_lines_are_whole_however_they_come():
    """The last one may have no end."""
    assert list(streams.lines([b"a\nb", b"c\nd\n", b"e"])) == [b"a\n", b"bc\n", b"d\n", b"e"]


def test_an_answer_without_its_end_is_not_complete():
    """Nor is an end without a beginning."""
    assert drain([b"@gpunode-begin n\n", b'{"type": "a"}\n'], "n", []) == ([{"type": "a"}], False)
    assert drain([b"@gpunode-end n\n"], "n", []) == ([], False)


def test_a_message_that_was_cut_short_is_not_read():
    """A connection is lost where it is lost: half a message is none, and the answer is not complete."""
    noise: list[bytes] = []
    lines = [b"@gpunode-begin n\n", b'{"type": "start"}\n', b'{"type": "do']
    assert drain(lines, "n", noise) == ([{"type": "start"}], False)
    assert noise == [b'{"type": "do']


def test_messages_are_given_as_they_come():
    """Progress is not held back until the end."""

    def lines() -> Any:
        yield b"@gpunode-begin n\n"
        yield b'{"type": "a"}\n'
        raise AssertionError("asked for more than was needed")

    assert next(wire.decode(lines(), "n", [])) == {"type": "a"}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ENCODED: list[tuple[Change, dict[str, Any]]] = [
    (
        WriteFile(
            "/etc/a", "new ☃", "why", before="old", mode=0o600, check="docker", expected=Expected("nvidia")
        ),
        {
            "kind": "write_file",
            "path": "/etc/a",
            "content": "new ☃",
            "before_sha256": digest("old"),
            "mode": 0o600,
            "owner": None,
            "label": None,
            "check": "docker",
            "expected": {"runtime": "nvidia", "default": None, "moved": []},
        },
    ),
    (
        WriteFile("/etc/a", "new", "why"),
        {
            "kind": "write_file",
            "path": "/etc/a",
            "content": "new",
            "before_sha256": None,
            "mode": 0o644,
            "owner": None,
            "label": None,
            "check": None,
            "expected": None,
        },
    ),
    (
        RemoveFile("/etc/a", "old", "why"),
        {"kind": "remove_file", "path": "/etc/a", "before_sha256": digest("old"), "folder": False},
    ),
    (
        Packages("why", install=(PackageSpec("a", "1"),), refresh=True),
        {
            "kind": "packages",
            "install": [{"name": "a", "version": "1", "downgrade": False}],
            "remove": [],
            "hold": [],
            "release": [],
            "refresh": True,
            "purge": False,
        },
    ),
    (
        Service("docker.service", "why", restart=True, guards=("/etc/a",), note="7 containers"),
        {
            "kind": "service",
            "unit": "docker.service",
            "enable": False,
            "restart": True,
            "start": True,
            "guards": ["/etc/a"],
            "ends": None,
            "drops": "",
            "disable": False,
        },
    ),
    (
        KernelModule("why", load=("nvidia",)),
        {"kind": "kernel_module", "load": ["nvidia"], "unload": [], "services": []},
    ),
    (Reboot("why", ("7",)), {"kind": "reboot", "ends": ["7"], "bare": False}),
]


@pytest.mark.parametrize(("change", "expected"), ENCODED, ids=lambda value: type(value).__name__)
def test_changes_are_sent_without_the_texts_for_people(change: Change, expected: dict[str, Any]):
    """And old contents as their digest: the host has them."""
    job = json.loads(json.dumps(wire.apply_job("run1", "anna", [change], None)))
    assert job["changes"] == [expected]
    assert (job["run"], job["by"], job["then"], job["payloads"]) == ("run1", "anna", None, [])


def test_an_image_is_announced_by_size_and_digest(tmp_path):
    """Its bytes follow the job; its path here is nobody's business there."""
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"x" * 5)
    image = LoadImage("a:1", "sha256:1", str(archive), "docker", "why")
    job = wire.apply_job("run1", "anna", [Reboot("why"), image], Watch(files=("/etc/a",)))
    assert job["changes"][1]["payload"] == 0
    assert job["payloads"] == [{"size": 5, "sha256": digest("xxxxx")}]
    assert job["then"] == {"files": ("/etc/a",), "units": (), "packages": (), "images": (), "mig": False}
    assert str(tmp_path) not in json.dumps(job)
    archive.write_bytes(b"y" * 6)
    assert wire.apply_job("run2", "anna", [image], None)["payloads"] == [
        {"size": 6, "sha256": digest("yyyyyy")}
    ]


def test_an_installer_is_sent_as_an_image_is_and_a_url_alone(tmp_path):
    """The payload's number says which; what the host fetches has none."""
    archive = tmp_path / "NVIDIA.run"
    archive.write_bytes(b"xxxxx")
    sent = InstallDriver("580.1", "feed", "open", "why", archive=str(archive))
    fetched = InstallDriver("580.1", "feed", "open", "why", url="https://a/d.run")
    job = wire.apply_job("run1", "anna", [fetched, sent], None)
    common = {
        "kind": "install_driver",
        "version": "580.1",
        "sha256": "feed",
        "flavour": "open",
        "beside": False,
    }
    assert job["changes"] == [{**common, "url": "https://a/d.run"}, {**common, "url": None, "payload": 0}]
    assert job["payloads"] == [{"size": 5, "sha256": digest("xxxxx")}]
    assert wire.archives([fetched, sent]) == [str(archive)]


def test_every_job_has_a_nonce_of_its_own():
    """Output of an earlier one cannot be taken for an answer."""
    assert wire.follow_job("r")["nonce"] != wire.follow_job("r")["nonce"]


def test_the_real_agent_is_sent_small():
    """It travels on every exec: some packets of SSH's, far within sshd's first window of 2 MiB."""
    assert len(wire.encode(wire.probe_job(Watch()))) < 76 * 1024  # 14 of them keep secrets out of records


def test_an_archive_is_read_once_however_many_hosts_get_it_at_the_same_time(tmp_path, monkeypatch):
    """Uploads begin together, each in its host's thread."""
    archive = tmp_path / "plugin.tar"
    archive.write_bytes(b"x" * 5)
    image = LoadImage("a:1", "sha256:1", str(archive), "docker", "why")
    opened: list[Path] = []
    together, real = Barrier(8), Path.open

    def slow(path: Path, *arguments: Any) -> Any:
        opened.append(path)
        Event().wait(0.3)  # a slow disk: the others come meanwhile
        return real(path, *arguments)

    def ask(number: int) -> Any:
        together.wait(20)
        return wire.apply_job(f"run{number}", "anna", [image], None)["payloads"]

    monkeypatch.setattr(Path, "open", slow)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers == [[{"size": 5, "sha256": digest("xxxxx")}]] * 8
    assert opened.count(archive) == 1


def test_the_agent_is_compressed_once_for_all_hosts(monkeypatch):
    """It takes longer than all else that a host costs its operator; all hosts begin at the same time."""
    compressed = []
    start = Barrier(8)

    def compress(text: bytes, _level: int) -> bytes:
        compressed.append(text)
        time.sleep(0.05)  # until the other threads are there
        return b"agent"

    def encode(_: int) -> bytes:
        start.wait()
        return wire.encode({"op": "probe"})

    monkeypatch.setattr(wire.zlib, "compress", compress)
    wire._program.clear()
    try:
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(encode, range(8)))) == 1
    finally:
        wire._program.clear()
    assert len(compressed) == 1
