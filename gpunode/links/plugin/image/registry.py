"""A base in a registry: fetched by its digest over HTTPS, as OCI's distribution specification 1.1 has it; with the
login of docker or podman, where the registry wants one.

Proxies are those of the environment; $SSL_CERT_FILE names the CA of a registry that has its own.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, build_opener

from gpunode import __version__
from gpunode.contract.typed import parse
from gpunode.errors import UsageError
from gpunode.links.plugin.image.base import CHUNK, LARGEST, fits
from gpunode.links.plugin.image.base import MANIFESTS as MOST
from gpunode.local import files as localfile
from gpunode.local.streams import run_within

SECONDS = 30.0  # without an answer
WHOLE_SECONDS = 120.0  # until an answer begins, with its token and redirects; until a whole manifest is here
SLOWEST = 4 << 10  # bytes a second of a blob, on average
PATIENCE = 60.0  # seconds, before that average counts
OCI, DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution.manifest"
MANIFESTS = f"{OCI}.index.v1+json, {OCI}.manifest.v1+json, {DOCKER}.list.v2+json, {DOCKER}.v2+json"
# The host has a dot or a port, as in docker's references: `python` and `library/python` name no registry.
REFERENCE = re.compile(
    r"(?P<host>[\w-]+(?:\.[\w-]+)+(?::\d+)?|[\w-]+:\d+)/(?P<name>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>\w[\w.-]*))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Of skopeo's transports (containers-transports has them) and of addresses: what follows is what --base takes.
PREFIX = re.compile(r"(?P<prefix>docker://|https?://|(?:docker|oci)-archive:|oci:|dir:)(?P<rest>.+)")
# Docker Hub's names in references → where its registry answers; names without a `/` are in `library/` there.
# source: distribution/reference normalize.go; docker's registry/config.go
HUBS = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
PARAMETER = re.compile(r'(\w+)="([^"]*)"')  # of WWW-Authenticate


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry; without a tag and a digest it is `latest`."""

    host: str
    name: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.name}{tag}{digest}"

    @property
    def address(self) -> str:
        """Where its registry has it; manifests and blobs are below."""
        name = f"library/{self.name}" if self.host in HUBS and "/" not in self.name else self.name
        return f"https://{HUBS.get(self.host, self.host)}/v2/{name}"


def reference(text: str) -> Reference | None:
    """The reference that `text` is, None where it names no registry. Raises UsageError for half a digest and for one with a prefix."""
    match = REFERENCE.fullmatch(text)
    if known := PREFIX.fullmatch(text):
        image = ", with @sha256:… for the image that is meant"
        if known["prefix"].endswith(":") or "@" in text:
            image = ""
        raise UsageError(
            f"{text}: --base takes no `{known['prefix']}`", hint=f"Write --base {known['rest']}{image}."
        )
    if match is None and "@sha256:" in text:
        raise UsageError(f"{text} has no whole digest", hint="After `sha256:` it has 64 of 0-9 and a-f.")
    return Reference(**match.groupdict()) if match else None


def fetch(image: Reference, arch: str, to: Path) -> None:
    """Write what linux/`arch` needs of the image as a folder in OCI's layout, every file checked by digest.

    Raises UsageError; for a reference without a digest with the digest that it has now.
    """
    with _explain(image):
        _fetch(image, arch, to)


def _fetch(image: Reference, arch: str, to: Path) -> None:
    registry = _Registry(image)
    if image.digest is None:
        current = hashlib.sha256(registry.manifest(image.tag or "latest")).hexdigest()
        raise UsageError(
            f"{image} can be another image tomorrow: it has no digest",
            hint=f"Today it is --base {image.host}/{image.name}@sha256:{current}",
        )
    blobs = to / "blobs/sha256"
    blobs.mkdir(parents=True)
    (to / "index.json").write_text(json.dumps({"manifests": [{"digest": image.digest}]}), encoding="utf-8")
    waiting = [image.digest]
    for digest in waiting:
        if len(waiting) > MOST:
            raise ValueError(f"more than {MOST} manifests")
        text = registry.manifest(digest)
        _write(image, blobs, digest, [text], len(text))
        manifest = parse(text)
        waiting += [each["digest"] for each in manifest.get("manifests", []) if fits(each, arch)]
        for descriptor in [manifest["config"], *manifest["layers"]] if "layers" in manifest else []:
            registry.blob(blobs, descriptor["digest"], int(descriptor["size"]))


