"""Checks host keys against known_hosts files, as strictly as ssh or stricter."""

import base64
import fcntl
import hmac
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from gpunode.errors import NoConnection
from gpunode.host.failures import fingerprint, unsupported
from gpunode.host.ssh.config import Target
from gpunode.local import files as localfile

KNOWN = "known_hosts"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a known_hosts file. `marker`: "", "@cert-authority" or "@revoked"."""

    marker: str
    kind: str
    blob: bytes
    place: str  # FILE:LINE


class KnownHosts:
    """The known_hosts files of a run, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _File] = {}

    def kinds(self, target: Target) -> set[str]:
        """The types of a host's known keys: it should present one of them."""
        return {line.kind for line in self._lines(target, target.known_as) if not line.marker}

    def check(self, target: Target, key: paramiko.PKey, ip: str | None) -> None:
        """Raise NoConnection unless the key is known for the host, or new and may be stored."""
        if self._proves(target, key, ip):
            return
        if target.check == "off" and not target.proven:
            return
        bare = target.address.lower()
        names = [target.known_as] if target.alias is not None else [target.known_as, bare]
        for line in (line for name in names for line in self._lines(target, name)):
            if line.marker == "@cert-authority":
                raise unsupported(
                    f"{target.known_as} needs a host certificate ({line.place}), which gpunode's client does not check",
                    otherwise=f"Or {_by_scan(target, 'a')}; a line with the host's own key is enough.",
                )
        if target.proven:
            raise NoConnection(
                f"{target.place}: its host key {fingerprint(key.get_name(), key.asbytes())} is in no known_hosts file, and gpunode sends a "
                "password only to known hosts",
                hint=f"Connect once with `{target.by_hand}` and compare the fingerprint; or {_by_scan(target, 'a')}.",
                code="host-key-unknown",
            )
        if target.check == "strict":
            files = " or ".join(map(str, target.known_hosts))
            raise NoConnection(
                f"{target.place}: its host key {fingerprint(key.get_name(), key.asbytes())} is not in {files or 'any known_hosts file'}",
                hint=f"{_by_scan(target)}.",
                code="host-key-unknown",
            )
        if not target.known_hosts or re.search(r"[]@?*#[|'\"\\\s]", target.alias or target.address):
            raise NoConnection(
                f"{target.place}: its host key {fingerprint(key.get_name(), key.asbytes())} is new, and there is no file to store it in",
                hint="Set `ssh.known_hosts`, or UserKnownHostsFile in ssh's configuration.",
                code="host-key-unknown",
            )
        self._write(target, key, ip)

    def _proves(self, target: Target, key: paramiko.PKey, ip: str | None) -> bool:
        """True for a known key, False for a new one. Raises NoConnection for a changed or revoked key."""
        blob = key.asbytes()
        if (target.check != "off" or target.proven) and (place := self._revoked(target, blob)):
            raise NoConnection(
                f"{target.place}: its host key {fingerprint(key.get_name(), key.asbytes())} is revoked in {place}",
                hint="This may be an attack. If not, give the host a new key.",
                code="host-key-revoked",
            )
        if not self._holds(target, target.known_as, key):
            bare = self._lines(target, target.address.lower()) if target.alias is None else []
            return any(line.blob == blob and not line.marker for line in bare)
        if target.check_ip and ip and ip != target.address:
            self._holds(target, ip if target.port == 22 else f"[{ip}]:{target.port}", key)
        return True

    def _holds(self, target: Target, name: str, key: paramiko.PKey) -> bool:
        """True if the files have the key for this name. Raises NoConnection if they have only other keys."""
        lines = [line for line in self._lines(target, name) if not line.marker]
        if any(line.blob == key.asbytes() for line in lines):
            return True
        if lines:
            file, _, number = lines[0].place.rpartition(":")
            shown = f"'{name}'" if "[" in name else name
            raise NoConnection(
                f"its host key changed: {target.place} now shows {fingerprint(key.get_name(), key.asbytes())}, known is "
                f"{fingerprint(lines[0].kind, lines[0].blob)} ({file}, line {number})",
                hint=f"If it was reinstalled, remove the old key with `ssh-keygen -f {file} -R {shown}` and run again; "
                "if not, this may be an attack.",
                code="host-key-changed",
            )
        return False

    def _lines(self, target: Target, name: str) -> list[Line]:
        files = (*target.known_hosts, *target.global_known_hosts)
        return [line for file in files for line in self._file(file).lines(name)]

    def _revoked(self, target: Target, blob: bytes) -> str | None:
        """The file that revokes a key, for any host; None if none does."""
        for file in (*target.known_hosts, *target.global_known_hosts):
            if blob in self._file(file).revoked:
                return str(file)
        if target.revoked is None:
            return None
        data = _read(target.revoked, "RevokedHostKeys")
        if data.startswith(b"SSHKRL"):
            raise unsupported(
                f"{target.revoked} (RevokedHostKeys) is a key revocation list in KRL format, which gpunode's client cannot read",
                otherwise="Or set RevokedHostKeys to a file with one public key per line.",
            )
        return str(target.revoked) if base64.b64encode(blob) in data.split() else None

    def _file(self, path: Path) -> "_File":
        with self._lock:
            if path not in self._files:
                self._files[path] = _File(path, _read(path, KNOWN).decode(errors="replace"))
            return self._files[path]

    def _write(self, target: Target, key: paramiko.PKey, ip: str | None) -> None:
        """Append the key to the first file; the rest of the file stays as it is."""
        path, name = target.known_hosts[0], target.known_as
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a+", errors="replace") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read()
            with self._lock:
                if self._files[path].text != before:  # another process wrote it, perhaps for the same host
                    self._files[path] = _File(path, before)
            if self._proves(target, key, ip):
                return
            newline = "" if not before or before.endswith("\n") else "\n"
            shown = paramiko.HostKeys.hash_host(name) if target.hash_names else name
            added = f"{newline}{shown} {key.get_name()} {key.get_base64()}\n"
            file.write(added)
            with self._lock:
                self._files[path].add(added)


