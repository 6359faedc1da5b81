"""The agent reached on this machine, and what an incomplete answer becomes."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from gpunode.errors import AgentFailed, ConnectionLost, Unreachable
from gpunode.host import reach, wire
from gpunode.model import Host, Ssh, Watch

HOST = Host("here", Ssh("here"), connection="local", sudo=False)


class Script:
    """A connection whose remote side says what the test wrote."""

    def __init__(self, lines: list[bytes], status: int | None = 0, stderr: str = "") -> None:
        self._lines, self._end = lines, (status, stderr)

    def start(self, command: str, stdin: Iterable[bytes], heard: object = None) -> reach.Remote:
        return self

    def lines(self) -> Iterator[bytes]:
        yield from self._lines

    def end(self) -> tuple[int | None, str]:
        return self._end

    def close(self) -> None:
        pass


class Silent(Script):
    """A host that takes the command and says nothing until its connection is closed."""

    def __init__(self) -> None:
        super().__init__([], status=None)
        self.closed = threading.Event()

    def lines(self) -> Iterator[bytes]:
        assert self.closed.wait(30), "nobody gave up"
        yield from ()

    def close(self) -> None:
        self.closed.set()


def test_a_host_that_gives_no_answer_in_time_is_given_up():
    """Behind a jump host nothing else notices: the connection to the jump host is alive."""
    with pytest.raises(Unreachable, match="gave no answer for 0 seconds") as caught:
        list(reach.talk(HOST, Silent(), {"op": "probe", "nonce": "n1"}, silence=0.05))
    assert not isinstance(caught.value, ConnectionLost)


class Beating(Silent):
    """An apply that has nothing to say for a while but that it goes on."""

    def lines(self) -> Iterator[bytes]:
        yield b"@gpunode-begin n1\n"
        for _ in range(10):
            if self.closed.wait(0.1):
                return
            yield b'{"type": "alive"}\n'
        yield b'{"type": "end", "ok": true}\n'
        yield b"@gpunode-end n1\n"

    def end(self) -> tuple[int | None, str]:
        return 0, ""


def test_an_apply_that_says_that_it_goes_on_is_not_given_up():
    """It takes longer than any silence that is borne; its beats are not told."""
    job = {"op": "apply", "nonce": "n1"}
    assert list(reach.talk(HOST, Beating(), job, silence=0.7)) == [{"type": "end", "ok": True}]


class Slow(Script):
    """A host that takes what it is sent, an archive say, a piece at a time, and then answers."""

    def start(self, command: str, stdin: Iterable[bytes], heard: object = None) -> reach.Remote:
        self._stdin = stdin
        return self

    def lines(self) -> Iterator[bytes]:
        for _ in self._stdin:
            time.sleep(0.2)
        yield from super().lines()


def test_a_host_that_takes_an_archive_is_not_silent(tmp_path):
    """An image over a slow line takes minutes, in which the agent has nothing to say."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(b"x" * reach.CHUNK * 15)
    slow = Slow([b"@gpunode-begin n1\n", b'{"type": "end", "ok": true}\n', b"@gpunode-end n1\n"])
    job = {"op": "apply", "nonce": "n1"}
    assert list(reach.talk(HOST, slow, job, archives=[str(archive)], silence=2)) == [
        {"type": "end", "ok": True}
    ]


class Hung(reach.Local):
    """A command of this machine that starts, says something and then hangs."""

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        return super().start("echo hello; exec sleep 600", stdin, heard)


def test_a_command_of_this_machine_that_hangs_is_given_up():
    """As over SSH: nobody waits for ever."""
    with pytest.raises(Unreachable, match="gave no answer"):
        list(reach.talk(HOST, Hung(), {"op": "probe", "nonce": "n1"}, silence=0.3))


class Drip(Silent):
    """A host that says something now and then, and never what it was asked."""

    def __init__(self, word: bytes) -> None:
        super().__init__()
        self._word = word

    def lines(self) -> Iterator[bytes]:
        for _ in range(3000):
            if self.closed.wait(0.01):
                return
            yield self._word
        raise AssertionError("nobody gave up")


@pytest.mark.parametrize("word", [b"please wait\n", b"\n", b"@gpunode-ready\n", b'{"type": "alive"}\n'])
def test_noise_is_no_answer(word: bytes):
    """However long it goes on."""
    with pytest.raises(Unreachable, match="gave no answer"):
        list(reach.talk(HOST, Drip(word), {"op": "probe", "nonce": "n1"}, silence=0.2))


