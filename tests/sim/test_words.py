"""Whatever the messages of plugin and cluster room, and the plugin's log level: provision, verify and plugin status give the same
results."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.sim.demo import Demo
from gpunode.sim.host import kinds
from tests import jsonlines
from tests.sim.clusters import until

from .other_words.sitecustomize import OTHER

FOLDER = Path(__file__).parent / "other_words"
CONFIG = "flags: {plugin: {recoverySeconds: 3600, logLevel: error}}\n"
LAYERS = ["PCI", "module", "library", "NVML", "toolkit", "runtime", "kubelet", "node", "plugin"]
PASSED = [{"type": "vectoradd", "result": "passed"}]
CODES = ("layer", "status", "result", "capacity", "allocatable")  # what programs read of a result
RESULTS = ("link", "plugin", "vectoradd", "verified")


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short path, for the sockets of the demo."""
    with tempfile.TemporaryDirectory(prefix="gpn-") as name:
        monkeypatch.setattr("tempfile.tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield


@pytest.mark.timeout(600)
def test_no_judgement_rests_on_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reports an Xid and works on: only the plugin knows of it, and it logs nothing of it."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setattr("gpunode.sim.demo.Popen", subprocess.Popen)  # a start of Python reads them
    machine = kinds.new("gpu-1", count=2)
    files = {"plugin.yaml": CONFIG}
    plugin = {"archive": "plugin.tar", "config": "plugin.yaml"}
    with Demo([machine], cluster={"plugin": plugin}, files=files) as demo:
        code, results, _ = run(demo, "provision", "inventory.yaml", "--yes")
        assert (code, results) == (0, [*PASSED * 2, {"type": "verified", "result": "verified"}])

        with demo.states[machine.name].change() as now:
            now.xids.append((machine.gpus[1].uuid, 79))
        until(lambda: run(demo, "plugin", "status", "inventory.yaml")[0] == 1)

        _, results, text = run(demo, "plugin", "status", "inventory.yaml")
        assert results == [{"type": "plugin", "capacity": 2, "allocatable": 1}]
        assert (OTHER in text, "the plugin reports" in text) == (True, False), "whose words they are"

        code, results, _ = run(demo, "verify", "inventory.yaml")
        links = [*((layer, "ok") for layer in LAYERS), ("capacity", "broken"), ("pod", "unknown")]
        assert (code, [(one["layer"], one["status"]) for one in results]) == (1, links)

        code, results, _ = run(demo, "provision", "inventory.yaml", "--yes")
        left = {"type": "vectoradd", "result": "not covered"}
        assert (code, results) == (1, [*PASSED, left, {"type": "verified", "result": "not verified"}])


def run(demo: Demo, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """A command's exit status, its results without words for people, and all that it printed."""
    code, text, _ = demo.run([sys.executable, "-m", "gpunode", *words, "--json"], capture=True)
    lines = jsonlines.parse(text)
    results = [line for line in lines if line["type"] in RESULTS]
    return code, [{key: one[key] for key in ("type", *CODES) if key in one} for one in results], text
