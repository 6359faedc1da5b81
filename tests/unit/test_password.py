"""sudo's password: who sees it, how often it is tried, and what else sudo reads (nothing)."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.cli import session
from gpunode.engine import converge
from gpunode.engine.fleet import Visit
from gpunode.errors import HostError, PasswordRefused, SudoRefused, Unreachable, UsageError
from gpunode.host import reach, wire
from gpunode.local.password import Password
from gpunode.model import Host, Ssh, Watch

RIGHT = "s3 cret"
# sudo as far as it matters here: it asks on standard error, reads a line, gives three tries, and notes each of them.
SUDO = f"""\
[ "$1" = -S ] || {{ echo "sudo: a password is required" >&2; exit 1; }}
prompt=$3; shift 4
[ -z "$SILENT" ] || exec "$@"
[ -z "$OWN_PROMPT" ] || prompt=$OWN_PROMPT
for try in 1 2 3; do
    printf "%s" "$prompt" >&2
    IFS= read -r word || {{ echo >&2; echo "sudo: no password was provided" >&2; break; }}
    echo "$word" >>"$TRIED"
    [ "$word" = "{RIGHT}" ] && exec "$@"
    [ $try = "$TRIES" ] && break
    echo "${{INSULT:-Sorry, try again.}}" >&2
done
echo "sudo: $try incorrect password attempts" >&2
exit 1
"""


class Machine(reach.Local):
    """This machine with that sudo, as one of many hosts; `environment` is the sudo's."""

    def __init__(self, folder: Path, name: str, **environment: str) -> None:
        super().__init__()
        self.host = Host(name, Ssh(name))
        self._tried = folder / f"tried-{name}"
        self._setting = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "TRIED": str(self._tried),
            "TRIES": "3",
            **environment,
        }

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        settings = "".join(f"{name}='{value}'; export {name}; " for name, value in self._setting.items())
        return super().start(settings + command, stdin, heard)

    def probe(self, password: Password | None, silence: float = 30) -> list[dict[str, Any]]:
        return list(reach.talk(self.host, self, wire.probe_job(Watch()), password=password, silence=silence))

    @property
    def tried(self) -> list[str]:
        """What sudo read as a password."""
        return self._tried.read_text(errors="replace").splitlines() if self._tried.exists() else []


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in (("id", "echo 1000\n"), ("sudo", SUDO)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_the_right_password_is_read_once_and_nothing_else_is(folder: Path):
    """Then the program runs, and gets all of what follows."""
    machine = Machine(folder, "a")
    assert [message["type"] for message in machine.probe(Password(RIGHT))] == ["facts"]
    assert machine.tried == [RIGHT]


@pytest.mark.parametrize(
    "sudo",
    [
        {},
        {"TRIES": "1"},
        {"OWN_PROMPT": "LDAP Password: "},
        {"OWN_PROMPT": "Password for ops@EXAMPLE.ORG:"},
        {"INSULT": "And you call yourself a Rocket Scientist!"},
    ],
    ids=str,
)
def test_a_wrong_password_is_one_failed_login(folder: Path, sudo: dict[str, str]):
    """However sudo asks, and whatever it says then; the agent's bytes are no second and third try."""
    machine, password = Machine(folder, "a", **sudo), Password("wrong")
    with pytest.raises(PasswordRefused, match="sudo does not accept the password"):
        machine.probe(password)
    assert machine.tried == ["wrong"]
    with pytest.raises(PasswordRefused):  # in a later round of the run, or after a reboot
        machine.probe(password)
    assert machine.tried == ["wrong"]


def test_a_wrong_password_is_one_failed_login_in_all_of_a_fleet(folder: Path):
    """One host tries it before any other sees it; the others name that host."""
    machines, password = [Machine(folder, name) for name in "abcdef"], Password("wrong")
    barrier = threading.Barrier(len(machines))

    def visit(machine: Machine) -> str:
        barrier.wait()
        with pytest.raises(PasswordRefused) as caught:
            machine.probe(password)
        return caught.value.message

    with ThreadPoolExecutor(len(machines)) as threads:
        messages = list(threads.map(visit, machines))
    (tried,) = (machine for machine in machines if machine.tried)
    assert tried.tried == ["wrong"]
    assert sorted(messages)[0] == "sudo does not accept the password"
    elsewhere = f"sudo on {tried.host.name} does not accept the password, so it was not tried here"
    assert sorted(messages)[1:] == [elsewhere] * 5


def test_a_password_that_one_host_accepts_is_tried_once_on_each(folder: Path):
    """Where another host has another one, that is this host's story only."""
    password = Password(RIGHT)
    first, other, third = Machine(folder, "a"), Machine(folder, "b"), Machine(folder, "c")
    assert first.probe(password)
    password.line = b"of another host\n"
    with pytest.raises(PasswordRefused, match="sudo does not accept the password"):
        other.probe(password)
    password.line = f"{RIGHT}\n".encode()
    assert third.probe(password)
    assert (first.tried, other.tried, third.tried) == ([RIGHT], ["of another host"], [RIGHT])


class Recorded(Machine):
    """Keeps what was sent."""

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        self.sent = b""

        def kept() -> Iterable[bytes]:
            for chunk in stdin:
                self.sent += chunk
                yield chunk

        return super().start(command, kept(), heard)


def test_a_host_that_asks_for_none_does_not_get_it(folder: Path):
    """NOPASSWD; nor has it shown that the password is right."""
    machine, password = Recorded(folder, "a", SILENT="1"), Password("wrong")
    assert machine.probe(password)
    assert b"wrong" not in machine.sent
    assert not password.accepted
    asking = Machine(folder, "b")
    with pytest.raises(PasswordRefused):
        asking.probe(password)
    assert asking.tried == ["wrong"]


def test_root_is_asked_for_nothing(folder: Path):
    """And a host that needs no sudo gets no password."""
    (folder / "id").write_text("#!/bin/sh\necho 0\n")
    machine = Recorded(folder, "a")
    assert machine.probe(Password(RIGHT))
    assert RIGHT.encode() not in machine.sent
    machine.host = Host("a", Ssh("a"), sudo=False)
    assert machine.probe(Password(RIGHT))
    assert RIGHT.encode() not in machine.sent


def test_without_a_password_nothing_waits(folder: Path):
    """The program is sent at once, and sudo is told not to ask."""
    machine = Recorded(folder, "a")
    with pytest.raises(SudoRefused, match="sudo needs a password"):
        machine.probe(None)
    assert machine.tried == []


class Hangs(Machine):
    """A host whose shell never comes as far as sudo."""

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        return reach.Local.start(self, "exec sleep 60", stdin, heard)


def test_a_host_that_hangs_gives_its_turn_away(folder: Path):
    """The others are visited when it has been given up."""
    password = Password(RIGHT)
    with pytest.raises(Unreachable, match="gave no answer"):
        Hangs(folder, "a").probe(password, silence=0.2)
    assert Machine(folder, "b").probe(password)


def test_a_question_that_is_none_for_a_password_is_not_answered(folder: Path):
    """A one-time code: the password would be a failed login there."""
    machine = Machine(folder, "a", OWN_PROMPT="Verification code: ")
    with pytest.raises(Unreachable, match="gave no answer"):
        machine.probe(Password(RIGHT), silence=1)
    assert machine.tried == []


def test_a_password_that_is_refused_after_a_reboot_is_not_tried_for_minutes(folder: Path, monkeypatch):
    """Each try while a host comes back would be a failed login, up to a locked account."""
    monkeypatch.setattr(
        converge, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: None)
    )
    machine = Machine(folder, "a")
    visit = Visit(machine.host, lambda _host: machine, None, Password("wrong"))
    with pytest.raises(PasswordRefused):
        converge._reboot(visit, "run", "the boot before", lambda _event: None)
    assert machine.tried == ["wrong"]


