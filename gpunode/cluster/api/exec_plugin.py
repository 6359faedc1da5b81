"""A kubeconfig's credential plugin: a program that prints a token or a certificate. It has a deadline, also when it asks.

The client library waits for it without end, and reports a failure only in its log.
source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

import json
import os
import re
import selectors
import shlex
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpunode.errors import ClusterError

PATIENCE, ASKING = 60.0, 300.0  # seconds for its answer; where a user may have to log in
MOST, SHOWN = 8 << 20, 2000  # bytes of its answer; characters of its errors that are repeated
# Before its end a credential is no longer used; but for half of the time that it has at least
SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Credential:
    """A plugin's answer. `ends`: None if it has none."""

    token: str = field(repr=False)
    certificate: str
    key: str = field(repr=False)
    ends: datetime | None

    @property
    def pair(self) -> tuple[bytes, bytes] | tuple[None, None]:
        """Certificate and key; None where one is missing."""
        both = self.certificate and self.key
        return (self.certificate.encode(), self.key.encode()) if both else (None, None)


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """An `exec` section. `where` names it in messages: file and context; relative paths are of `folder`."""

    where: str
    section: Mapping[str, Any]
    cluster: Mapping[str, Any]
    folder: Path

    @property
    def command(self) -> list[str]:
        return [str(self.section.get("command") or ""), *map(str, self.section.get("args") or ())]

    def run(self) -> Credential:
        """Its answer. Raises ClusterError where it has none in time, fails, or prints something else."""
        asks = self.section.get("interactiveMode") != "Never" and sys.stdin.isatty()
        patience = ASKING if asks else PATIENCE
        added = {str(item["name"]): str(item["value"]) for item in self.section.get("env") or ()}
        environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(self._info(asks))}
        try:
            process = subprocess.Popen(
                self.command,
                stdin=None if asks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if asks else subprocess.PIPE,
                cwd=self.folder,
                env=environment,
                start_new_session=not asks,  # so that all of it can be ended; but a terminal belongs to its session
            )
        except (OSError, ValueError) as error:  # a NUL in its words
            hint = self.section.get("installHint") if isinstance(error, FileNotFoundError) else None
            raise self._failure(str(error), *([str(hint).strip()] if hint else ())) from error
        with process:  # waits for its end
            try:
                out, err = _read_output(process, patience)
            except BaseException as error:  # Ctrl-C, too: it does not reach a group of its own
                _end(process, grouped=not asks)
                if isinstance(error, OverflowError):
                    raise self._failure(str(error)) from error
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ClusterError(
                        f"{self.where} has a credential plugin that has not answered within {patience:g} seconds: `{shlex.join(self.command)}`",
                        hint="It was ended. Run it by hand: it may wait for a login, a prompt or a server that is away; then run gpunode again.",
                    ) from error
                raise
        if process.returncode:
            printed = "its output is above" if asks else err.strip()[-SHOWN:]
            no_input = "" if asks else " gpunode gives it no input: if it asks for a login, log in first."
            raise self._failure(
                f"it ended with status {process.returncode}{printed and f': {printed}'}{'' if printed or asks else '.'}{'' if printed else no_input}",
                *([no_input.strip()] if printed and no_input else ()),
            )
        return self._read(out)

    def context(self, trust: "Trust", credential: Credential) -> ssl.SSLContext:
        """TLS with the certificate that it answered. Raises ClusterError where that cannot be read."""
        try:
            return trust.context(*credential.pair)
        except (OSError, ValueError) as error:
            raise self._failure(f"a certificate or key of its answer cannot be read: {error}") from error

    def _info(self, asks: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": asks}
        if self.section.get("provideClusterInfo"):
            name = "client.authentication.k8s.io/exec"
            known = {key: value for key, value in self.cluster.items() if key != "extensions"}
            own = [
                extension["extension"]
                for extension in self.cluster.get("extensions") or ()
                if extension.get("name") == name
            ]
            spec["cluster"] = {**known, **({"config": own[0]} if own else {})}
        return {"apiVersion": self.section.get("apiVersion"), "kind": "ExecCredential", "spec": spec}

    def _read(self, text: str) -> Credential:
        try:
            answer = json.loads(text)
            status = answer["status"]
            token, certificate = status.get("token") or "", status.get("clientCertificateData") or ""
            key, end = status.get("clientKeyData") or "", status.get("expirationTimestamp")
            ends = _time(end) if end else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._failure("it did not print an ExecCredential with a status") from error
        if answer.get("apiVersion") != self.section.get("apiVersion"):
            raise self._failure(
                f"it answered in {answer.get('apiVersion')}, and the kubeconfig asks for {self.section.get('apiVersion')}"
            )
        if not token and not (certificate and key):
            raise self._failure("its answer has neither a token nor a certificate with its key")
        return Credential(token, certificate, key, ends)

    def _failure(self, why: str, *more: str) -> ClusterError:
        hint = f"Run it by hand (`{shlex.join(self.command)}`), or log in again with the tool it belongs to."
        return ClusterError(
            f"{self.where}: its credential plugin failed: {why}", hint="\n".join([hint, *more])
        )


class Login:
    """The credentials for the API server, renewed before they expire and when they are refused. For one thread at a time, but `valid`.

    `tls`: None for plain HTTP; another context once another certificate is shown.
    """

    def __init__(
        self, plugin: ExecPlugin, credential: Credential, trust: "Trust | None", tls: ssl.SSLContext | None
    ) -> None:
        self._plugin, self._credential, self._trust, self.tls = plugin, credential, trust, tls
        self._due = _due_time(credential)

    @property
    def valid(self) -> Credential | None:
        """The last credential; None if it has ended."""
        kept = self._credential
        return kept if kept.ends is None or kept.ends > datetime.now(timezone.utc) else None

    def renew(self, refused: Credential | None = None) -> Credential:
        """The credential to use now; if the plugin has one, another than `refused`. Raises ClusterError as the plugin does, but
        keeps a credential that has not ended: it asks again after half of the time that is left."""
        due = self._due is not None and self._due <= datetime.now(timezone.utc)
        if due or refused is self._credential:
            try:
                after = self._plugin.run()
                if self._trust and after.pair != self._credential.pair:
                    self.tls = self._plugin.context(self._trust, after)
            except ClusterError:
                if refused is self._credential or self.valid is None:
                    raise
                self._due = _due_time(self._credential)
            else:
                self._credential, self._due = after, _due_time(after)
        return self._credential


def _due_time(credential: Credential) -> datetime | None:
    """When to ask for another credential. Some live for less than SKEW, and some plugins return the same until its end."""
    now = datetime.now(timezone.utc)
    return credential.ends and max(credential.ends - SKEW, now + (credential.ends - now) / 2)


def _time(text: str) -> datetime:
    """RFC 3339, whose fractions Python 3.10 reads in two lengths alone."""
    read = datetime.fromisoformat(re.sub(r"\.\d+", "", text).replace("Z", "+00:00"))
    return read if read.tzinfo else read.replace(tzinfo=timezone.utc)


def _read_output(process: subprocess.Popen[bytes], patience: float) -> tuple[str, str]:
    """Its output on stdout and stderr until both end, if they are pipes. Raises TimeoutExpired, and OverflowError for more
    than MOST bytes."""
    deadline = time.monotonic() + patience
    outputs: list[bytearray] = []
    with selectors.DefaultSelector() as ready:
        for stream in (process.stdout, process.stderr):
            outputs.append(bytearray())
            if stream is not None:
                ready.register(stream, selectors.EVENT_READ, outputs[-1])
        while ready.get_map():
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(process.args, patience)
            for key, _ in ready.select(left):
                chunk = os.read(key.fd, 1 << 16)
                key.data.extend(chunk)
                if not chunk:
                    ready.unregister(key.fileobj)
                elif len(key.data) > MOST:
                    raise OverflowError(f"it prints more than {MOST >> 20} MiB")
    process.wait(max(0, deadline - time.monotonic()))
    return outputs[0].decode("utf-8", "replace"), outputs[1].decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes], *, grouped: bool) -> None:
    """Kill it, with its group where it has one of its own. Other processes that hold its output stay."""
    with suppress(ProcessLookupError, PermissionError):
        if grouped:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust in the API server. `authorities`: PEM; None: those that this machine trusts."""

    verified: bool
    authorities: bytes | None

    def context(self, certificate: bytes | None = None, key: bytes | None = None) -> ssl.SSLContext:
        """A context that shows this client certificate, where there is one. Raises OSError, or ValueError for parts that cannot be used.

        Python reads a key from files alone: they are deleted at once.
        """
        from urllib3.util.ssl_ import create_urllib3_context

        context = create_urllib3_context(cert_reqs=None if self.verified else ssl.CERT_NONE)
        _settle(context)
        with TemporaryDirectory(prefix="gpunode-") as folder:
            path = Path(folder)
            if self.authorities is None:
                context.load_default_certs()
            else:
                (path / "ca").write_bytes(self.authorities)
                try:
                    context.load_verify_locations(path / "ca")
                except ssl.SSLError:
                    raise ValueError("the certificate-authority is no certificate in PEM") from None
            if certificate is not None:
                (path / "certificate").write_bytes(certificate)
                (path / "key").write_bytes(key or b"")
                file = None if key is None else path / "key"
                try:
                    context.load_cert_chain(path / "certificate", file, _passphrase)
                except ssl.SSLError as error:
                    raise ValueError(_why_unusable(certificate, error)) from None
        return context


def _passphrase() -> str:
    """In place of OpenSSL's question at the terminal, which would wait."""
    raise ValueError(
        "the client key has a passphrase, which gpunode does not ask for; `openssl pkey` writes it without one"
    )


def _why_unusable(certificate: bytes, error: ssl.SSLError) -> str:
    from cryptography import x509

    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return "the client certificate is no certificate in PEM"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the client key belongs to another certificate"
    if error.reason:
        return f"the client certificate and its key are refused here: {error.reason}"
    return "the client key is no private key in PEM"


def _settle(context: ssl.SSLContext) -> None:
    """Name the protocol once. urllib3 names it again for each connection, which frees the old name; a connection that another
    thread begins at that moment, for which Python lets go of its lock, would send what lies there then: the server ends the
    handshake with `decode error`, once in some thousand (Python 3.11, OpenSSL 3.0)."""
    context.set_alpn_protocols(["http/1.1"])
    context.set_alpn_protocols = _ignore  # type: ignore[method-assign]


def _ignore(alpn_protocols: Iterable[str]) -> None:
    """Keep the protocols that are set."""
