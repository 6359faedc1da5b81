"""RPM packages and signed repositories of them, for tests with the real dnf: made by rpmbuild, rpmsign and createrepo_c."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("dnf", "rpm", "rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "gpg")
VERSIONLOCK = Path(
    "/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py"
)  # of Debian's dnf-plugins-core
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
MISSING += [] if VERSIONLOCK.exists() else ["dnf-plugins-core"]
# No dependencies but those that are written, no program of a distribution's that looks at what is packed.
PLAIN = "%global __os_install_post %{nil}\n%global debug_package %{nil}\nAutoReqProv: no\n"


@dataclass(frozen=True)
class Package:
    """A package of one version, [EPOCH:]VERSION-RELEASE. `lines` are more of its spec's head.

    `files`: path -> text, a file of this machine, or (`-> TARGET`) a link; `modes` of those that are not 644.
    `scripts`: post, preun … -> shell.
    """

    name: str
    version: str
    lines: tuple[str, ...] = ()
    arch: str = "noarch"
    files: Mapping[str, str | Path] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def nevra(self) -> str:
        """With its epoch, as module metadata names it."""
        epoch, _, rest = self.version.rpartition(":")
        return f"{self.name}-{epoch or 0}:{rest}.{self.arch}"

    def spec(self, root: Path) -> str:
        """The text that rpmbuild reads; `root` is the folder with the files as they are to lie on a host."""
        epoch, _, rest = self.version.rpartition(":")
        version, _, release = rest.partition("-")
        head = {"Name": self.name, "Version": version, "Release": release, "BuildArch": self.arch}
        rows = [f"{key}: {value}" for key, value in head.items()] + ([f"Epoch: {epoch}"] if epoch else [])
        parts = [f"%install\nmkdir -p %{{buildroot}}\ncp -a {root}/. %{{buildroot}}"] if self.files else []
        parts += [f"%{name}\n{text}" for name, text in self.scripts.items()]
        listed = [f"%attr({self.modes.get(path, 0o644):o}, root, root) {path}" for path in self.files]
        end = ["%description", "none", *parts, "%files", *listed, ""]
        return PLAIN + "\n".join([*rows, "Summary: none", "License: none", *self.lines, *end])

    def lay(self, root: Path) -> None:
        """Put its files below a folder."""
        for path, content in self.files.items():
            real = root / path.lstrip("/")
            real.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str) and content.startswith("-> "):
                real.symlink_to(content.removeprefix("-> "))
            else:
                real.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())


@dataclass(frozen=True)
class Key:
    """A signing key, alone in its folder `home`."""

    home: Path

    @classmethod
    def made(cls, folder: Path, name: str) -> "Key":
        """A new one."""
        key = cls(folder / name)
        key.home.mkdir(mode=0o700, parents=True)
        key.gpg("--passphrase", "", "--quick-gen-key", name, "rsa2048", "default", "never")
        return key

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GNUPGHOME": str(self.home), "LC_ALL": "C"}

    @property
    def fingerprint(self) -> str:
        listed = self.gpg("--list-keys", "--with-colons")
        return next(row.split(":")[9] for row in listed.splitlines() if row.startswith("fpr"))

    @property
    def text(self) -> str:
        """Armoured, for hosts."""
        return self.gpg("--armor", "--export")

    def gpg(self, *words: str) -> str:
        """What gpg prints."""
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
    work = folder / "work"
    specs = []
    for number, package in enumerate(packages):
        root, spec = work / f"{number}", work / f"{number}.spec"
        root.mkdir(parents=True)
        package.lay(root)
        spec.write_text(package.spec(root))
        specs.append(str(spec))
    defines = ["--define", f"_topdir {work}/build", "--define", f"_rpmdir {folder}"]
    _run(key, "rpmbuild", "-bb", "--quiet", *defines, *specs)
    shutil.rmtree(work)
    sign = ["--define", f"_gpg_name {key.fingerprint}", "--define", f"_gpg_path {key.home}"]
    files = map(str, folder.rglob("*.rpm"))
    _run(key, "rpmsign", *sign, "--define", "__gpg /usr/bin/gpg", "--addsign", *files)
    _run(key, "createrepo_c", "-q", str(folder))
    if streams:
        text = folder / "modules.yaml"
        text.write_text("".join(_stream(name, tuple(parts)) for name, parts in streams.items()))
        _run(key, "modifyrepo_c", "--mdtype=modules", str(text), str(folder / "repodata"))
    _run(key, "gpg", "--batch", "--yes", "--detach-sign", "--armor", str(folder / "repodata/repomd.xml"))


def _run(key: Key, *command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=key.environment)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def _stream(name: str, parts: Iterable[Package]) -> str:
    artifacts = "".join(f"    - {part.nevra}\n" for part in parts)
    return (
        f"---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n  stream: {name}\n  version: 20260101\n"
        "  context: 16e11d19\n  arch: x86_64\n  summary: none\n  description: none\n  license: {module: [MIT]}\n"
        f"  artifacts:\n    rpms:\n{artifacts}"
    )