@pytest.mark.parametrize("answer", ["", None])
def test_no_password_is_no_password(monkeypatch, answer: str | None):
    """An empty line, or nobody there to type one: nothing is contacted."""

    def typed(_prompt: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("getpass.getpass", typed)
    with pytest.raises(UsageError, match="no password was typed"):
        session._password()


# --- The real sudo ----------------------------------------------------------------------------------

REAL = shutil.which("sudo") is not None and os.getuid() == 0 and shutil.which("setpriv") is not None
USER = "gpunode-test"


class Real(reach.Local):
    """This machine's own sudo, for a user who has a password."""

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        return super().start(
            f"cd /; exec setpriv --reuid {USER} --regid {USER} --init-groups {command[5:]}", stdin, heard
        )


@pytest.fixture
def real(tmp_path) -> Iterable[Callable[[], str]]:
    """A user of this machine who may use sudo with a password; what sudo logged."""
    rule, log = Path("/etc/sudoers.d/gpunode-test"), tmp_path / "log"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", USER], check=True)
    subprocess.run(["chpasswd"], input=f"{USER}:{RIGHT}\n", text=True, check=True)
    rule.write_text(f"Defaults:{USER} logfile={log}, !lecture\n{USER} ALL=(ALL) ALL\n")
    rule.chmod(0o440)
    yield lambda: log.read_text() if log.exists() else ""
    rule.unlink()
    subprocess.run(["userdel", USER], check=True)


@pytest.mark.skipif(not REAL, reason="needs root, and sudo installed")
def test_the_real_sudo_takes_the_password_and_counts_one_failure(real: Callable[[], str]):
    """Debian's, through PAM."""
    host = Host("here", Ssh("here"))

    def probe(text: str) -> list[dict[str, Any]]:
        return list(reach.talk(host, Real(), wire.probe_job(Watch()), password=Password(text), silence=60))

    with pytest.raises(HostError, match="sudo does not accept the password"):
        probe("wrong")
    assert real().count("1 incorrect password attempt ;") == 1
    assert [message["type"] for message in probe(RIGHT)] == ["facts"]
    assert real().count("incorrect") == 1
    assert real().count("COMMAND=") == 2
