"""The sudo password of a run: sent once per host, and to one host at a time until one has accepted it."""

import re
import threading
from collections.abc import Iterator

from gpunode.errors import PasswordRefused

PROMPT = "gpunode asks for the sudo password: "
# sudo replaces a plain "Password: " with PROMPT; LDAP and Kerberos modules keep their own.
_ASKS = re.compile(rb"assword[^\n]*:[ \t]*\Z")
_REFUSES = re.compile(rb"try again|incorrect password")


class Password:
    """One password for all hosts of a run. Thread-safe."""

    def __init__(self, text: str) -> None:
        self.line = text.encode() + b"\n"
        self.turn = threading.Lock()
        self.accepted = False
        self.refused: set[str] = set()  # hosts


class Question:
    """sudo's prompt on one host. As a context manager it spans the command.

    Entering waits for the host's turn. Raises PasswordRefused where another try would be another failed login.
    """

    def __init__(self, password: Password, host: str) -> None:
        self._password, self._host = password, host
        self._changed = threading.Condition()
        self._asked = self._sent = self._ended = self._turn = False
        self._seen = b""
        self.passed = self.refused = False

    def __enter__(self) -> None:
        password = self._password
        if not password.accepted:
            password.turn.acquire()
            self._turn = True
        if self._host in password.refused or (password.refused and not password.accepted):
            self._release()
            raise self.refusal()
        if password.accepted:
            self._release()

    def __exit__(self, *_: object) -> None:
        self.end()
        self._release()

    def answer(self) -> Iterator[bytes]:
        """The input for sudo: the password when it asks. Ends when sudo accepts it or the command ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self.passed or self._ended)
            if not self._asked or self.passed or self._ended:
                return
            self._sent, self._seen = True, b""
        yield self._password.line
        with self._changed:
            self._changed.wait_for(lambda: self.passed or self.refused or self._ended)

    def hear(self, chunk: bytes) -> None:
        """Read a chunk of standard error, where sudo prompts and rejects."""
        with self._changed:
            self._seen = (self._seen + chunk)[-4096:]
            if not self._sent:
                self._asked = self._asked or bool(_ASKS.search(self._seen))
            elif not self.passed and (_REFUSES.search(self._seen) or _ASKS.search(self._seen)):
                self.refused = True
                self._password.refused.add(self._host)
            self._changed.notify_all()

    def ready(self) -> None:
        """Called when root's program runs: sudo is done."""
        with self._changed:
            self.passed = True
            if self._sent:
                self._password.accepted = True
            self._changed.notify_all()
        self._release()

    def end(self) -> None:
        """Called when the command has ended; its standard error may still arrive."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def refusal(self) -> PasswordRefused:
        """The error for this host, which names the host that rejected the password."""
        elsewhere = next(iter(self._password.refused - {self._host}), None)
        if self._host in self._password.refused or elsewhere is None:
            return PasswordRefused(
                self._host, "sudo does not accept the password", hint="Run it again with the right one."
            )
        return PasswordRefused(
            self._host,
            f"sudo on {elsewhere} does not accept the password, so it was not tried here",
            hint="Run it again with the right one.",
        )

    def _release(self) -> None:
        with self._changed:
            if self._turn:
                self._turn = False
                self._password.turn.release()
