"""The cluster's certificates, laid out as kubeadm does, and the kubeconfigs of those who hold one."""

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .hosts import CONTROL_PLANE
from .process import run
from .slot import Slot

USERS = "users"  # the folder of the certificates that are only in kubeconfigs
_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]


@dataclass(frozen=True, slots=True)
class _Certificate:
    """`names`: what it is asked for by, besides localhost and the control plane's own name and address."""

    subject: str
    purpose: str
    by: str = "ca"
    names: tuple[str, ...] = ()


_AUTHORITIES = {"ca": "kubernetes", "front-proxy-ca": "front-proxy-ca", "etcd/ca": "etcd-ca"}
_ADMINISTRATOR = "/O=system:masters/CN="
_BOTH = "serverAuth,clientAuth"
_SERVICE = ("IP:10.96.0.1", *(f"DNS:kubernetes{end}" for end in ("", ".default", ".default.svc")))
_CERTIFICATES = {
    "apiserver": _Certificate("/CN=kube-apiserver", "serverAuth", names=_SERVICE),
    "apiserver-kubelet-client": _Certificate(f"{_ADMINISTRATOR}kube-apiserver-kubelet-client", "clientAuth"),
    "apiserver-etcd-client": _Certificate("/CN=kube-apiserver-etcd-client", "clientAuth", "etcd/ca"),
    "front-proxy-client": _Certificate("/CN=front-proxy-client", "clientAuth", "front-proxy-ca"),
    "etcd/server": _Certificate(f"/CN={CONTROL_PLANE.name}", _BOTH, "etcd/ca"),
    "etcd/peer": _Certificate(f"/CN={CONTROL_PLANE.name}", _BOTH, "etcd/ca"),
    "etcd/healthcheck-client": _Certificate("/CN=kube-etcd-healthcheck-client", "clientAuth", "etcd/ca"),
}
_SUBJECTS = {
    "admin": f"{_ADMINISTRATOR}kubernetes-admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "nobody": "/CN=nobody",  # is known, may do nothing
    **{name: f"/O=system:nodes/CN=system:node:{name}" for name in (CONTROL_PLANE.name, "modern", "legacy")},
}


def ensure(slot: Slot) -> Path:
    """The folder with the cluster's certificates; made on the first start."""
    keys = slot.state / "pki"
    if (keys / USERS / "complete").exists():
        return keys
    for folder in (keys / "etcd", keys / USERS):
        folder.mkdir(parents=True, exist_ok=True)
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", keys / "sa.key"])
    run(["openssl", "ec", "-in", keys / "sa.key", "-pubout", "-out", keys / "sa.pub"])
    for name, subject in _AUTHORITIES.items():
        usage = ["-subj", f"/CN={subject}", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
        files = ["-keyout", keys / f"{name}.key", "-out", keys / f"{name}.crt"]
        run(["openssl", "req", "-x509", *_CURVE, "-days", "3650", *usage, *files])
    for name, certificate in _CERTIFICATES.items():
        _sign(slot, keys, name, certificate)
    for name, subject in _SUBJECTS.items():
        _sign(slot, keys, f"{USERS}/{name}", _Certificate(subject, "clientAuth"))
    (keys / USERS / "complete").touch()
    return keys


def _sign(slot: Slot, keys: Path, name: str, certificate: _Certificate) -> None:
    own = ("DNS:localhost", "IP:127.0.0.1", f"DNS:{CONTROL_PLANE.name}", f"IP:{slot.control_plane}")
    with tempfile.TemporaryDirectory() as work:
        request, extensions = Path(work) / "request", Path(work) / "extensions"
        subject = ["-subj", certificate.subject, "-keyout", keys / f"{name}.key"]
        run(["openssl", "req", "-new", *_CURVE, *subject, "-out", request])
        names = ",".join((*own, *certificate.names))
        extensions.write_text(f"extendedKeyUsage={certificate.purpose}\nsubjectAltName={names}\n")
        authority = keys / certificate.by
        by = ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAserial", Path(work) / "serial"]
        which = ["-in", request, "-extfile", extensions, "-out", keys / f"{name}.crt"]
        run(["openssl", "x509", "-req", *by, "-CAcreateserial", "-days", "3650", *which])


def kubeconfig(slot: Slot, user: str) -> str:
    """A kubeconfig of one user of the PKI, complete in itself."""
    keys = ensure(slot)

    def data(name: str) -> str:
        return base64.b64encode((keys / name).read_bytes()).decode()

    return f"""apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: {slot.server}
    certificate-authority-data: {data("ca.crt")}
users:
- name: {user}
  user:
    client-certificate-data: {data(f"{USERS}/{user}.crt")}
    client-key-data: {data(f"{USERS}/{user}.key")}
contexts:
- name: lab
  context: {{cluster: lab, user: {user}}}
current-context: lab
"""
