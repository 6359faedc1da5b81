"""RPM packages and signed repositories of them, for tests with the real dnf: made by rpmbuild, rpmsign and createrepo_c."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("dnf", "rpm", "rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "gpg")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]


@dataclass(frozen=True)
class Package:
    """A package of one version, [EPOCH:]VERSION-RELEASE. `lines` are more of its spec's head."""

    name: str
    version: str
    lines: tuple[str, ...] = ()
    arch: str = "noarch"

    @property
    def nevra(self) -> str:
        """With its epoch, as module metadata names it."""
        epoch, _, rest = self.version.rpartition(":")
        return f"{self.name}-{epoch or 0}:{rest}.{self.arch}"

    def spec(self) -> str:
        """The text that rpmbuild reads."""
        epoch, _, rest = self.version.rpartition(":")
        version, _, release = rest.partition("-")
        head = {"Name": self.name, "Version": version, "Release": release, "BuildArch": self.arch}
        rows = [f"{key}: {value}" for key, value in head.items()] + ([f"Epoch: {epoch}"] if epoch else [])
        return "\n".join([*rows, "Summary: none", "License: none", *self.lines, "%description", "%files", ""])


class Key:
    """A new signing key, in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home = folder / name
        self.home.mkdir(mode=0o700, parents=True)
        self.environment = {**os.environ, "GNUPGHOME": str(self.home), "LC_ALL": "C"}
        self._gpg("--passphrase", "", "--quick-gen-key", name, "rsa2048", "default", "never")
        listed = self._gpg("--list-keys", "--with-colons")
        self.fingerprint = next(row.split(":")[9] for row in listed.splitlines() if row.startswith("fpr"))
        self.text = self._gpg("--armor", "--export", name)

    def _gpg(self, *words: str) -> str:
        command = ["gpg", "--batch", "--quiet", *words]
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def close(self) -> None:
        """End its agent."""
        subprocess.run(["gpgconf", "--kill", "all"], env=self.environment, check=False)


def build(
    folder: Path,
    packages: Sequence[Package],
    key: Key,
    streams: Mapping[str, Iterable[Package]] | None = None,
) -> None:
    """A repository of these: packages and metadata are signed; `streams` of the module nvidia-driver are in it."""
    specs = folder / "specs"
    specs.mkdir(parents=True)
    for number, one in enumerate(packages):
        (specs / f"{number}.spec").write_text(one.spec())
    defines = ["--define", f"_topdir {folder}/build", "--define", f"_rpmdir {folder}"]
    _run(key, "rpmbuild", "-bb", "--quiet", *defines, *map(str, specs.iterdir()))
    sign = ["--define", f"_gpg_name {key.fingerprint}", "--define", f"_gpg_path {key.home}"]
    _run(
        key, "rpmsign", *sign, "--define", "__gpg /usr/bin/gpg", "--addsign", *map(str, folder.rglob("*.rpm"))
    )
    shutil.rmtree(folder / "build")
    shutil.rmtree(specs)
    _run(key, "createrepo_c", "-q", str(folder))
    if streams:
        text = folder / "modules.yaml"
        text.write_text("".join(_stream(name, tuple(parts)) for name, parts in streams.items()))
        _run(key, "modifyrepo_c", "--mdtype=modules", str(text), str(folder / "repodata"))
    data = str(folder / "repodata/repomd.xml")
    _run(key, "gpg", "--batch", "--detach-sign", "--armor", data)


def _run(key: Key, *command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env=key.environment)


def _stream(name: str, parts: Iterable[Package]) -> str:
    artifacts = "".join(f"    - {one.nevra}\n" for one in parts)
    return (
        f"---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n  stream: {name}\n  version: 20260101\n"
        "  context: 16e11d19\n  arch: x86_64\n  summary: none\n  description: none\n  license: {module: [MIT]}\n"
        f"  artifacts:\n    rpms:\n{artifacts}"
    )
