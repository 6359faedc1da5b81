"""`make dist`: what a release holds, and that its wheel works where nothing else of the checkout is."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomlkit
import yaml

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        not (ROOT / ".venv/bin/hatchling").exists() or not shutil.which("make"), reason="no make, or no .venv"
    ),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("make", "-C", str(ROOT), "dist", f"DIST={folder}", cwd=folder)
    return folder


def run(*words: str, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "PYTHONPATH")}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def test_every_file_has_its_hash(dist: Path):
    listed = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    files = {path.name: path for path in dist.iterdir() if path.name != "SHA256SUMS"}
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {
        "requirements.lock",
        "gpunode.cdx.json",
        "gpunode-deviceplugin.cdx.json",
        "gpunode-share.tar.xz",
    } < set(listed)


def test_the_wheel_has_what_the_package_reads(dist: Path):
    """Every file of the package, of templates/ and of docs/ that git knows; nothing of tests."""
    with zipfile.ZipFile(wheel(dist)) as archive:
        inside = set(archive.namelist())
    tracked = set(run("git", "ls-files", "gpunode", "templates", "docs", cwd=ROOT).split())
    wanted = {f"gpunode/{name}" if name.startswith(("templates/", "docs/")) else name for name in tracked}
    assert wanted - inside == set()
    assert {name.split("/")[0] for name in inside} == {"gpunode", "gpunode-0.1.0.dist-info"}


def test_the_wheel_runs_in_an_environment_of_its_own(dist: Path, tmp_path):
    """Beside the libraries that are installed here: no index is asked."""
    run(sys.executable, "-m", "venv", "--without-pip", "fresh", cwd=tmp_path)
    python = tmp_path / "fresh/bin/python"
    install = ("install", "--quiet", "--no-deps", "--no-index", str(wheel(dist)))
    run(sys.executable, "-m", "pip", "--python", str(python), *install, cwd=tmp_path)
    (site,) = (tmp_path / "fresh/lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(
        sysconfig.get_path("purelib")
    )  # a path alone: its own .pth do not count
    gpunode = str(tmp_path / "fresh/bin/gpunode")

    assert run(gpunode, "--version", cwd=tmp_path) == "gpunode 0.1.0\n"
    assert "See the whole job in a minute" in run(gpunode, "demo", "--help", cwd=tmp_path)
    init = run(gpunode, "init", "--hosts", "gpu-[01:04]", "--user", "ops", cwd=tmp_path)
    assert "inventory.yaml" in init
    read = "import gpunode.planning.templates as it; from gpunode.links.plugin.image import collect_files; print(it.__file__, sum(map(len, collect_files([]).values())))"
    where, size = run(str(python), "-c", read, cwd=tmp_path).split()
    assert where.startswith(str(tmp_path))
    assert run(gpunode, "help", "json", cwd=tmp_path).startswith("# JSON lines")
    assert int(size) > 100_000


def test_the_source_distribution_builds_the_same_wheel(dist: Path, tmp_path):
    """It has all that a build needs, and the tests and documents too."""
    (source,) = dist.glob("*.tar.gz")
    run("tar", "-xf", str(source), cwd=tmp_path)  # `tarfile` takes no filter before Python 3.11.4
    (folder,) = tmp_path.iterdir()
    assert (folder / "docs/tutorial.md").exists()
    assert (folder / "tests/lab/README.md").exists()
    run(str(ROOT / ".venv/bin/hatchling"), "build", "-t", "wheel", "-d", str(tmp_path), cwd=folder)
    assert (tmp_path / wheel(dist).name).read_bytes() == wheel(dist).read_bytes()


def test_what_a_developer_keeps_in_the_checkout_is_not_published(dist: Path, tmp_path):
    """A kubeconfig or an inventory that git does not know; all that it knows is."""
    (source,) = dist.glob("*.tar.gz")
    run("tar", "-xf", str(source), cwd=tmp_path)
    with tarfile.open(source) as archive:
        inside = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    assert {*run("git", "ls-files", cwd=ROOT).splitlines(), "PKG-INFO"} <= inside
    folder = tmp_path / source.name.removesuffix(".tar.gz")
    for name in ("first", "gpus.kubeconfig", "inventory.yaml", "inventories/mine.yaml", ".env", "notes/keys"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    run(str(ROOT / ".venv/bin/hatchling"), "build", "-t", "sdist", "-d", str(tmp_path), cwd=folder)
    assert names(tmp_path / source.name) == names(source)


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return set(opened.getnames())


@pytest.mark.parametrize(
    ("bom", "lock"),
    [
        ("gpunode.cdx.json", "requirements.lock"),
        ("gpunode-deviceplugin.cdx.json", "gpunode/deviceplugin/requirements.lock"),
    ],
)
def test_a_bill_of_materials_has_every_locked_version(dist: Path, bom: str, lock: str):
    """CycloneDX, with the hashes of the lock."""
    content = json.loads((dist / bom).read_text())
    assert content["bomFormat"] == "CycloneDX"
    components = {f"{component['name']}=={component['version']}" for component in content["components"]}
    assert components == pins(lock)
    assert all(component["externalReferences"][0]["hashes"] for component in content["components"])


def test_users_get_none_of_the_tools():
    """Site, SBOM and lint are the developers'; the lock of a release has only what gpunode itself names, and theirs."""
    project = tomlkit.parse((ROOT / "pyproject.toml").read_text())
    locked = (ROOT / "requirements.lock").read_text()
    tools = ("zensical", "cyclonedx", "hatchling", "pytest", "ruff", "mypy")
    assert [name for name in tools if name in locked] == []
    assert [name for name in tools if any(name in each for each in project["project"]["dependencies"])] == []
    assert pins("requirements.lock") <= pins("requirements-dev.lock")  # the tests run with these


def pins(lock: str) -> set[str]:
    return {line.split()[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line}


def test_the_release_is_what_make_makes():
    """Its workflow has one action, by its commit, and may write releases only."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["release"]
    assert job["permissions"] == {"contents": "write"}
    actions = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [len(action.partition("@")[2]) for action in actions] == [40]
    assert {"make check", "make dist"} < {step.get("run") for step in job["steps"]}
    assert 'cp dist/SHA256SUMS "$RUNNER_TEMP"/' in text  # the checkout stays as the tag has it
