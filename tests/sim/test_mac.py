"""The demo where Python has only what it has on a Mac, as far as that can be had on Linux. No Mac is in these tests."""

import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.sim import process as demos
from gpunode.sim.host import hosts, kinds
from gpunode.sim.host.machine import Machine
from gpunode.sim.process import Demo, demos_folder

from .clusters import until

GPUNODE = [sys.executable, "-m", "gpunode"]
MAC = Path(__file__).parent / "mac"
FOLDERS = "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"  # where a Mac has temporary files
LONGEST_SOCKET = 103


@pytest.fixture
def far() -> Iterator[Path]:
    """A folder for temporary files as on a Mac: a long path with a symbolic link in it. No demo may be left in it."""
    with tempfile.TemporaryDirectory(prefix="gpn-") as name:
        (Path(name) / "private").mkdir()
        (Path(name) / "link").symlink_to("private")
        path = Path(name) / "link" / ("x" * (len(FOLDERS) - len(name) - 6))
        path.mkdir()
        yield path
        assert not list(path.glob(f"{demos.PREFIX}*"))


def test_the_sockets_of_a_demo_have_paths_that_a_mac_allows(monkeypatch):
    """The longest is a plugin's while it begins to serve; the folder is elsewhere where it would be too long."""
    longest = "gpunode-demo-12345678/s/999/.nvidia-gpu-memory.shared.sock.12345678"
    for where in (FOLDERS, "/" + "x" * (demos.LONGEST - 1)):
        monkeypatch.setattr("tempfile.tempdir", where)
        assert len(f"{demos_folder()}/{longest}") <= LONGEST_SOCKET
    monkeypatch.setattr("tempfile.tempdir", FOLDERS)
    assert demos_folder() == Path("/tmp")


@pytest.mark.parametrize(
    "machine",
    [kinds.old_host("host"), kinds.new_host("host"), kinds.host_without_gpus("host")],
    ids=["old", "new", "without"],
)
def test_no_two_files_of_a_host_differ_in_case_alone(tmp_path, machine: Machine):
    """A Mac's file system takes them for one."""
    hosts.lay_out(tmp_path)
    hosts.create(tmp_path, machine)
    names = [str(path).casefold() for path in tmp_path.rglob("*")]
    assert len(names) == len(set(names))


def test_a_demo_goes_with_what_a_mac_has(far: Path, monkeypatch):
    """From bare hosts to pods on GPUs, and both plugins' metrics at the one address of loopback."""
    started = far / "started"
    monkeypatch.setenv("TMPDIR", str(far))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(MAC))
    monkeypatch.setenv("GPUNODE_TEST_MAC", str(started))
    monkeypatch.setattr(demos, "Popen", subprocess.Popen)  # a fork has what its server imported
    machines = [kinds.new_host(f"h100-{number}", count=1) for number in (1, 2)]
    with Demo(machines, None, {"plugin": {"archive": "plugin.tar", "metrics": True}}) as demo:
        assert demo.folder.parent == Path("/tmp")
        words = [*GPUNODE, "provision", str(demo.inventory), "--yes"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("verified  1 GPU, vectoradd passed on each") == 2
        for url in demo.metrics.values():
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert b"registered{" in answer.read()
        pods = list(demo.folder.glob("hosts/*/root/var/log/pods/*device-plugin*"))
        assert len(pods) == 2

        def polls(pod: Path) -> bool:  # as there is no inotify; the container may have been started again
            return any("Checking every 2 s instead" in log.read_text() for log in pod.glob("*/*.log"))

        until(lambda: all(map(polls, pods)))
    begun = started.read_text()
    assert "gpunode.sim.server" in begun
    assert "gpunode provision" in begun
