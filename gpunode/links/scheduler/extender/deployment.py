"""Deploys the scheduler extender and removes it, and a second scheduler with it; waits until a replica leads."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import rendered
from gpunode.cluster.rights import Right
from gpunode.links.scheduler.extender import second_scheduler as second
from gpunode.links.scheduler.extender.rollout import rolled_out
from gpunode.model import PluginImage, Share
from gpunode.wording import Advice, Command

NAME = "gpunode-share"
STAYS = Advice(
    "The scheduler's configuration was not changed. The extender's objects stay, and so does the device plugin's "
    "FOLLOW_PROMISES. `",
    Command("share disable"),
    "` removes the objects; without `cluster.share` in the inventory `",
    Command("plugin deploy"),
    "` takes back the other.",
)


@dataclass(frozen=True, slots=True)
class Spec:
    """The extender's desired state in the cluster. `secret`: its certificates as a Secret has them."""

    namespace: str
    image: PluginImage
    share: Share
    secret: Mapping[str, str]

    @property
    def manifests(self) -> list[Object]:
        """In the order in which they are applied."""
        return rendered(
            "share.yaml.j2",
            namespace=self.namespace,
            image=self.image.reference,
            image_id=self.image.image_id,
            pull=self.image.pull,
            loaded=self.image.archive is not None,
            resource=self.share.resource,
            policy=self.share.policy,
            certificates=dict(self.secret),
            certificates_id=self.certificates_id,
        )

    @property
    def certificates_id(self) -> str:
        """Changes with the certificates."""
        return hashlib.sha256(json.dumps(dict(self.secret)).encode()).hexdigest()[:16]


def spec(api: Api, namespace: str, image: PluginImage, share: Share) -> Spec:
    """The desired state, with the certificates that are there, or new ones where they cannot be used any more."""
    live = api.get("Secret", NAME, namespace)
    data = None if live is None else live.get("data")
    secret = data if data and are_usable(data) else make_certificates()
    return Spec(namespace, image, share, {name: secret[name] for name in FILES})


def plan(api: Api, wanted: Spec) -> tuple[Difference, ...]:
    """What `deploy` would change. A second scheduler that is not wished for any more is removed."""
    return apply.diff(api, wanted.manifests, _surplus(wanted))


def deploy(api: Api, wanted: Spec, *, seconds: float, tell: OnProgress) -> tuple[Difference, ...]:
    """Apply it and wait until a replica of this version leads. Raises ClusterError with why none does."""
    done = apply.apply(api, wanted.manifests) + apply.prune(api, wanted.manifests, _surplus(wanted))
    rolled_out(
        api,
        NAME,
        wanted.namespace,
        what="a replica of the scheduler extender to lead",
        seconds=seconds,
        tell=tell,
        hint=STAYS,
    )
    return done


def address(api: Api, namespace: str) -> str:
    """The Service's IP address, "" where there is none. Schedulers in the host's network know no cluster DNS."""
    service = api.get("Service", NAME, namespace) or {}
    return str(service.get("spec", {}).get("clusterIP") or "")


def rights_to_remove(api: Api, namespace: str) -> tuple[Right, ...]:
    """What `remove` takes."""
    own = [one for one in _own(namespace) if api.served.has(one["kind"])]
    lease = Right("delete", "leases.coordination.k8s.io", namespace)
    return (*rights.of_deletion(own), *rights.of_wait(own), lease)


def removable(api: Api, namespace: str, *, tell: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now."""
    return apply.removable(api, _own(namespace), tell=tell)


def remove(api: Api, namespace: str, *, seconds: float, tell: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` made, but the namespace, and a second scheduler. Returns the titles of what was deleted."""
    removed = apply.remove(api, _own(namespace), seconds=seconds, tell=tell)
    for name in (NAME, second.NAME):
        api.delete("Lease", name, namespace)
    return removed


def _surplus(wanted: Spec) -> list[Object]:
    return [] if wanted.share.scheduler else second.everything(wanted.namespace)


def _own(namespace: str) -> list[Object]:
    wanted = Spec(namespace, PluginImage("any"), Share(), dict.fromkeys(FILES, ""))
    return [manifest for manifest in wanted.manifests if manifest["kind"] != "Namespace"] + second.everything(
        namespace
    )


SERVER, CLIENT = "gpunode-share", "gpunode-share-scheduler"  # names in the certificates
YEARS, RENEW = timedelta(days=3650), timedelta(days=365)
EARLY = timedelta(days=1)  # valid before they are made: other machines' clocks may be behind
FILES = ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")


def make_certificates() -> dict[str, str]:
    """A new set as a Secret has it: base64 of PEM text, by file name."""
    key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("gpunode-share-ca", key, None)
    found = {"ca.crt": ca.public_bytes(serialization.Encoding.PEM)}
    for name, subject in (("tls", SERVER), ("client", CLIENT)):
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(subject, own, (ca, key))
        found[f"{name}.crt"] = certificate.public_bytes(serialization.Encoding.PEM)
        found[f"{name}.key"] = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return {name: base64.b64encode(text).decode() for name, text in found.items()}


def are_usable(data: Mapping[str, str] | None) -> bool:
    """Whether a Secret's data is such a set, and stays valid for a year."""
    if data is None or not set(FILES) <= set(data):
        return False
    try:
        found = [
            x509.load_pem_x509_certificate(base64.b64decode(data[name]))
            for name in FILES
            if name.endswith(".crt")
        ]
    except (ValueError, binascii.Error):
        return False
    return all(one.not_valid_after_utc > datetime.now(timezone.utc) + RENEW for one in found)


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    by, signer = (issuer[0].subject, issuer[1]) if issuer else (name, key)
    now, public = datetime.now(timezone.utc), key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=issuer is None, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder(by, name, public, x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + YEARS)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if issuer is not None:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH if subject == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder.sign(signer, hashes.SHA256())
