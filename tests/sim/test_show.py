"""The show, played once, to its end, where nothing but loopback is to be reached if that can be had; and what is kept of it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpunode.engine.chain import FAULTS
from gpunode.sim import folder
from gpunode.sim import process as demos
from gpunode.sim.host import hosts, kinds
from gpunode.sim.narration import Show, ending, farewell

GPUNODE = [sys.executable, "-m", "gpunode"]
LOOPBACK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def loopback_only() -> str:
    """Why no command can be run with nothing but loopback; empty where it can."""
    try:
        tried = subprocess.run([*LOOPBACK, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


@dataclass(frozen=True)
class Played:
    """A show that has ended, and its demo, which goes on. `networked`: why it had the network; empty if it had not."""

    done: subprocess.CompletedProcess[str]
    folder: Path
    networked: str

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command where the demo is."""
        enter = [] if self.networked else ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        return subprocess.run([*enter, *words], capture_output=True, text=True, check=False)

    @property
    def pid(self) -> int:
        return int(json.loads((self.folder / "demo.json").read_text())["pid"])

    def printed(self) -> tuple[list[str], str]:
        """The commands that the show ends with: those to play with, and the one that ends all."""
        *play, stop = [line[2:] for line in self.done.stdout.splitlines() if line.startswith("  ")][-5:]
        return play[play.index(f"cd {self.folder}") :], stop


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """One host is enough to see all of it."""
    why = loopback_only()
    with tempfile.TemporaryDirectory(prefix="gpn-") as room, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", room)
        words = [*GPUNODE, "demo", "--hosts", "1", "--keep"]
        done = subprocess.run(
            words if why else [*LOOPBACK, *words], capture_output=True, text=True, check=False
        )
        try:
            (folder,) = Path(room).glob(f"{demos.PREFIX}*")
            yield Played(done, folder, why)
        finally:
            subprocess.run([*GPUNODE, "demo", "stop"], capture_output=True, check=True)
        assert not list(Path(room).iterdir())


def test_it_goes_from_bare_to_verified(played: Played):
    """Without a terminal it is plain text, without pauses."""
    done = played.done
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulation" in done.stdout.splitlines()[1]
    assert "\033" not in done.stdout + done.stderr
    for said in ("✓ pod", "nvidia-tesla-p100", "nothing to do"):
        assert said in done.stdout
    assert done.stdout.count(" passed") >= 2
    assert len(done.stdout.splitlines()) <= 120
    assert "gpunode.dev/gpu=true" in (played.folder / "report.html").read_text()


def test_it_needs_no_network(played: Played):
    """It was played where there is loopback and nothing else."""
    if played.networked:
        pytest.skip(f"a place without network could not be made: {played.networked}")
    assert played.run(["ip", "-o", "link"]).stdout.count("\n") == 1
    assert played.done.returncode == 0


def test_what_it_ends_with_works_as_it_is_printed(played: Played):
    """Commands in the demo's folder; the last ends it."""
    play, stop = played.printed()
    assert len(play) >= 2
    done = played.run(["sh", "-e", "-c", "\n".join(play)])
    assert done.returncode == 0, f"{play}\n{done.stdout}{done.stderr}"
    for program, said in (("verify", "✓ pod"), ("kubectl", "Ready"), ("ssh", "/kubelet.service")):
        assert (said in done.stdout) == any(program in line for line in play), program
    ended = subprocess.run(["sh", "-c", stop], capture_output=True, text=True, check=True)
    assert ended.stdout == f"ended {played.folder}\n"
    assert not played.folder.exists()


@pytest.mark.parametrize(("link", "good"), [("module", True), ("NVML", False)])
def test_a_break_is_shown_only_if_verify_names_the_link_it_broke(tmp_path, capsys, link: str, good: bool):
    """That verify ends with 1 is not enough."""
    hosts.lay_out(tmp_path)
    folder.write_groups(tmp_path, {})
    host = hosts.create(tmp_path, kinds.new_host("h100-1"))

    def run(_: object, words: Sequence[str], *, capture: bool, quiet: bool = False) -> tuple[int, str, str]:
        """verify finds `link` broken, provision repairs."""
        lines = [
            {"type": "link", "layer": "PCI", "status": "ok"},
            {"type": "link", "layer": link, "status": "broken"},
        ]
        return int("verify" in words), "\n".join(map(json.dumps, lines)), ""

    demo = SimpleNamespace(states={"h100-1": host}, folder=tmp_path, run=run)
    assert Show(demo, None, fast=True).break_host(FAULTS["module"]) is good
    assert ("expected is module" in capsys.readouterr().out) is not good


def test_the_last_line_names_how_to_go_on(tmp_path):
    """Kept or not, and where something went wrong."""
    state = SimpleNamespace(machine=lambda: kinds.new_host("h100-1"))
    demo = SimpleNamespace(states={"h100-1": state}, folder=tmp_path, metrics={}, port=lambda _: 22)
    kept = farewell(demo, "demo").splitlines()[-1]
    assert kept.startswith("Next: ")
    assert "gpunode help tutorial#break-it-and-let-it-be-fixed`" in kept
    assert all(ending(code, None, whole=True).splitlines()[-1].startswith("Next: ") for code in (0, 1))
