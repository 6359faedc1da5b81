"""Flat, signed apt repositories, and the key that signs them."""

import gzip
import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

from .. import cache
from .deb import EPOCH, Package


def key() -> Path:
    """The cache's folder with the lab's signing key: `key.asc`, and a `gnupg` home for signing. Made once a machine."""
    return cache.entry("apt-key", ["1"], _make_key)


def write(folder: Path, packages: Iterable[Package], origin: str) -> None:
    """Build the packages into `folder` and index and sign it: Packages, Packages.gz, Release, Release.gpg, InRelease."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=4) as pool:
        debs = list(pool.map(lambda package: package.build(folder), packages))
    _index(folder, folder, debs)
    _release(folder, [f"Origin: {origin}", f"Label: {origin}"])


def write_suite(folder: Path, suite: str, components: Mapping[str, Sequence[Path]], origin: str) -> None:
    """Index and sign packages below `folder` as a suite with components, below dists/."""
    top = folder / "dists" / suite
    for component, debs in components.items():
        _index(folder, top / component / "binary-amd64", debs)
    names = [f"Origin: {origin}", f"Label: {origin}", f"Suite: {suite}", f"Codename: {suite}"]
    _release(top, [*names, "Architectures: amd64", f"Components: {' '.join(components)}"])


def _index(folder: Path, into: Path, debs: Iterable[Path]) -> None:
    """Packages and Packages.gz in `into`, of packages below `folder`."""
    into.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=4) as pool:
        index = "\n".join(pool.map(lambda deb: _stanza(deb, folder), sorted(debs)))
    (into / "Packages").write_text(index)
    (into / "Packages.gz").write_bytes(gzip.compress(index.encode(), mtime=int(EPOCH)))


def _stanza(deb: Path, folder: Path) -> str:
    control = subprocess.run(["dpkg-deb", "-f", str(deb)], check=True, capture_output=True, text=True).stdout
    data = deb.read_bytes()
    place = f"Filename: ./{deb.relative_to(folder)}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    fields, _, description = control.partition("Description:")
    return f"{fields}{place}Description:{description}"


def _release(folder: Path, names: Sequence[str]) -> None:
    lines = [
        *names,
        f"Date: {formatdate(float(EPOCH), usegmt=True)}",
        "SHA256:",
    ]
    for path in sorted(folder.rglob("Packages*")):
        data = path.read_bytes()
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path.relative_to(folder)}")
    release = folder / "Release"
    release.write_text("\n".join(lines) + "\n")
    for mode, output in (("--clearsign", "InRelease"), ("--detach-sign", "Release.gpg")):
        _gpg(key() / "gnupg", "--armor", mode, "--output", str(folder / output), str(release))


def _make_key(folder: Path) -> None:
    home = folder / "gnupg"
    home.mkdir(mode=0o700)
    _gpg(home, "--passphrase", "", "--quick-generate-key", "gpunode lab", "rsa3072", "sign", "never")
    _gpg(home, "--armor", "--output", str(folder / "key.asc"), "--export")


def _gpg(home: Path, *arguments: str) -> None:
    command = ["gpg", "--homedir", str(home), "--batch", "--yes", "--pinentry-mode", "loopback", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    subprocess.run(
        ["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=False
    )  # gpg starts one, it stays
    if done.returncode:
        raise RuntimeError(f"gpg {' '.join(arguments[:3])} failed:\n{done.stderr}")
