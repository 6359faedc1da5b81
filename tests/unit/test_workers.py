"""Tests in several processes: what each of them reports, and what is reported of one that dies."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "test_good.py": "def test_passes(worker): assert worker in (0, 1, 2)\ndef test_has_a_folder(tmp_path): assert tmp_path.is_dir()\n",
    "test_bad.py": "def test_fails(): print('its output'); assert 1 == 2\n",
    "test_dies.py": "import os\ndef test_dies(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n",
    "test_dies_last.py": "import os\ndef test_dies(): os.kill(os.getpid(), 9)\n",
    **{f"test_other{number}.py": "def test_passes(): pass\n" for number in range(4)},
}


PACKAGES = {
    "conftest.py": "import pytest\n@pytest.fixture(autouse=True, scope='session')\ndef end(): yield; raise OSError('at the end')\n",
    **{f"{name}/__init__.py": "" for name in ("a", "b")},
    **{f"{name}/test_x.py": "def test_passes(): pass\n" for name in ("a", "b")},
}


def run(folder: Path, files: dict[str, str], workers: int) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    words = ("-p", "tests.workers", "-p", "no:cacheprovider", "--workers", str(workers), "--rootdir", ".")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--color", "no"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_goes_from_package_to_package_and_its_end_may_fail(tmp_path):
    done = run(tmp_path, PACKAGES, 1)
    assert done.returncode == 1, done.stdout
    assert "2 passed" in done.stdout
    assert "The processes ended with [1]" in done.stdout
    assert "at the end" in done.stderr


def test_every_test_is_reported_also_those_of_a_process_that_died(tmp_path):
    done = run(tmp_path, FILES, 3)
    assert done.returncode == 1, done.stderr
    assert "4 failed, 6 passed" in done.stdout
    assert "its output" in done.stdout
    for name in (
        "test_bad.py::test_fails",
        "test_dies.py::test_dies",
        "test_dies.py::test_after",
        "test_dies_last.py::test_dies",
    ):
        assert f"FAILED {name}" in done.stdout
    assert "No process ran it to its end" in done.stdout
