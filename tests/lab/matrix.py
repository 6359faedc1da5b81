"""Configurations that are run on the lab now and then, not in CI: `make lab-matrix` runs their tests and records how they ended.

    python -m tests.lab.matrix           every row that has tests
    python -m tests.lab.matrix dnf .run  those rows whose name has one of the words

One lab or several must be up. How a row ended, when, and at which commit is kept in matrix.json, and shown in docs/support.md.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "matrix.json"
RECORDS = ("tests/lab/matrix.json", "docs/support.md")  # what a run writes itself
SECONDS = 1800  # for one test


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration: files of tests/lab, parts of the names of their tests (pytest's -k), or why it is not run."""

    name: str
    tests: tuple[str, ...] = ()
    only: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How the tests of a row ended. `ok`: at least one passed and none failed."""

    ok: bool
    words: str
    date: str
    commit: str


ROWS = (
    Row("Debian 12, apt: NVIDIA's packages, containerd 2.2 and docker 20.10, bare", ("test_provision.py",)),
    Row("Rocky Linux 9's kind, dnf: NVIDIA's module streams, bare, another branch", ("test_rpm.py",)),
    Row(
        "`.run` beside apt: bare, a lying mirror, another version, to packages and back",
        ("test_runfile.py",),
        "apt",
    ),
    Row(
        "`.run` beside dnf: bare, a lying mirror, another version, to packages and back",
        ("test_runfile.py",),
        "dnf",
    ),
    Row("API servers 1.16, 1.20 and 1.36: the cluster's part, without kubelets", ("test_api_servers.py",)),
    Row("API server 1.36: what the plugin's and the extender's tokens can write", ("test_policies.py",)),
    Row("API servers 1.16, 1.20 and 1.36: what admission forbids", ("test_obstacles.py",)),
    Row(
        "kube-scheduler 1.16, 1.20 and 1.36 with the extender: Policy, v1beta1, v1; without kubelets",
        ("test_old_schedulers.py",),
    ),
    Row("a second scheduler, by schedulerName", ("test_second_scheduler.py",)),
    Row(
        "the scheduler extender through evictions, lost nodes, restarts and changes", ("test_share_life.py",)
    ),
    Row("over from gpushare and back with pods running", ("test_share_gpushare.py",)),
    Row("nvidia-docker2 by wish, and removed again", ("test_nvidia_docker2.py",)),
    Row(
        "end state of Kubernetes 1.9.1 with packages and nvidia-docker2, all by hand",
        ("test_end_states.py",),
        "packages_by_hand",
    ),
    Row(
        "end state of the cloud-native course: `.run` and nvidia-docker2 by hand",
        ("test_end_states.py",),
        "installer_by_hand",
    ),
    Row(
        "end state of Kubernetes 1.16 on CentOS: the plugin by `docker run`",
        ("test_end_states.py",),
        "docker_run",
    ),
    Row(
        "leftovers of nvidia-docker 1 (a stand-in), with and without a container",
        ("test_leftovers.py",),
        "nvidia_docker_1",
    ),
    Row(
        "end state of GPU sharing: gpushare's DaemonSet and label, without its program (layout)",
        ("test_leftovers.py",),
        "gpushares",
    ),
    Row("driver packages unpacked and not configured", ("test_end_states.py",), "half_installed"),
    Row("apt and dpkg killed while the driver's module is built", ("test_halfway.py",), "dpkg_killed"),
    Row("dnf and rpm killed while the driver's module is built", ("test_halfway.py",), "rpm_killed"),
    Row("a `.run` driver without its record", ("test_end_states.py",), "without_its_record"),
    Row("kubelet 1.30 on Debian's containerd 1.6, bare", ("test_middle_kubelet.py",)),
    Row("Kubernetes 1.16.15 whole, with its kubelet on docker 20.10, bare", ("test_kubernetes_116.py",)),
    Row(
        "over from NVIDIA's own device plugin by `plugin deploy --replace`, and back, with a pod running",
        ("test_switch_over.py",),
        "there_and_back",
    ),
    Row("NVIDIA's own device plugin beside gpunode's", ("test_switch_over.py",), "two_at_once"),
    Row("an apply that is killed, cut off or out of disk", ("test_interrupted.py",)),
    Row(
        "an undo of a provision from bare and of a driver's upgrade, and `forget`; also killed at each state of a journal's entry",
        ("test_undo.py",),
    ),
    Row(
        "over from the GPU Operator (stand-ins of its pods) and back, and `forget`; also after a provision that was killed at each state of a journal's entry",
        ("test_forget.py",),
    ),
    Row("a reboot of each host; files restored at boot", ("test_reboot.py",)),
    Row("config files of users, merged by the real runtimes", ("test_runtime_files.py",)),
    Row("kubelet units of many kinds, read by a real systemd", ("test_kubelet_places.py",)),
    Row("device managers of the kubelets 1.8.15, 1.9.11, 1.10.13", ("test_old_kubelets.py",)),
    Row(
        "the articles' workloads from their manifests, with images that stand in; Jupyter's server at a NodePort",
        ("test_workloads.py",),
    ),
    Row(
        "Debian's own driver: its archive's packages, bare, a reboot, to NVIDIA's and back",
        ("test_distribution.py",),
    ),
    Row("Ubuntu's own driver", why="its signed modules are of kernels that the lab does not run"),
    Row(
        "Ubuntu 16.04's shape: Python 3.5, its owner's lists, `apt-key`; NVIDIA's branch 460, bare, a reboot (layout: apt and systemd are Debian 12's)",
        ("test_ubuntu1604.py",),
    ),
    Row(
        "CentOS 7's shape: no Python, mirrors that are gone, EPEL; NVIDIA's branch 460, prebuilt, bare, a reboot (layout: yum is dnf 4 here, systemd Debian 12's)",
        ("test_centos7.py",),
    ),
    Row(
        "yum 3, systemd 219 and 229, apt 1.2",
        why="Debian 12 has none of them; planned from tables, and yum's words in `tests/agent/test_changes_yum.py`",
    ),
    Row(
        "Ubuntu 16.04's own nvidia-384",
        why="NVIDIA's toolkit finds its libraries in mode legacy only, whose program is a stand-in here; planned from tables",
    ),
    Row("zypper", why="no repository of SUSE's kind in the lab yet"),
    Row(
        "agents of k3s and RKE2: kubelet 1.36 and containerd 2.2 in their layout, bare, a reboot (the programs `k3s` and `rke2` are stand-ins)",
        ("test_rancher.py",),
    ),
    Row("CRI-O, cri-dockerd; the programs of k3s and RKE2", why="the module proxy has none of them"),
)


def results() -> Mapping[str, Result]:
    """By the rows' names, of those that were run."""
    return {name: Result(**row) for name, row in json.loads(RESULTS.read_text()).items()}


