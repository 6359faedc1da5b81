"""The cluster's certificates and the kubeconfigs of those who hold one."""

from __future__ import annotations

import base64
from pathlib import Path

from .process import run
from .slot import Slot

# name -> subject, what the certificate is for
_CERTIFICATES = {
    "apiserver": ("/CN=kube-apiserver", "serverAuth"),
    "apiserver-kubelet-client": ("/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth"),
    "controller-manager": ("/CN=system:kube-controller-manager", "clientAuth"),
    "scheduler": ("/CN=system:kube-scheduler", "clientAuth"),
    "admin": ("/O=system:masters/CN=kubernetes-admin", "clientAuth"),
    "nobody": ("/CN=nobody", "clientAuth"),  # is known, may do nothing
    "modern": ("/O=system:nodes/CN=system:node:modern", "clientAuth"),
    "legacy": ("/O=system:nodes/CN=system:node:legacy", "clientAuth"),
}


def ensure(slot: Slot) -> Path:
    """The cluster's certificates, laid out as kubeadm names them; made on the first start."""
    keys = folder(slot)
    if (keys / "complete").exists():
        return keys
    keys.mkdir(parents=True, exist_ok=True)
    curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]
    run(["openssl", *curve, f"{keys}/sa.key"])
    run(["openssl", *curve, f"{keys}/ca.key"])
    ca = [
        "-x509",
        "-new",
        "-key",
        f"{keys}/ca.key",
        "-subj",
        "/CN=kubernetes",
        "-days",
        "3650",
    ]
    usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    run(["openssl", "req", *ca, *usage, "-out", f"{keys}/ca.crt"])
    for name, (subject, purpose) in _CERTIFICATES.items():
        run(["openssl", *curve, f"{keys}/{name}.key"])
        query = ["-new", "-key", f"{keys}/{name}.key", "-subj", subject, "-out", f"{keys}/{name}.csr"]
        run(["openssl", "req", *query])
        names = (
            f"IP:{slot.gateway},IP:10.96.0.1,DNS:kubernetes.default.svc"
            if name == "apiserver"
            else f"DNS:{name}"
        )
        (keys / f"{name}.ext").write_text(f"extendedKeyUsage={purpose}\nsubjectAltName={names}\n")
        by = ["-CA", f"{keys}/ca.crt", "-CAkey", f"{keys}/ca.key", "-CAcreateserial", "-days", "3650"]
        which = ["-in", f"{keys}/{name}.csr", "-extfile", f"{keys}/{name}.ext", "-out", f"{keys}/{name}.crt"]
        run(["openssl", "x509", "-req", *by, *which])
    (keys / "complete").touch()
    return keys


def kubeconfig(slot: Slot, user: str) -> Path:
    """A kubeconfig of one user of the PKI, complete in itself."""
    keys = ensure(slot)

    def data(name: str) -> str:
        return base64.b64encode((keys / name).read_bytes()).decode()

    path = keys / f"{user}.conf"
    path.write_text(
        f"""apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: {slot.server}
    certificate-authority-data: {data("ca.crt")}
users:
- name: {user}
  user:
    client-certificate-data: {data(f"{user}.crt")}
    client-key-data: {data(f"{user}.key")}
contexts:
- name: lab
  context: {{cluster: lab, user: {user}}}
current-context: lab
"""
    )
    path.chmod(0o600)
    return path


def folder(slot: Slot) -> Path:
    return slot.state / "pki"