class Unanswered(Silent):
    """A host that never answers to the request for a command, as paramiko waits for it."""

    def start(self, command: str, stdin: Iterable[bytes], heard: object = None) -> reach.Remote:
        assert self.closed.wait(30), "nobody gave up"
        raise Unreachable(HOST.name, "the connection broke: Channel closed.")


def test_a_command_that_is_never_started_is_given_up():
    """Before there is any output to wait for."""
    with pytest.raises(Unreachable, match="gave no answer"):
        list(reach.talk(HOST, Unanswered(), {"op": "probe", "nonce": "n1"}, silence=0.05))


class Shell(reach.Local):
    """This machine, with another command in the agent's place."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> reach.Remote:
        return super().start(self._command, stdin, heard)


BEGUN = "echo; echo @gpunode-begin n1; "
FLOODS = {
    "output": ("yes noise", "1 MiB of other output"),
    "a line without end": ("yes noise | tr -d '\\n'", "a line of more than 8 MiB"),
    "standard error": ("yes noise >&2", "1 MiB on standard error"),
    "standard error, and it keeps its output open": ("yes noise >&2 & sleep 10", "1 MiB on standard error"),
    "output after the answer began": (f"{BEGUN}yes noise", "1 MiB of other output"),
    "a message without end": (f"{BEGUN}printf '{{'; yes a | tr -d '\\n'", "a line of more than 8 MiB"),
    "messages": (f"""{BEGUN}yes '{{"type": "progress", "text": "{"x" * 9999}"}}'""", "more than 64 MiB"),
    "messages that say nothing": (
        f"""{BEGUN}yes '{{"type": "alive", "text": "{"x" * 9999}"}}'""",
        "more than 64 MiB",
    ),
    "beginnings": ("yes '@gpunode-begin n1'", "1 MiB of other output"),
}


@pytest.mark.parametrize(("command", "named"), FLOODS.values(), ids=FLOODS)
def test_a_host_that_floods_is_given_up(command: str, named: str):
    """By name, with what it was too much of; it does not fill this machine's memory."""
    flood = Shell(f"exec 2>&2; {command}")
    with pytest.raises(AgentFailed, match=named) as caught:
        for _ in reach.talk(HOST, flood, {"op": "probe", "nonce": "n1"}, silence=20):
            pass
    assert caught.value.hint


def test_of_long_errors_the_end_is_kept():
    """It says what went wrong last."""
    words = (
        "i=0; while [ $i -lt 30000 ]; do echo warning $i >&2; i=$((i+1)); done; echo the cause >&2; exit 1"
    )
    with pytest.raises(AgentFailed, match="the cause"):
        list(reach.talk(HOST, Shell(words), {"op": "probe", "nonce": "n1"}))


def test_what_is_no_message_is_noise():
    """Something else on the host may print braces, too."""
    job = {"op": "probe", "nonce": "n1"}
    lines = [b"@gpunode-begin n1\n", b"{ not json }\n", b"{}\n", b'{"a":' * 5000 + b"\n"]
    lines += [b'{"type": "end", "ok": true}\n', b"@gpunode-end n1\n"]
    assert list(reach.talk(HOST, Script(lines), job)) == [{"type": "end", "ok": True}]


def test_a_probe_of_this_machine_answers_with_facts():
    """`connection: local` runs the same agent through the same protocol."""
    messages = list(reach.talk(HOST, reach.Local(), wire.probe_job(Watch(files=("/etc/os-release",)))))

    facts = next(message["facts"] for message in messages if message["type"] == "facts")
    assert facts["files"]["/etc/os-release"]["exists"]


def test_a_connection_that_went_away_is_told_from_an_agent_that_failed():
    """No exit status: lost. A status without an answer: the agent's words."""
    job = {"op": "probe", "nonce": "n1"}

    with pytest.raises(ConnectionLost):
        list(reach.talk(HOST, Script([b"@gpunode-begin n1\n"], status=None), job))
    with pytest.raises(AgentFailed, match="Traceback of some kind"):
        list(reach.talk(HOST, Script([], status=1, stderr="Traceback of some kind"), job))
