"""Whether the cluster's API server answers this host, asked at the kubelet's address and without its identity."""

import base64
import glob
import os
import re
import socket
import ssl
from typing import Optional, Tuple
from urllib.parse import urlsplit

from gpunode.agent.system import below, line_of, run, text_of
from gpunode.agent.systemd import show_units

KUBELET = "kubelet.service"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"  # kubeadm's
SECONDS = 5.0  # for each step of a request


def answers() -> bool:
    """True if an API server outside this host answers, with any status. False also where there is none to ask."""
    if is_control_plane():
        return False  # its own one answers whatever became of the network
    path = kubeconfig()
    try:
        return asked(path, text_of(path) or "")
    except (OSError, ValueError):  # refused, cut, of another CA; an address that is none
        return False


def is_control_plane() -> bool:
    return any(
        line_of("/proc/%s/comm" % os.path.basename(os.path.dirname(path))) == "kube-apiserver"
        for path in glob.glob(below("/proc/[0-9]*/comm"))
    )


def kubeconfig() -> str:
    """The path that the kubelet is started with; kubeadm's where that is not known."""
    try:
        pid = show_units([KUBELET])[0].get("MainPID", "0")
    except OSError:
        pid = "0"
    started = (text_of("/proc/%s/cmdline" % pid) or "").replace("\0", " ")
    for text in (started, run("systemctl", "cat", "--no-pager", KUBELET).out):
        found = re.search(r"(?<![\w-])--?kubeconfig[= ]\s*[\"']*(/[^\s\"']+)", text)
        if found:
            return found.group(1)
    return KUBECONFIG


def asked(path: str, text: str) -> bool:
    """True if the server that a kubeconfig names answers over TLS, as its CA proves, and HTTP. Raises OSError, ValueError."""
    server = value(text, "server")
    url = urlsplit(server or "")
    if not url.hostname:
        return False
    with socket.create_connection((url.hostname, url.port or 443), SECONDS) as plain:
        name = value(text, "tls-server-name") or url.hostname
        with context(path, text).wrap_socket(plain, server_hostname=name) as connection:
            request = "GET /livez HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % url.netloc
            connection.sendall(request.encode())
            return connection.recv(64).startswith(b"HTTP/")


def context(path: str, text: str) -> ssl.SSLContext:
    """TLS that trusts the kubeconfig's CA. Not `create_default_context`: from Python 3.13 on it refuses older CAs."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, data = authority(path, text)
    if value(text, "insecure-skip-tls-verify") == "true":
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    elif file or data:
        made.load_verify_locations(cafile=file, cadata=data)
    else:
        made.load_default_certs()
    return made


def authority(path: str, text: str) -> Tuple[Optional[str], Optional[str]]:
    """The CA of a kubeconfig: its file, relative to the kubeconfig's, and its text."""
    data = value(text, "certificate-authority-data")
    file = value(text, "certificate-authority")
    return (
        below(os.path.join(os.path.dirname(path), file)) if file else None,
        base64.b64decode(data).decode() if data else None,
    )


def value(text: str, key: str) -> Optional[str]:
    """The first value of a key in YAML or JSON: the kubelet's kubeconfig names one cluster."""
    found = re.search(r"(?m)(?:^|[\s{,\"'-])%s[\"']?\s*:\s*[\"']?([^\s\"',}]+)" % re.escape(key), text)
    return found.group(1) if found else None
