"""Host keys: known, new, or changed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import threading
from pathlib import Path

import paramiko

from gpunode.model import Ssh


class KnownHosts(paramiko.HostKeys):
    """The keys that a known_hosts file names. Paramiko's own reading ends at a line whose key is no base64.

    As with ssh, a line that cannot be used is left out, and a key that is marked as revoked proves no host, whichever
    that line names. gpunode knows no certificates: lines for their authorities are left out.
    """

    revoked: frozenset[str] = frozenset()  # the keys, in base64

    def load(self, filename: str) -> None:  # type: ignore[override]
        lines = [line.split() for line in Path(filename).read_text(errors="replace").splitlines()]
        self.revoked = frozenset(words[3] for words in lines if len(words) > 3 and words[0] == "@revoked")
        for number, words in enumerate(lines, 1):  # ssh takes any white space between them
            if len(words) < 3 or words[0][0] in "#@" or words[2] in self.revoked:
                continue
            # InvalidHostKey is no SSHException; a key that is cut off raises what its parser happens to.
            with contextlib.suppress(paramiko.hostkeys.InvalidHostKey, paramiko.SSHException, ValueError):
                if entry := paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words), number):
                    self._entries.append(entry)  # type: ignore[attr-defined]


class HostKeys(paramiko.MissingHostKeyPolicy):
    """A host key that is not in known_hosts: refused, or written down on first sight."""

    def __init__(self, ssh: Ssh, path: Path, known: KnownHosts, lock: threading.Lock) -> None:
        self._ssh, self._path, self._known, self._lock = ssh, path, known, lock

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if key.get_base64() in self._known.revoked and self._ssh.host_key_check != "off":
            raise paramiko.SSHException(f"its host key {fingerprint(key)} is revoked in {self._path}")
        if self._ssh.host_key_check == "strict":
            raise paramiko.SSHException(f"its host key {fingerprint(key)} is not in {self._path}")
        if self._ssh.host_key_check == "off":
            return
        with self._lock:  # appended, never rewritten: other entries and comments are the user's
            self._known.add(hostname, key.get_name(), key)  # this run connects again, and expects it then
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                before = file.read()
                newline = "" if not before or before.endswith("\n") else "\n"
                file.write(f"{newline}{hostname} {key.get_name()} {key.get_base64()}\n")


def fingerprint(key: paramiko.PKey) -> str:
    """A host key as OpenSSH prints it: `SHA256:…`."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"
