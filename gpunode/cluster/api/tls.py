"""TLS with one API server."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True, slots=True)
class Trust:
    """What the API server proves itself by. `authorities`: PEM; None: those that this machine trusts."""

    verified: bool
    authorities: bytes | None

    def context(self, certificate: bytes | None = None, key: bytes | None = None) -> ssl.SSLContext:
        """A context that shows this client certificate, where there is one. Raises OSError or ValueError for parts that are no PEM.

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
                context.load_verify_locations(path / "ca")
            if certificate is not None:
                (path / "certificate").write_bytes(certificate)
                (path / "key").write_bytes(key or b"")
                context.load_cert_chain(path / "certificate", None if key is None else path / "key")
        return context


def _settle(context: ssl.SSLContext) -> None:
    """Name the protocol once. urllib3 names it again for each connection, which frees the old name; a connection that another
    thread begins at that moment, for which Python lets go of its lock, would send what lies there then: the server ends the
    handshake with `decode error`, once in some thousand (Python 3.11, OpenSSL 3.0)."""
    context.set_alpn_protocols(["http/1.1"])
    context.set_alpn_protocols = _kept  # type: ignore[method-assign]


def _kept(alpn_protocols: Iterable[str]) -> None:
    """They are those of before."""
