"""What gpunode takes environment files to set is what a real systemd starts a unit with."""

import base64
from collections.abc import Iterator

import pytest

from ..unit.test_kubelet import FILES
from .api import Lab

pytestmark = pytest.mark.lab
FOLDER = "/run/gpunode-envfiles"


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    yield FOLDER
    lab.node("modern").exec(["rm", "-rf", FOLDER])


def test_systemd_reads_environment_files_as_gpunode_does(lab: Lab, folder: str):
    """Every file of the unit tests' table, in units of their own."""
    script = [f"mkdir -p {folder}"]
    for number, (text, _) in enumerate(FILES.values()):
        written = base64.b64encode(text.encode()).decode()
        script.append(f"echo {written} | base64 -d > {folder}/{number}")
        run = f"systemd-run --quiet --wait --pipe -p EnvironmentFile={folder}/{number} env -0 | base64 -w0; echo"
        script.append(run)
    said = lab.node("modern").exec(["sh", "-c", "; ".join(script)]).stdout.splitlines()
    plain = {"PATH", "LANG", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH"}
    for (name, (_, sets)), line in zip(FILES.items(), said, strict=True):
        lines = base64.b64decode(line).decode().split("\0")
        variables = dict(each.split("=", 1) for each in lines if each)
        assert {key: value for key, value in variables.items() if key not in plain} == sets, name
