"""GPUs for single programs: a mount namespace that has the stand-in driver, and needs no host, container or cluster.

What is above NVML is as on a lab host: device nodes, `/proc/driver`, PCI bus, libnvidia-ml. Needs root.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import cache
from . import SOURCES, build_libraries, compiler, install
from . import __file__ as this_package

VERSION, CUDA = "580.178.04", 13000
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The machine's folders stay as they are: what the host has more is laid over them, or hides them.
_SETUP = """set -e
mount -t overlay -o lowerdir=$1/usr:/usr lab /usr
mount -t overlay -o lowerdir=$1/etc:/etc lab /etc
for folder in /run /dev /var/lib; do mount -t tmpfs -o mode=755 lab $folder; done
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 /dev/${node%:*} c 1 ${node#*:}; done
mkdir -p /dev/shm /run/cdi "$3"
mount --bind "$2" "$3"
lab-gpu boot
echo ready
exec cat
"""


class Namespace:
    """A running namespace: all in it see the same GPUs. `enter` is what goes before a command that is to run in it."""

    def __init__(self, pid: int) -> None:
        self.enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--"]

    def start(
        self, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program; what it says goes into `log`."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [*self.enter, *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )

    def run(self, *argv: str) -> str:
        """What a command says that succeeds."""
        done = subprocess.run([*self.enter, *argv], capture_output=True, text=True, check=False)
        assert not done.returncode, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def namespace(gpus: Iterable[Mapping[str, Any]], shared: Path, at: str) -> Iterator[Namespace]:
    """A namespace with these GPUs (as for `install`); the folder `shared` is also there as `at`, below /var/lib."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        install(root, gpus)
        install_driver(root)
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP, "sh", root, shared, at],
            stdin=subprocess.PIPE,  # it ends when this closes, with this process too
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with holder:
            assert None not in (holder.stdin, holder.stdout, holder.stderr)
            try:
                if holder.stdout.readline() != "ready\n":
                    raise AssertionError(f"no namespace with GPUs: {holder.stderr.read()}")
                yield Namespace(holder.pid)
            finally:
                holder.stdin.close()


def install_driver(root: Path) -> None:
    """What the driver's packages bring to a host, as far as anything below asks for it."""

    def build(folder: Path) -> None:
        build_libraries(folder, VERSION, CUDA)

    built = cache.entry("gpu-libraries", [SOURCES, Path(this_package), compiler(), VERSION, str(CUDA)], build)
    libraries = root / LIBRARIES
    libraries.mkdir(parents=True, exist_ok=True)
    for name in ("libnvidia-ml", "libcuda"):
        real = f"{name}.so.{VERSION}"
        (libraries / real).write_bytes((built / real).read_bytes())
        (libraries / f"{name}.so.1").symlink_to(real)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2(built / "nvidia-smi", root / "usr/bin")
    (root / "usr/lib/udev/rules.d").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/udev/rules.d/60-nvidia.rules").write_text("# loads the driver's other modules\n")
    kernel = os.uname().release
    modules = root / "usr/lib/modules" / kernel / "updates/dkms"
    modules.mkdir(parents=True, exist_ok=True)
    for module in ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm"):
        facts = {"version": VERSION, "license": "NVIDIA", "vermagic": f"{kernel} SMP"}
        words = "".join(f"\0{name}={value}\0" for name, value in facts.items())
        (modules / f"{module}.ko").write_bytes(words.encode())
