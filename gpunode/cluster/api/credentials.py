"""Whether a kubeconfig's credentials are still valid, by this machine's clock. The API server decides by its own."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpunode.local import files as localfile

KEY = "BearerToken"  # the client library's


def ended(configuration: Any) -> str:
    """A sentence about a client certificate or token that has ended; "" where none has, or it is not known."""
    now = datetime.now(timezone.utc)
    ends = (
        ("client certificate", _certificate(configuration.cert_file)),
        ("token", _token(str((configuration.api_key or {}).get(KEY) or ""))),
    )
    return " ".join(
        f"Its {what} ended on {end:%Y-%m-%d %H:%M} UTC." for what, end in ends if end and end < now
    )


def _certificate(path: str | None) -> datetime | None:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(localfile.read(Path(path or ""))).not_valid_after_utc
    except (OSError, ValueError):  # TLS says what is wrong with it
        return None


def _token(header: str) -> datetime | None:
    """When a token that says so, a JWT, ends."""
    parts = header.rpartition(" ")[2].split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(float(claims["exp"]), timezone.utc)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
