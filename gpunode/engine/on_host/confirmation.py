"""Confirmation from outside: a restart is kept when gpunode can connect to the host again, or its API server answers."""

import glob
import json
import os
import re
import time
from typing import Any, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.files import put
from gpunode.agent.journal import sync
from gpunode.agent.machine import show_units
from gpunode.agent.record import VERSION, Run, unconfirmed_files
from gpunode.agent.system import Message, below, line_of, run, text_of

KEPT = "api-server-answered"  # code: why an unconfirmed restart was kept


def wait_for_confirmation(this: Run, unit: str) -> Message:
    """Wait for a confirmation of the unit's restart; details for its `done` message. Raises Failure: put its files back.

    The first half of the time is the operator's alone. In the second an answer of the API server is enough.
    """
    job = this.load()
    bound = float(job.get("confirm") or 0)
    if not bound:
        return {}
    this.send({"type": "confirm", "n": this.n, "unit": unit, "seconds": bound})
    begun = time.monotonic()
    while not os.path.exists(below(confirmed_file(this, this.n))):
        waited = time.monotonic() - begun
        if waited > bound:
            sentence = (
                "%s works, but for %d seconds gpunode could not connect to this host again, nor did an "
                "API server answer it" % (unit, bound)
            )
            raise Failure("cut-off", sentence)
        if waited < bound / 2:
            time.sleep(0.05)
        elif api_server_answers():
            record_unconfirmed(this, unit, job["by"])
            return {"outside": KEPT}
        else:
            time.sleep(min(1.0, bound / 20))
    return {"outside": "confirmed"}


def confirmed_file(this: Run, n: int) -> str:
    """Its presence confirms the restart of change `n`."""
    return "%s/confirmed-%d" % (this.live, n)


def record_unconfirmed(this: Run, unit: str, by: str) -> None:
    entry = {"version": VERSION, "code": KEPT, "run": this.name, "unit": unit, "by": by, "since": time.time()}
    put("%s/unconfirmed-%d.json" % (this.record, this.n), json.dumps(entry).encode(), 0o600, None, this.name)


def confirm(this: Run, n: Optional[int] = None) -> None:
    """A connection that was opened after the run's change `n` (None: after its end) confirms what came before."""
    if n is not None and os.path.isdir(below(this.live)):
        with open(below(confirmed_file(this, n)), "wb"):
            pass
    for path in map(below, unconfirmed_files(this.name)):
        os.unlink(path)
        sync(os.path.dirname(path))


KUBELET = "kubelet.service"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"  # kubeadm's
SECONDS = 5.0  # for each step of a request


def api_server_answers() -> bool:
    """True if an API server outside this host answers, with any status. False also where there is none to ask."""
    if is_control_plane():
        return False  # its own one answers whatever became of the network
    path = kubeconfig_path()
    try:
        return server_answers(path, text_of(path) or "")
    except (OSError, ValueError):  # refused, cut, of another CA; an address that is none
        return False


def is_control_plane() -> bool:
    return any(
        line_of("/proc/%s/comm" % os.path.basename(os.path.dirname(path))) == "kube-apiserver"
        for path in glob.glob(below("/proc/[0-9]*/comm"))
    )


def kubeconfig_path() -> str:
    """The path that the kubelet is started with; kubeadm's where that is not known."""
    try:
        pid = show_units([KUBELET])[0].get("MainPID", "0")
    except OSError:
        pid = "0"
    started = (text_of("/proc/%s/cmdline" % pid) or "").replace("\0", " ")
    for text in (started, run("systemctl", "cat", "--no-pager", KUBELET).out):
        match = re.search(r"(?<![\w-])--?kubeconfig[= ]\s*[\"']*(/[^\s\"']+)", text)
        if match:
            return match.group(1)
    return KUBECONFIG


def server_answers(path: str, text: str) -> bool:
    """True if the server that a kubeconfig names answers over TLS, as its CA proves, and HTTP. Raises OSError, ValueError."""
    import socket  # only here: a probe, which imports this module, needs none of it
    from urllib.parse import urlsplit

    server = kubeconfig_value(text, "server")
    url = urlsplit(server or "")
    if not url.hostname:
        return False
    with socket.create_connection((url.hostname, url.port or 443), SECONDS) as plain:
        name = kubeconfig_value(text, "tls-server-name") or url.hostname
        with tls_context(path, text).wrap_socket(plain, server_hostname=name) as connection:
            request = "GET /livez HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % url.netloc
            connection.sendall(request.encode())
            return bool(connection.recv(64).startswith(b"HTTP/"))


def tls_context(path: str, text: str) -> Any:
    """TLS that trusts the kubeconfig's CA. Not `create_default_context`: from Python 3.13 on it refuses older CAs."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, data = authority(path, text)
    if kubeconfig_value(text, "insecure-skip-tls-verify") == "true":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif file or data:
        context.load_verify_locations(cafile=file, cadata=data)
    else:
        context.load_default_certs()
    return context


def authority(path: str, text: str) -> Tuple[Optional[str], Optional[str]]:
    """The CA of a kubeconfig: its file, relative to the kubeconfig's, and its text."""
    import base64

    data = kubeconfig_value(text, "certificate-authority-data")
    file = kubeconfig_value(text, "certificate-authority")
    return (
        below(os.path.join(os.path.dirname(path), file)) if file else None,
        base64.b64decode(data).decode() if data else None,
    )


def kubeconfig_value(text: str, key: str) -> Optional[str]:
    """The first value of a key in YAML or JSON: the kubelet's kubeconfig names one cluster."""
    match = re.search(r"(?m)(?:^|[\s{,\"'-])%s[\"']?\s*:\s*[\"']?([^\s\"',}]+)" % re.escape(key), text)
    return match.group(1) if match else None
