"""An SSH agent for tests."""

import base64
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import paramiko


def _fido() -> str:
    message = paramiko.Message()
    message.add_string("sk-ssh-ed25519@openssh.com")
    message.add_string(bytes(range(32)))
    message.add_string("ssh:")
    return f"sk-ssh-ed25519@openssh.com {base64.b64encode(message.asbytes()).decode()}"


FIDO = _fido()  # the public half of a key on a device


class Agent:
    """A context in which an agent holds keys; without keys there is none."""

    def __init__(self, place: Path, keys: Sequence[Path], monkeypatch) -> None:
        self._place, self._keys, self._monkeypatch = place, keys, monkeypatch
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> None:
        if not self._keys:
            return
        self._process = subprocess.Popen(["ssh-agent", "-D", "-a", self._place], stdout=subprocess.DEVNULL)
        try:
            while not self._listens():
                assert self._process.poll() is None
            self._monkeypatch.setenv("SSH_AUTH_SOCK", str(self._place))
            subprocess.run(["ssh-add", "-q", *self._keys], check=True)
        except BaseException:
            self.__exit__()
            raise

    def _listens(self) -> bool:
        """Its socket is there a moment before it listens."""
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self._place)) == 0

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