def _read(path: Path, what: str) -> bytes:
    """A file's bytes; none where known hosts are missing. Raises NoConnection where it cannot be read."""
    try:
        return localfile.read(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and what == KNOWN:
            return b""
        raise NoConnection(
            f"{path} ({what}) cannot be read: {error.strerror}",
            hint="Set `ssh.known_hosts` to a file, or fix ssh's configuration.",
        ) from error


class _File:
    """A known_hosts file, indexed by host names. Lines that ssh cannot use are skipped."""

    def __init__(self, path: Path, text: str) -> None:
        self.text = ""
        self.revoked: set[bytes] = set()
        self._path = path
        self._exact: dict[str, list[Line]] = {}
        self._patterns: list[tuple[re.Pattern[str], re.Pattern[str], Line]] = []
        self._hashed: list[tuple[bytes, bytes, Line]] = []
        self.add(text)

    def add(self, text: str) -> None:
        first = self.text.count("\n") + 1
        self.text += text
        for number, fields in enumerate((line.split() for line in text.split("\n")), first):
            marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
            if (
                len(fields) < 3
                or fields[0].startswith("#")
                or marker not in ("", "@cert-authority", "@revoked")
            ):
                continue
            try:
                blob = base64.b64decode(fields[2], validate=True)
                self._add(fields[0], Line(marker, fields[1], blob, f"{self._path}:{number}"))
            except ValueError:  # includes binascii.Error
                continue

    def lines(self, name: str) -> list[Line]:
        """The lines for a host, unordered, without @revoked ones."""
        known = list(self._exact.get(name, ()))
        known += [line for yes, no, line in self._patterns if yes.fullmatch(name) and not no.fullmatch(name)]
        encoded = name.encode()
        known += [
            line
            for salt, digest, line in self._hashed
            if hmac.compare_digest(hmac.digest(salt, encoded, "sha1"), digest)
        ]
        return [line for line in known if _usable(line)]

    def _add(self, names: str, line: Line) -> None:
        if line.marker == "@revoked":
            self.revoked.add(line.blob)
        elif names.startswith("|"):
            _, version, salt, digest = names.split("|")
            if version == "1":
                self._hashed.append((base64.b64decode(salt), base64.b64decode(digest), line))
        elif re.search(r"[*?!]", names):
            patterns = names.lower().split(",")
            negated = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
            self._patterns.append((_any(set(patterns) - {f"!{p}" for p in negated}), _any(negated), line))
        else:
            for name in names.lower().split(","):
                self._exact.setdefault(name, []).append(line)


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    """One regular expression for several of ssh's patterns, which have only `*` and `?`."""
    return re.compile(
        "|".join(re.escape(word).replace(r"\*", ".*").replace(r"\?", ".") for word in patterns) or "(?!)"
    )


def _usable(line: Line) -> bool:
    """True if its key is complete. Types that paramiko does not know count: the host should present that key."""
    try:
        paramiko.PKey.from_type_string(line.kind, line.blob)
    except UnknownKeyType:
        name = line.kind.encode()
        return line.blob.startswith(len(name).to_bytes(4, "big") + name)
    except Exception:  # noqa: BLE001 - a key that is cut off raises what its parser happens to
        return False
    return True


def _by_scan(target: Target, first: str = "A") -> str:
    place = f"-p {target.port} {target.address}" if target.port != 22 else target.address
    return f"{first}dd the key that `ssh-keyscan {place}` prints, after comparing it with the host's own"
