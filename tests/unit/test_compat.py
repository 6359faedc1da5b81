"""The tables say what they should, agree with each other, and look-ups answer for what is in none."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

import gpunode
from gpunode.links.driver.branches import branches, fixed_for, flavours_of, kernel_version
from gpunode.links.kubelet import minors
from gpunode.links.machine import pci
from gpunode.links.toolkit.plan import refreshes
from gpunode.model import Flavour, Os, Package, PciDevice
from gpunode.packages import repositories
from gpunode.packages.names import PackageNames
from gpunode.planning.tables import table
from tests import tables

APT = PackageNames("apt")
LABEL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def test_every_table_says_where_it_is_from():
    """A fact without a source cannot be checked again."""
    root = Path(gpunode.__file__).parent
    tables = [path for room in ("links", "packages") for path in (root / room).rglob("*.yaml")]
    tables += [root / "planning/branches.yaml", root / "planning/mig.yaml"]
    assert len(tables) > 10
    for entry in tables:
        assert "# source" in entry.read_text(encoding="utf-8"), entry.name


def test_every_gpu_has_a_driver_a_generation_and_a_label():
    """What is in the table can be made to work, or has a last branch that says until when it could."""
    rows = table("gpunode.links.machine", "gpus.yaml")
    for device, row in rows["gpus"].items():
        model = pci.gpu(device)
        assert any(flavours_of(model, branch) for branch in branches()), device
        assert LABEL.fullmatch(model.accelerator), device
        assert model.first <= model.last, device
        ranges = [
            [int(end, 16) for end in text.split("-")]
            for text in rows["generations"][row["generation"]]["ranges"]
        ]
        assert any(low <= int(device, 16) <= high for low, high in ranges), (
            f"{device} lies outside its generation"
        )


def test_ranges_of_generations_do_not_overlap():
    """An id has one generation."""
    spans = [
        tuple(int(end, 16) for end in limits.split("-"))
        for row in table("gpunode.links.machine", "gpus.yaml")["generations"].values()
        for limits in row["ranges"]
    ]
    spans.sort()
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("device", ["4a00", "", "gpu"])
def test_an_unknown_id_is_named_and_has_no_branch(device: str):
    """Nothing is guessed for it, whatever a host answers."""
    model = pci.gpu(device)
    assert (model.name, flavours_of(model, 595)) == (f"unknown GPU 10de:{device}", ())


@pytest.mark.parametrize(
    ("device", "branch", "flavours"),
    [
        ("15f8", 580, ("proprietary",)),
        ("15f8", 595, ()),
        ("2330", 595, ("open", "proprietary")),
        ("2330", 620, ("open",)),
        ("1eb8", 550, ("proprietary",)),
        ("1eb8", 575, ("open", "proprietary")),
        ("2901", 595, ("open",)),
        ("2342", 565, ("open",)),
    ],
)
def test_module_flavours_of_a_branch(device: str, branch: int, flavours: tuple[str, ...]):
    """Pascal has no open module, Blackwell no proprietary one, 620 no proprietary one for anybody."""
    assert flavours_of(pci.gpu(device), branch) == flavours


def test_only_display_controllers_of_nvidia_are_gpus():
    """Audio, USB and NVSwitch functions of the same vendor are not, nor is another vendor's display."""
    rows = [
        ("10de", "030200"),
        ("10DE", "030000"),
        ("10de", "040300"),
        ("10de", "068000"),
        ("1002", "030000"),
    ]
    functions = [PciDevice(f"0000:0{n}:00.0", vendor, "2330", cls) for n, (vendor, cls) in enumerate(rows)]
    assert [device.address for device in pci.gpus(functions)] == ["0000:00:00.0", "0000:01:00.0"]


@pytest.mark.parametrize(
    ("branch", "flavour", "names", "pin"),
    [
        (550, "proprietary", ("cuda-drivers-550",), ()),
        (580, "proprietary", ("cuda-drivers-580",), ("nvidia-driver-pinning-580",)),
        (580, "open", ("nvidia-open-580",), ("nvidia-driver-pinning-580",)),
        (590, "open", ("nvidia-open",), ("nvidia-driver-pinning-590",)),
        (595, "proprietary", ("cuda-drivers",), ("nvidia-driver-pinning-595",)),
    ],
)
def test_package_names_by_branch(branch: int, flavour: Flavour, names: tuple[str, ...], pin: tuple[str, ...]):
    """From 590 on names carry no branch, and the pinning package chooses it."""
    assert tuple(spec.name for spec in APT.driver(branch, flavour)) == names
    assert tuple(spec.name for spec in APT.pin(branch)) == pin


