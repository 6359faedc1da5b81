"""The keys that sign NVIDIA's packages: fetched, or read from a file, and checked against the fingerprints of the tables."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpunode import __version__
from gpunode.errors import GpunodeError, WrongKey
from gpunode.local import files as localfile
from gpunode.local.streams import run_within
from gpunode.packages import signing
from gpunode.packages.repositories import WHOLE, Signed, is_trusted

SECONDS = 20.0  # without an answer
WHOLE_SECONDS = 60.0  # for all of it
ADDRESSES = ("http://", "https://")
LARGEST = 64 * 1024  # bytes; NVIDIA's keys have some 2 KiB


@dataclass(frozen=True, slots=True)
class Key:
    """An armoured key, and its whole fingerprint."""

    text: str
    fingerprint: str


def read_key(source: Signed, place: str = "", trusted: Collection[str] = ()) -> Key:
    """The key of a repository, from `place` (an address or a file; "": NVIDIA's own). `trusted`: whole fingerprints that the user
    trusts; they count where the tables have only the end of one.

    Raises WrongKey, GpunodeError where none can be read.
    """
    where = place or source.key_uri
    way = "Check that address, or" if place else "Without internet name a mirror's address, or"
    hint = f"{way} bring the key as a file: `--{source.purpose} PLACE`."
    text = _fetch(where, hint) if where.startswith(ADDRESSES) else _read(Path(where))
    try:
        actual = signing.fingerprint(text)
    except ValueError as error:
        raise WrongKey(f"{where} is no key: {error}", hint="Name the key's own address or file.") from error
    if is_trusted(actual, source.fingerprint, trusted):
        return Key(text, actual)
    known = next((full for full in trusted if full.endswith(source.fingerprint)), source.fingerprint)
    if actual.endswith(known):
        raise WrongKey(
            f"the key at {where} has the fingerprint {actual}; gpunode knows only that NVIDIA's ends with "
            f"{source.fingerprint}. A forged key can have the same end",
            hint="Compare all 40 digits with a source of your own, such as a host that has the key already (`rpm -qi gpg-pubkey`). "
            f"If they are the same, run again with `--fingerprint {actual}`.",
            text=text,
            fingerprint=actual,
        )
    verb = "is" if len(known) == WHOLE else "ends with"
    local = not where.startswith(ADDRESSES)
    other = (
        "the file holds another key: bring NVIDIA's" if local else "another server answers at that address"
    )
    raise WrongKey(
        f"{where} is not the key of {source.uri}: its fingerprint is {actual}, NVIDIA's {verb} {known}",
        hint=f"If NVIDIA has changed its key, use a newer gpunode; else {other}."
        + (
            " --fingerprint does not change that: gpunode knows the whole one."
            if trusted and len(source.fingerprint) == WHOLE
            else ""
        ),
    )


def _fetch(address: str, hint: str) -> str:
    """The text at this address; by $HTTPS_PROXY where it is set."""
    from http.client import HTTPException  # only here: a plan must not wait for these imports
    from urllib.request import Request, urlopen

    request = Request(address, headers={"User-Agent": f"gpunode/{__version__}"})  # noqa: S310 (http or https)

    def read() -> bytes:
        with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            data: bytes = answer.read(LARGEST)
            return data

    try:
        text = run_within(WHOLE_SECONDS, read).decode("ascii", "replace")
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", "") or error
        words = getattr(why, "strerror", "") or why
        raise GpunodeError(f"{address} cannot be fetched: {words}", hint=hint) from error
    return text


def _read(path: Path) -> str:
    try:
        return localfile.read(path)[:LARGEST].decode("ascii", "replace")
    except OSError as error:
        raise GpunodeError(
            f"{path} cannot be read: {error.strerror}", hint="Name a file or an address."
        ) from error
