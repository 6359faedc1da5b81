"""OpenSSH's server for tests without a lab: from Debian's packages, unpacked into the cache, and installed nowhere."""

import os
import platform
import shutil
from pathlib import Path

from . import cache, machine
from .process import run
from .progress import CannotRun

KIND = "openssh-server"
PACKAGES = ["openssh-server", "libwrap0"]
# As root it needs a user of its own, which is there for this process and its children only, and an empty folder.
SSHD = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu"
test "$(id -u)" = 0 || exec "$here/usr/sbin/sshd" "$@"
exec unshare --mount sh -c '
here=$1; shift
mkdir -p /run/sshd
mount -t tmpfs tmpfs "$here/etc"
{ cat /etc/passwd; echo sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin; } > "$here/etc/passwd"
mount --bind "$here/etc/passwd" /etc/passwd
exec "$here/usr/sbin/sshd" "$@"' sh "$here" "$@"
"""


def server() -> Path | None:
    """The sshd that `ensure` unpacked; None where it has not."""
    made = sorted(cache.root().glob(f"{KIND}-*/sshd"), key=lambda path: path.stat().st_mtime)
    return made[-1] if made else None


def ensure() -> None:
    """Unpack it, unless this machine has one of its own. Raises CannotRun where that is not possible."""
    if shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    if os.geteuid() or release.get("ID") != "debian" or platform.machine() != "x86_64":
        raise CannotRun("OpenSSH's server is unpacked as root on Debian and x86_64 only.")
    cache.entry(KIND, [machine.versions(PACKAGES), SSHD], _unpack)


def _unpack(folder: Path) -> None:
    for name in PACKAGES:
        run(["apt-get", "download", name], cwd=folder)
    for archive in folder.glob("*.deb"):
        run(["dpkg-deb", "-x", str(archive), str(folder)])
        archive.unlink()
    (folder / "sshd").write_text(SSHD)
    (folder / "sshd").chmod(0o755)
