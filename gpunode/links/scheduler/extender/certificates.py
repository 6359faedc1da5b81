"""Certificates for the scheduler and the extender, which trust each other by a CA whose key is not kept."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = "gpunode-share", "gpunode-share-scheduler"  # names in the certificates
YEARS, RENEW = timedelta(days=3650), timedelta(days=365)
EARLY = timedelta(days=1)  # valid before they are made: other machines' clocks may be behind
FILES = ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")


def made() -> dict[str, str]:
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


def usable(data: Mapping[str, str] | None) -> bool:
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