@contextmanager
def _explain(image: Reference) -> Iterator[None]:
    """What goes wrong with the registry becomes UsageError."""
    try:
        yield
    except HTTPError as error:
        error.close()
        raise UsageError(
            f"{image} cannot be fetched: {error.url.partition('?')[0]} answers {error.code} {error.reason}",
            hint=_hint(error.code),
        ) from error
    except (OSError, HTTPException) as error:
        raise UsageError(
            f"{image} cannot be fetched: {getattr(error, 'reason', '') or error}",
            hint="Name a registry reachable over HTTPS, or an archive saved elsewhere.",
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{image}: the registry's answer is no image ({error!r})", hint="Name an image."
        ) from error


class _Registry:
    """The registry's part that is about one image, and what it was given for it: a token, or the user's login."""

    def __init__(self, image: Reference) -> None:
        self._image, self._right, self._opener = image, "", build_opener()

    def manifest(self, which: str) -> bytes:
        """A manifest by tag or digest, not checked."""

        def read() -> bytes:
            with self._get(f"manifests/{which}", MANIFESTS) as answer:
                return answer.read(LARGEST)

        return run_within(WHOLE_SECONDS, read)

    def blob(self, folder: Path, digest: str, size: int) -> None:
        """Write a blob, which is `size` bytes long."""
        with run_within(WHOLE_SECONDS, lambda: self._get(f"blobs/{digest}", "*/*")) as answer:
            _write(self._image, folder, digest, _parts(answer), size)

    def _get(self, what: str, accept: str) -> HTTPResponse:
        address = f"{self._image.address}/{what}"
        try:
            return self._open(address, accept, self._right)
        except HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            kind = challenge.partition(" ")[0].lower()
            # What a registry redirects to names any address for tokens: the login is not for that.
            if error.code != 401 or kind not in ("bearer", "basic") or error.url != address:
                raise
            error.close()
            known = login(self._image.host, self._image.name)
            mine = f"Basic {known.basic}" if known and known.basic else ""
            if kind == "basic" and not mine:
                raise
            token = known.token if known else ""
            # There was none, or it has expired.
            self._right = (
                mine if kind == "basic" else self._token(dict(PARAMETER.findall(challenge)), mine, token)
            )
            return self._open(address, accept, self._right)

    def _open(self, address: str, accept: str, right: str = "", form: bytes | None = None) -> HTTPResponse:
        headers = {"Accept": accept, "User-Agent": f"gpunode/{__version__}"}
        request = Request(address, form, headers)  # noqa: S310 (https)
        if right:
            # Not for the storage that registries redirect to.
            request.add_unredirected_header("Authorization", right)
        answer: HTTPResponse = self._opener.open(request, timeout=SECONDS)
        return answer

    def _token(self, challenge: dict[str, str], mine: str, refresh: str) -> str:
        """The right that the user gets for the login `mine` or the token `refresh`, or everybody (both ""). Raises OSError where
        that would go unencrypted."""
        # source: distribution/distribution docs/content/spec/auth: token.md, oauth.md
        realm = challenge.get("realm", "")
        if not realm.startswith("https://"):
            raise OSError("its tokens do not come over HTTPS")
        query = {key: value for key, value in challenge.items() if key in ("service", "scope")}
        form = None
        if refresh:
            query |= {"grant_type": "refresh_token", "refresh_token": refresh, "client_id": "gpunode"}
            form = urlencode(query).encode()
        else:
            realm += f"{'&' if '?' in realm else '?'}{urlencode(query)}"
        with self._open(realm, "application/json", mine, form) as answer:
            document: dict[str, Any] = parse(answer.read(LARGEST))
        return f"Bearer {document.get('token') or document.get('access_token') or ''}"


def _parts(answer: HTTPResponse) -> Iterator[bytes]:
    """What comes, as it comes. Raises TimeoutError for a blob that would take for ever."""
    start, length = time.monotonic(), 0
    while part := answer.read1(CHUNK):
        yield part
        length += len(part)
        seconds = time.monotonic() - start
        if seconds > PATIENCE and length < SLOWEST * seconds:
            raise TimeoutError(f"{length} bytes came in {seconds:.0f} s")


