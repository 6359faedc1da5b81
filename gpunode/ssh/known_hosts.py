"""Host keys: known, new, or changed."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import threading
from pathlib import Path

import paramiko

from gpunode.model import Ssh


class HostKeys(paramiko.MissingHostKeyPolicy):
    """A host key that is not in known_hosts: refused, or written down on first sight."""

    def __init__(self, ssh: Ssh, path: Path, known: paramiko.HostKeys, lock: threading.Lock) -> None:
        self._ssh, self._path, self._known, self._lock = ssh, path, known, lock

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
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
