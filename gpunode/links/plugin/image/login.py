"""The user's login at a registry, as docker and podman keep it: in a file, or with a program of their protocol.

Source: docker's config.json (cli/config/configfile), containers-auth.json(5), docker-credential-helpers.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpunode.errors import UsageError
from gpunode.local import files as localfile

SECONDS = 30.0  # for a program that keeps logins
NO_NAME = "<token>"  # the user's name where the secret is a token of the registry's, and no password
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
            found = _kept(json.loads(localfile.text(place)), host, image)
        except UNREADABLE as error:
            why = (
                getattr(error, "strerror", "") or type(error).__name__
            )  # not its words: they may have the login
            raise UsageError(
                f"the login for {host} cannot be read from {place}: {why}",
                hint="`docker login` or `podman login` writes it again.",
            ) from None
        if any(found):
            return Login(found[0], place, found[1])
    return None


def _places() -> Iterator[Path]:
    """The files that may have logins, podman's first where it is named."""
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers/auth.json")
    yield Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")


def _kept(known: dict[str, Any], host: str, image: str) -> tuple[str, str]:
    """user:password in base64, and a token; "" for none. Programs know no paths."""
    if program := (known.get("credHelpers") or {}).get(host):
        return _asked(program, host)
    parts = f"{host}/{image}".split("/")
    paths = ["/".join(parts[:end]) for end in range(len(parts), 1, -1)]
    entries = known.get("auths") or {}
    store = known.get("credsStore")
    for name in (
        *paths,
        *(() if store else (host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/")),
    ):
        entry = entries.get(name) or {}
        if token := entry.get("identitytoken"):
            return "", str(token)
        if text := entry.get("auth"):
            base64.b64decode(text, validate=True)
            return str(text), ""
    return _asked(store, host) if store else ("", "")


def _asked(program: str, host: str) -> tuple[str, str]:
    """What the program keeps, as `_kept`. One that knows nothing of the registry ends with 1."""
    words = [f"docker-credential-{program}", "get"]
    done = subprocess.run(words, input=host, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        return "", ""
    found = json.loads(done.stdout)
    if found.get("Username") == NO_NAME:
        return "", str(found["Secret"])
    return base64.b64encode(f"{found.get('Username')}:{found.get('Secret')}".encode()).decode(), ""