def _write(image: Reference, folder: Path, digest: str, parts: Iterable[bytes], size: int) -> None:
    """Write a blob in parts; it stays only where size and digest are right."""
    kind, _, name = digest.partition(":")
    if kind != "sha256" or not re.fullmatch("[0-9a-f]{64}", name):
        raise ValueError(f"digest {digest}")
    hashed, length, path = hashlib.sha256(), 0, folder / name
    with path.open("wb") as file:
        for part in parts:
            hashed.update(part)
            length += len(part)
            if length > size:
                break
            file.write(part)
    if (hashed.hexdigest(), length) != (name, size):
        path.unlink()
        raise UsageError(
            f"{image} is damaged: {digest} has {length} bytes with the SHA-256 {hashed.hexdigest()}",
            hint="Try again; if it fails again, the registry or a proxy is at fault.",
        )


def _hint(code: int) -> str:
    if code in (401, 403):
        return (
            "Log in with `docker login` or `podman login`: gpunode uses their login. Or save the image (`docker save`, "
            "`skopeo copy`), and name the file."
        )
    return "Name an existing image, by its digest." if code == 404 else "Try again later."


# The user's login, as docker and podman keep it: in a file, or with a program of their protocol.
# source: docker's config.json (cli/config/configfile), containers-auth.json(5), docker-credential-helpers
NO_NAME = "<token>"  # the user's name where the secret is a token of the registry's, and no password
SPELLINGS = (("", ""), ("https://", ""), ("https://", "/v1/"), ("https://", "/v2/"))  # of a registry's name
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class Login:
    """Never shown. `basic`: as HTTP's Basic authentication has it; or else `token`, for which the registry's token service gives rights
    (OAuth 2's refresh token). `place`: the file that names it."""

    basic: str = field(repr=False)
    place: Path
    token: str = field(repr=False, default="")


def login(host: str, image: str) -> Login | None:
    """The login for this image of the registry: that of the longest path that has one, else the registry's;
    None where no user has logged in. Raises UsageError for one that cannot be read."""
    for place in filter(os.path.exists, _places()):
        try:
            kept = _read_auth(parse(localfile.text(place)), host, image)
        except UNREADABLE as error:
            # Not its words: they may have the login
            why = getattr(error, "strerror", "") or type(error).__name__
            raise UsageError(
                f"the login for {host} cannot be read from {place}: {why}",
                hint="`docker login` or `podman login` writes it again.",
            ) from None
        if any(kept):
            return Login(kept[0], place, kept[1])
    return None


def _places() -> Iterator[Path]:
    """The files that may have logins, podman's first where it is named."""
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers/auth.json")
    yield Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")


def _read_auth(known: dict[str, Any], host: str, image: str) -> tuple[str, str]:
    """user:password in base64, and a token; "" for none. Programs know no paths."""
    # docker keeps its Hub's login as https://index.docker.io/v1/, podman as docker.io
    hosts = ("index.docker.io", "docker.io") if host in HUBS else (host,)
    names = [f"{before}{each}{after}" for each in hosts for before, after in SPELLINGS]
    for name in names:
        if program := (known.get("credHelpers") or {}).get(name):
            return _ask_helper(program, name)
    parts = image.split("/")
    ends = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
    paths = [f"{each}/{end}" for end in ends for each in hosts]
    entries = known.get("auths") or {}
    store = known.get("credsStore")
    for name in (*paths, *(() if store else names)):
        entry = entries.get(name) or {}
        if token := entry.get("identitytoken"):
            return "", str(token)
        if text := entry.get("auth"):
            base64.b64decode(text, validate=True)
            return str(text), ""
    asked = ("https://index.docker.io/v1/", "docker.io") if host in HUBS else (host,)
    answers = (_ask_helper(store, name) for name in asked if store)
    return next(filter(any, answers), ("", ""))


def _ask_helper(program: str, host: str) -> tuple[str, str]:
    """What the program keeps, as `_kept`. One that knows nothing of the registry ends with 1."""
    command = [f"docker-credential-{program}", "get"]
    done = subprocess.run(command, input=host, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        return "", ""
    answer = parse(done.stdout)
    if answer.get("Username") == NO_NAME:
        return "", str(answer["Secret"])
    return base64.b64encode(f"{answer.get('Username')}:{answer.get('Secret')}".encode()).decode(), ""