def test_one_branch_is_the_production_one():
    """`driver: auto` prefers it."""
    assert [branch.status for branch in branches().values()].count("production") == 1


def test_the_toolkits_libraries_are_no_driver():
    """libnvidia-container1 looks like one and is not."""
    names = [
        "libnvidia-ml1",
        "libnvidia-container1",
        "nvidia-container-toolkit",
        "libnvidia-nscq",
        "cuda-drivers",
    ]
    packages = {name: Package(name, "1") for name in names}
    assert sorted(APT.driver_family(packages)) == ["cuda-drivers", "libnvidia-ml1"]


@tables.rows("drivers-that-do-not-compile")
def test_a_driver_that_does_not_compile_for_a_kernel_is_known_with_the_version_that_does(
    driver: str, kernel: str, fixed: str
):
    """A branch stands for its newest version."""
    assert fixed_for(driver, kernel) == fixed


def test_kernels_have_versions():
    """Of releases as `uname -r` prints them."""
    assert kernel_version("6.1.0-40-amd64") == (6, 1)
    assert kernel_version("custom") == (0, 0)


def test_kubernetes_minors():
    """Of versions as kubelets print them."""
    assert [minors.minor(v) for v in ("v1.23.17", "1.36.3", "1.9.11-gke.1", "unknown")] == [
        23,
        36,
        9,
        None,
    ]
    assert minors.has_dockershim(23)
    assert not minors.has_dockershim(24)
    assert minors.fails_on_cgroup_v1(35)
    assert not minors.fails_on_cgroup_v1(34)


def test_a_gates_life():
    """DevicePlugins: off by default before 1.10, locked from 1.26, gone from 1.28."""
    gate = minors.GATES["DevicePlugins"]
    assert [gate.is_default(m) for m in (9, 10)] == [False, True]
    assert [gate.is_locked(m) for m in (25, 26)] == [False, True]
    assert [gate.is_gone(m) for m in (27, 28)] == [False, True]


@pytest.mark.parametrize(
    ("uri", "dead"),
    [
        ("https://nvidia.github.io/nvidia-docker/debian9/amd64", True),
        ("https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64", True),
        ("https://nvidia.github.io/libnvidia-container/stable/deb/amd64", False),
        ("http://deb.example/debian", False),
    ],
)
def test_repositories_that_nvidia_gave_up(uri: str, dead: bool):
    """They are told by their paths, so that mirrors of them are too."""
    assert repositories.is_dead("apt", uri) is dead


@tables.rows("repository-keys")
def test_a_repositorys_key_is_its_directorys(uri: str, ends: str | None, refused: str):
    """Whose apt it is decides only whether it takes the signature. A mirror may have signed anew."""
    trixie = Os("debian", "13", "Debian GNU/Linux 13 (trixie)", arch="amd64")
    known = repositories.key_fingerprint(trixie, uri)
    assert (known and known[-8:]) == ends
    assert repositories.refused_directory(trixie, uri) == refused
    assert not repositories.refused_directory(replace(trixie, version="12"), uri)


@pytest.mark.parametrize(
    ("module", "since"),
    [
        ("updates/dkms/nvidia.ko", (1, 18, 0)),
        ("extra/nvidia.ko.xz", (1, 18, 0)),
        ("updates/dkms/nvidia-current.ko", (1, 18, 1)),
        ("updates/dkms/nvidia-current.ko.xz", (1, 18, 2)),
        ("updates/dkms/nvidia-current-open.ko", None),
        ("updates/dkms/nvidia-tesla-470.ko", None),
    ],
)
def test_the_toolkits_unit_writes_the_specification_from_the_version_on_that_knows_the_module(
    module: str, since: tuple[int, ...] | None
):
    """But 1.18.1 knows no compressed one."""
    for version in ((1, 17, 8), (1, 18, 0), (1, 18, 1), (1, 18, 2), (1, 19, 0), (1, 19, 1), (1, 20, 1)):
        compressed = version == (1, 18, 1) and not module.endswith(".ko")
        assert refreshes(version, [module]) == bool(since and version >= since and not compressed), version
    assert refreshes((), [module]) == bool(since)
    assert not refreshes((1, 20, 1), [])