def commit() -> str:
    """The commit that a result is of; it must be all that is run."""
    changed = _git("status", "--porcelain").splitlines()
    others = [line for line in changed if line[3:] not in RECORDS]
    if others:
        raise SystemExit(f"commit your changes first, a result is of a commit: {others[0]}")
    return _git("rev-parse", "--short=10", "HEAD").strip()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run(rows: Sequence[Row], labs: int) -> Mapping[str, Result]:
    """Run the tests of the rows on that many labs at a time, each file on one of them. A test's time counts its fixtures."""
    of = commit()
    # Long files first: the last lab then waits for a short one.
    files = sorted({HERE / test for row in rows for test in row.tests}, key=lambda file: -file.stat().st_size)
    chosen = " or ".join(
        f"({Path(test).stem} and {row.only or 'test'})" for row in rows for test in row.tests
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "--workers", str(labs)]
        words += ["-v", "-m", "lab", "-k", chosen, "--timeout", str(SECONDS), "--junitxml", str(report)]
        subprocess.run([*words, *map(str, files)], cwd=ROOT, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {row.name: result(row, cases, of) for row in rows}


def result(row: Row, cases: Iterable[ElementTree.Element], of: str) -> Result:
    """How the row's tests ended, of all those that were run."""
    stems = {Path(test).stem for test in row.tests}
    own = [
        case
        for case in cases
        if case.get("classname", "").rpartition(".")[2] in stems and row.only in case.get("name", "").lower()
    ]
    bad = sum(case.find("failure") is not None or case.find("error") is not None for case in own)
    passed = len(own) - bad - sum(case.find("skipped") is not None for case in own)
    seconds = sum(float(case.get("time", "0")) for case in own)
    text = f"{passed} passed, {bad} failed, in {seconds:.0f} s"
    return Result(passed > 0 and not bad, text, time.strftime("%Y-%m-%d"), of)


def main(words: list[str]) -> int:
    """0 if no row failed."""
    from tests import support
    from tests.lab import lab

    rows = [row for row in ROWS if row.tests and (not words or any(word in row.name for word in words))]
    outcomes = {**results(), **run(rows, lab.count())}
    ordered = {row.name: asdict(outcomes[row.name]) for row in ROWS if row.name in outcomes}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    support.PATH.write_text(support.text(), encoding="utf-8")
    bad = [row.name for row in rows if not outcomes[row.name].ok]
    print(f"{len(rows) - len(bad)} of {len(rows)} rows passed" + "".join(f"\nfailed: {name}" for name in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
