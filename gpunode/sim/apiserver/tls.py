"""A certificate for an API on this machine; clients trust it only through its kubeconfig."""

import ssl
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ADDRESS = "127.0.0.1"


def server(path: Path) -> tuple[ssl.SSLContext, str]:
    """TLS for a server at ADDRESS, with a new key kept in `path`, and the certificate as PEM text."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "simulated")])
    now, public = datetime.now(timezone.utc), key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder(name, name, public, x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(ADDRESS))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = certificate.public_bytes(serialization.Encoding.PEM).decode()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_text(secret.decode() + text, encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, text
