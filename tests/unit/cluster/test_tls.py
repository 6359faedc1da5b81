"""A TLS context is shared by the threads of a run."""

from __future__ import annotations

import contextlib
import ssl

from gpunode.cluster.api.exec_plugin import Trust


def hello(context: ssl.SSLContext) -> bytes:
    """The first bytes that a client sends."""
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="api.example.org")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_the_protocol_is_named_once() -> None:
    """urllib3 names it for each connection: a thread that begins one meanwhile sent what lay in the memory that this freed."""
    context = Trust(verified=True, authorities=None).context()
    assert b"\x08http/1.1" in hello(context)
    context.set_alpn_protocols(["h2"])
    assert b"\x08http/1.1" in hello(context)
