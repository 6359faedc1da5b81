"""The keys that sign NVIDIA's packages: fetched, or read from a file, and checked against the fingerprints of the tables."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from gpunode import __version__
from gpunode.compat import Signed
from gpunode.errors import GpunodeError
from gpunode.packages.dnf import openpgp

SECONDS = 20.0  # without an answer
LARGEST = 64 * 1024  # bytes; NVIDIA's keys have some 2 KiB


class WrongKey(GpunodeError):
    """What was found is not the key of the tables; nothing was written."""

    exit_code = 4


def key(source: Signed, place: str = "") -> str:
    """The armoured key of a repository, from `place` (an address or a file; "": NVIDIA's own).

    Raises WrongKey for another key, GpunodeError where none can be read.
    """
    where = place or source.key_uri
    text = _fetched(where) if where.startswith(("http://", "https://")) else _read(Path(where))
    try:
        found = openpgp.fingerprint(text)
    except ValueError as error:
        raise WrongKey(f"{where} is no key: {error}", hint="Name the key's own address or file.") from error
    if not found.endswith(source.fingerprint):
        raise WrongKey(
            f"{where} is not the key of {source.uri}: its fingerprint is {found}, NVIDIA's ends with {source.fingerprint}",
            hint="If NVIDIA has changed its key, use a newer gpunode; else somebody else answers at that address.",
        )
    return text


def _fetched(address: str) -> str:
    """The text at this address; by $HTTPS_PROXY where it is set."""
    request = Request(address, headers={"User-Agent": f"gpunode/{__version__}"})  # noqa: S310 (http or https)
    try:
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            data: bytes = answer.read(LARGEST + 1)
    except (URLError, OSError, ValueError) as error:
        why = getattr(error, "reason", "") or error
        raise GpunodeError(
            f"{address} cannot be fetched: {why}",
            hint="Without internet name a mirror's address, or a file that you bring: `--driver PLACE`, `--toolkit PLACE`.",
        ) from error
    return data[:LARGEST].decode("ascii", "replace")


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:LARGEST].decode("ascii", "replace")
    except OSError as error:
        raise GpunodeError(
            f"{path} cannot be read: {error.strerror}", hint="Name a file or an address."
        ) from error
