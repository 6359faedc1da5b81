"""Debian packages, made with dpkg-deb from values."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

EPOCH = "1795219200"  # the time in every package: builds of the same inputs are the same bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Package:
    """One binary package. `files`: path -> text, a file of the machine, or a link; `scripts`: postinst and so on.

    `fields` holds what is not written here: Source, Provides, Conflicts … A file's mode is 644; 755 in bin folders;
    `modes` overrides. Files below /etc are conffiles.
    """

    name: str
    version: str
    description: str
    depends: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Path | Link] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    architecture: str = "amd64"

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version.partition(':')[2] or self.version}_{self.architecture}.deb"

    def build(self, folder: Path) -> Path:
        """Write the package's .deb into the folder."""
        with tempfile.TemporaryDirectory() as work:
            root = Path(work) / "root"
            (root / "DEBIAN").mkdir(parents=True)
            root.chmod(0o755)
            for path, content in self.files.items():
                put(root / path.lstrip("/"), content, self.modes.get(path) or mode(path))
            for script, text in self.scripts.items():
                put(root / "DEBIAN" / script, text, 0o644 if script == "triggers" else 0o755)
            conffiles = [path for path in self.files if path.startswith("/etc/")]
            if conffiles:
                put(root / "DEBIAN/conffiles", "".join(f"{path}\n" for path in conffiles), 0o644)
            put(root / "DEBIAN/control", self._control(), 0o644)
            target = folder / self.file_name
            pack(root, target)
        return target

    def _control(self) -> str:
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "gpunode lab <lab@localhost>",
            "Section": "non-free/libs",
            "Priority": "optional",
        }
        if self.depends:
            fields["Depends"] = ", ".join(self.depends)
        fields.update(self.fields)
        fields["Description"] = (
            f"{self.description}\n Stand-in of the gpunode lab: names and relations are real, contents are not."
        )
        return "".join(f"{name}: {value}\n" for name, value in fields.items())


def pack(root: Path, target: Path) -> None:
    """Make a .deb of a tree with a folder DEBIAN."""
    done = subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z3", "--build", str(root), str(target)],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"dpkg-deb of {target.name} failed:\n{done.stderr}")


def mode(path: str) -> int:
    return 0o755 if "/bin/" in path or "/sbin/" in path else 0o644


def put(path: Path, content: str | Path | Link, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Link):
        path.symlink_to(content.target)
        return
    path.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())
    path.chmod(mode)
