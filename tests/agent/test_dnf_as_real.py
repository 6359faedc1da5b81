"""The agent with the real dnf and rpm, in a folder: signed repositories with NVIDIA's names, epochs and module streams."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine.chain import decide
from gpunode.model import Packages, PackageSpec
from gpunode.packages.dnf.plan import NAMES
from tests import cases, rpms
from tests.agent.conftest import Host
from tests.rpms import Key, Package

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(rpms.MISSING), reason=f"not installed: {', '.join(rpms.MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="dnf installs into a folder as root only"),
]
LOCKS = "/etc/dnf/plugins/versionlock.list"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"
RELEASES = ("570.195.03", "580.95.05", "580.178.04")


def parts(release: str) -> tuple[Package, ...]:
    """A release of the driver."""
    version, full = f"3:{release}", f"3:{release}-1.el9"
    return (
        Package(
            "nvidia-driver-cuda",
            full,
            (f"Requires: libnvidia-ml = {version}", f"Requires: nvidia-persistenced = {version}"),
            "x86_64",
        ),
        Package("libnvidia-ml", full, (), "x86_64"),
        Package("nvidia-persistenced", f"{version}-2.el9", (), "x86_64"),  # of a spec of its own
        Package("kmod-nvidia-open-dkms", full, ("Requires: dkms", f"Provides: nvidia-kmod = {version}")),
    )


@dataclass(frozen=True)
class Repositories:
    """Two repositories, the key that signs them, and one that does not."""

    folder: Path
    key: Key
    other: Key


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Iterator[Repositories]:
    """NVIDIA's with streams, and the distribution's with dkms and two kernels' headers."""
    folder = tmp_path_factory.mktemp("rpms")
    key, other = Key.made(folder / "keys", "lab"), Key.made(folder / "keys", "other")
    drivers = {release: parts(release) for release in RELEASES}
    newest = [entry for entry in drivers["580.95.05"] if "dkms" not in entry.name] + [*drivers["580.178.04"]]
    streams = {
        "570-open": drivers["570.195.03"],
        "580-open": drivers["580.95.05"] + drivers["580.178.04"],
        "580-nvidia": newest,  # as NVIDIA's are: only the newest module of the branch
    }
    rpms.build(folder / "driver", [each for release in drivers.values() for each in release], key, streams)
    rpms.build(folder / "flat", [package for release in drivers.values() for package in release], key)
    kernels = [
        Package("kernel-devel", v, ("Provides: installonlypkg(kernel)",), "x86_64") for v in ("5-1", "5-2")
    ]
    script = "%post -p <lua>\nerror('no module was built')"
    broken = (Package("broken", "1-1", (script,)), Package("lonely", "1-1", ("Requires: nowhere",)))
    user = Package("user", "1-1", ("Requires: dkms",))
    rpms.build(folder / "base", [Package("dkms", "3.3.0-1.el9"), user, *kernels, *broken], key)
    matched = [
        Package(
            "kernel-devel-matched",
            v,
            (f"Requires: kernel-devel = {v}", f"Requires: kernel-core = {v}"),
            "x86_64",
        )
        for v in ("5-1", "5-2")
    ]
    cores = [
        Package("kernel-core", v, ("Provides: installonlypkg(kernel)",), "x86_64") for v in ("5-1", "5-2")
    ]
    dkms = Package("dkms", "3.4.1-1.el9", ("Requires: (kernel-devel-matched if kernel-core)",))
    rpms.build(folder / "epel", [dkms, *kernels, *matched, *cores], key)
    yield Repositories(folder, key, other)
    key.close()
    other.close()


@pytest.fixture
def rocky(host: Host, repositories: Repositories) -> Host:
    """A host whose dnf and rpm are the real ones, below its root."""
    host.write("/etc/os-release", 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n')
    host.write(
        "/etc/dnf/dnf.conf",
        "[main]\ngpgcheck=1\nbest=True\nskip_if_unavailable=False\nclean_requirements_on_remove=1\n",
    )
    host.write("/plugins/conf/versionlock.conf", f"[main]\nenabled=1\nlocklist={host.root}{LOCKS}\n")
    host.write(LOCKS, "")
    host.write("/plugins/versionlock.py", rpms.VERSIONLOCK.read_text())
    host.write("/key.asc", repositories.key.text)
    host.write("/other.asc", repositories.other.text)
    options = (
        f"--installroot={host.root} --releasever=9 --setopt=module_platform_id=platform:el9"
        f" --setopt=pluginpath={host.root}/plugins --setopt=pluginconfpath={host.root}/plugins/conf"
    )
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH;"
    host.program("dnf", f'{path} exec /usr/bin/dnf {options} "$@"')
    host.program("rpm", f'{path} exec /usr/bin/rpm --root={host.root} "$@"')
    repository(host, "gpunode-driver", repositories.folder / "driver")
    repository(host, "base", repositories.folder / "base")
    return host


def repository(
    host: Host, name: str, place: Path | str, key: str = "key.asc", check: str = "gpgcheck"
) -> None:
    """A file of a repository: what is checked with which key."""
    uri = place if isinstance(place, str) else place.as_uri()
    unchecked = {"gpgcheck": "repo_gpgcheck", "repo_gpgcheck": "gpgcheck"}[check]
    lines = f"baseurl={uri}\nenabled=1\n{check}=1\n{unchecked}=0\ngpgkey=file://{host.root}/{key}\n"
    host.write(f"/etc/yum.repos.d/{name}.repo", f"[{name}]\nname={name}\n{lines}")


def stream(host: Host, name: str) -> None:
    """Enable a stream, as gpunode writes it."""
    host.write(STREAM, f"[nvidia-driver]\nname=nvidia-driver\nstream={name}\nprofiles=\nstate=enabled\n")


def driver(version: str) -> Packages:
    """A driver as it is planned."""
    specs = [
        PackageSpec(name, version, downgrade=True) for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")
    ]
    return Packages("why", install=tuple(specs), hold=tuple(spec.name for spec in specs))


def versions(host: Host) -> dict[str, str]:
    """What is installed."""
    packages = host.probe(packages=("*",))["packages"]
    return {name: package["version"] for name, package in packages.items() if "gpg-pubkey" not in name}


def upgrade(host: Host) -> None:
    """What a user or dnf-automatic does."""
    subprocess.run(
        [str(host.bin / "dnf"), "-y", "upgrade"], env=host.environment, check=True, capture_output=True
    )


REFRESH = Packages("why", refresh=True)


def test_a_driver_of_a_stream_is_installed_locked_upgraded_and_taken_back(rocky: Host):
    """Its epoch is 3; dnf upgrade leaves it alone; what gpunode itself plans goes through."""
    stream(rocky, "580-open")
    headers = Packages("why", install=(PackageSpec("kernel-devel-5-1"),))
    assert rocky.apply(REFRESH, headers, driver("3:580.95.*"))[-1]["ok"]
    full = "3:580.95.05-1.el9"
    driven = dict.fromkeys(("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml"), full)
    others = {"nvidia-persistenced": "3:580.95.05-2.el9", "dkms": "3.3.0-1.el9", "kernel-devel-5-1": "5-1"}
    assert versions(rocky) == {**driven, **others}
    held = rocky.probe(packages=("nvidia-driver-cuda",))["packages"]["nvidia-driver-cuda"]["held"]
    assert held is True
    text = rocky.read(STREAM)
    upgrade(rocky)
    assert {versions(rocky)[name] for name in driven} == {full}
    assert rocky.apply(driver("3:580.*"))[-1]["ok"]
    assert {versions(rocky)[name] for name in driven} == {"3:580.178.04-1.el9"}
    assert rocky.read(LOCKS).count("580.178.04") == 4
    assert "580.95" not in rocky.read(LOCKS)
    assert rocky.apply(driver("3:580.95.*"))[-1]["ok"]
    assert {versions(rocky)[name] for name in driven} == {full}
    assert rocky.read(STREAM) == text


def test_another_branch_goes_in_after_the_first_has_gone(rocky: Host):
    """What others use, and what was brought along, stays."""
    stream(rocky, "570-open")
    assert rocky.apply(REFRESH, driver("3:570.*"))[-1]["ok"]
    stream(rocky, "580-open")
    gone = Packages("why", remove=("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml"))
    assert rocky.apply(gone)[-1]["ok"]
    assert versions(rocky) == {"dkms": "3.3.0-1.el9", "nvidia-persistenced": "3:570.195.03-2.el9"}
    assert rocky.apply(driver("3:580.*"))[-1]["ok"]
    assert versions(rocky)["libnvidia-ml"] == "3:580.178.04-1.el9"


def test_without_streams_the_locks_keep_the_branch(rocky: Host, repositories: Repositories):
    """As on release 10, where one flat repository has all branches: an upgrade of everything succeeds and changes nothing."""
    repository(rocky, "gpunode-driver", repositories.folder / "flat")
    assert rocky.apply(REFRESH, driver("3:570.*"))[-1]["ok"]
    before = versions(rocky)
    assert before["libnvidia-ml"] == "3:570.195.03-1.el9"
    upgrade(rocky)
    assert {name: versions(rocky)[name] for name in before} == before
    assert rocky.apply(driver("3:580.*"))[-1]["ok"]
    assert versions(rocky)["libnvidia-ml"] == "3:580.178.04-1.el9"


def test_a_version_whose_module_is_in_no_stream_needs_hotfixes(rocky: Host):
    """Which gpunode's repository has when the inventory names a version in full."""
    stream(rocky, "580-nvidia")
    failed = rocky.fail(REFRESH, driver("3:580.95.05-*"))
    assert (failed["code"], "kmod-nvidia-open-dkms" in failed["error"]) == ("modules-filtered", True)
    path = rocky.path("/etc/yum.repos.d/gpunode-driver.repo")
    path.write_text(path.read_text() + "module_hotfixes=1\n")
    assert rocky.apply(REFRESH, driver("3:580.95.05-*"))[-1]["ok"]
    assert versions(rocky)["kmod-nvidia-open-dkms"] == "3:580.95.05-1.el9"
    upgrade(rocky)
    assert versions(rocky)["kmod-nvidia-open-dkms"] == "3:580.95.05-1.el9"


def test_headers_of_the_running_kernel_go_in_beside_those_of_another(rocky: Host):
    """dnf takes a kernel's packages side by side."""
    for release in ("2", "1"):
        assert rocky.apply(Packages("why", install=(PackageSpec(f"kernel-devel-5-{release}"),)))[-1]["ok"]
    assert set(versions(rocky)) == {"kernel-devel-5-1", "kernel-devel-5-2"}


def test_dkms_brings_no_new_kernel(rocky: Host, repositories: Repositories):
    """It requires what belongs to some kernel; the running one's is installed before it, or dnf is stopped."""
    repository(rocky, "base", repositories.folder / "epel")
    stream(rocky, "580-open")
    subprocess.run(
        [str(rocky.bin / "dnf"), "-y", "install", "kernel-core-5-1"], env=rocky.environment, check=True
    )
    failed = rocky.fail(REFRESH, driver("3:580.*"))
    assert (failed["code"], "kernel-core 5-2" in failed["error"]) == ("would-install-kernel", True)
    headers = tuple(PackageSpec(f"kernel-devel{name}-5-1") for name in ("-matched", ""))
    assert rocky.apply(Packages("why", install=headers), driver("3:580.*"))[-1]["ok"]
    assert [name for name in versions(rocky) if name.startswith("kernel-core")] == ["kernel-core-5-1"]


def test_packages_and_metadata_are_checked_with_the_key_of_their_repository(
    rocky: Host, repositories: Repositories
):
    """NVIDIA signs its driver's packages, and its toolkit's metadata."""
    packages = Packages("why", install=(PackageSpec("dkms"),))
    place = repositories.folder / "base"
    repository(rocky, "base", place, "other.asc")
    failed = rocky.fail(REFRESH, packages)
    assert (failed["code"], "Public key for dkms" in failed["error"]) == ("repository-unsigned", True)
    rocky.path("/etc/yum.repos.d/base.repo").unlink()
    repository(rocky, "gpunode-toolkit", place, "other.asc", "repo_gpgcheck")
    assert rocky.fail(REFRESH)["code"] == "repository-unsigned"
    assert versions(rocky) == {}
    repository(rocky, "gpunode-toolkit", place, "key.asc", "repo_gpgcheck")
    assert rocky.apply(REFRESH, packages)[-1]["ok"]


def test_a_repository_that_does_not_answer_stops_it_only_if_it_is_gpunodes(rocky: Host):
    """Nothing listens on port 9."""
    repository(rocky, "old", "http://127.0.0.1:9/x")
    messages = rocky.apply(REFRESH, Packages("why", install=(PackageSpec("dkms"),)))
    assert messages[-1]["ok"]
    assert "could not read the repository old: Curl error (7)" in str(messages)
    repository(rocky, "gpunode-toolkit", "http://127.0.0.1:9/x")
    assert rocky.fail(REFRESH)["code"] == "repository-unreachable"


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        (PackageSpec("nvidia-driver-cuda", "3:580.*"), "modules-filtered", "nvidia-driver-cuda-3:580.*"),
        (PackageSpec("nosuch"), "package-missing", "nosuch"),
        (PackageSpec("dkms", "9.*"), "version-missing", "available: 3.3.0-1.el9"),
        (PackageSpec("kernel-devel-5-3"), "headers-missing", "kernel-devel-5-3"),
        (PackageSpec("lonely"), "dependency-missing", "nowhere, which lonely-1-1.noarch needs"),
    ],
)
def test_what_cannot_be_installed_has_its_cause(rocky: Host, spec: PackageSpec, code: str, words: str):
    """In the words of the real one. Nothing was changed."""
    stream(rocky, "570-open")
    failed = rocky.fail(REFRESH, Packages("why", install=(spec,)))
    assert (failed["code"], words in failed["error"]) == (code, True), failed
    assert versions(rocky) == {}


def test_a_mirror_whose_files_are_not_those_of_its_index_is_named(
    rocky: Host, repositories: Repositories, tmp_path
):
    """A package that was changed, and then the index itself. Nothing was installed."""
    place = shutil.copytree(repositories.folder / "base", tmp_path / "mirror")
    repository(rocky, "base", place)
    for file in place.rglob("dkms*.rpm"):
        file.write_bytes(file.read_bytes() + b"more")
    failed = rocky.fail(REFRESH, Packages("why", install=(PackageSpec("dkms"),)))
    assert (failed["code"], "dkms-3.3.0-1.el9.noarch" in failed["error"]) == ("repository-damaged", True)
    for file in place.rglob("*primary.xml*"):
        file.write_bytes(file.read_bytes() + b"more")
    repository(rocky, "gpunode-driver", place)
    failed = rocky.fail(REFRESH)
    assert (failed["code"], "checksum doesn't match" in failed["error"]) == ("repository-damaged", True)
    assert versions(rocky) == {}


def test_without_repositories_it_says_so(rocky: Host):
    """As on RHEL without a subscription."""
    for path in rocky.path("/etc/yum.repos.d").iterdir():
        path.unlink()
    assert rocky.fail(REFRESH)["code"] == "no-repositories"


def test_a_version_that_the_user_has_locked_stays_locked(rocky: Host):
    """The lock is named, and the list is as it was."""
    stream(rocky, "580-open")
    rocky.write(LOCKS, "libnvidia-ml-3:580.95*\n")
    failed = rocky.fail(REFRESH, driver("3:580.178*"))
    assert failed["code"] == "version-locked"
    assert "libnvidia-ml-3:580.178.04" in failed["error"]
    assert rocky.read(LOCKS) == "libnvidia-ml-3:580.95*\n"


def test_nothing_is_removed_that_was_not_planned(rocky: Host):
    """The package `user` needs dkms."""
    assert rocky.apply(REFRESH, Packages("why", install=(PackageSpec("user"),)))[-1]["ok"]
    failed = rocky.fail(Packages("why", remove=("dkms",)))
    assert (failed["code"], failed["error"]) == (
        "would-remove",
        "dnf would also remove user, which was not planned",
    )
    assert set(versions(rocky)) == {"dkms", "user"}


def test_a_script_that_fails_is_told_though_dnf_goes_on(rocky: Host):
    """rpm counts the package as installed."""
    failed = rocky.fail(REFRESH, Packages("why", install=(PackageSpec("broken"),)))
    assert (failed["code"], failed["error"][:24]) == ("rpm-failed", "a script of broken faile")
    assert "no module was built" in failed["error"]


def test_the_real_lock_is_reported_with_its_holder(rocky: Host):
    """dnf's own words, where its file appeared after the agent had looked."""
    rocky.write("/state/late", "")
    wrapper = rocky.bin / "dnf"
    late = 'echo 1 > "$GPUNODE_ROOT/var/cache/dnf/metadata_lock.pid"\n'
    wrapper.write_text(wrapper.read_text().replace("PATH=", f"{late}PATH=", 1))
    rocky.path("/var/cache/dnf").mkdir(parents=True)
    failed = rocky.fail(REFRESH)
    assert (failed["code"], "(pid 1)" in failed["error"]) == ("dnf-locked", True), failed


def test_of_two_repositories_with_other_versions_the_planned_one_is_taken(
    rocky: Host, repositories: Repositories, tmp_path
):
    """Another one has a newer branch, which neither the installation nor an upgrade takes."""
    rpms.build(tmp_path / "newer", list(parts("595.91.07")), repositories.key)
    repository(rocky, "gpunode-driver", repositories.folder / "flat")
    repository(rocky, "newer", tmp_path / "newer")
    assert rocky.apply(REFRESH, driver("3:580.*"))[-1]["ok"]
    upgrade(rocky)
    installed = versions(rocky)
    assert {installed[name] for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml")} == {
        "3:580.178.04-1.el9"
    }


def test_nvidia_docker2_comes_with_the_toolkit_and_goes_alone(
    rocky: Host, repositories: Repositories, tmp_path
):
    """In its last version, which has no file: the owner's daemon.json stays, as over an upgrade of everything."""
    specs = (*NAMES.toolkit("1.20.1"), NAMES.wrapper)
    toolkit = [Package(spec.name, spec.version) for spec in specs[:-1]]
    newer = [Package(spec.name, "1.20.2-1") for spec in specs[:-1]]
    needs = ("Requires: nvidia-container-toolkit >= 1.14.0",)
    older = {"/etc/docker/daemon.json": '{"runtimes": {}}\n'}
    docker2 = [
        Package("nvidia-docker2", "2.13.0-1", ("Requires: nvidia-container-toolkit",), files=older),
        Package("nvidia-docker2", "2.14.0-1", needs),
    ]
    rpms.build(tmp_path / "toolkit", [*toolkit, *newer, *docker2], repositories.key)
    repository(rocky, "gpunode-toolkit", tmp_path / "toolkit")
    rocky.write("/etc/docker/daemon.json", '{"debug": true}\n')
    held = tuple(spec.name for spec in specs)
    assert rocky.apply(REFRESH, Packages("why", install=specs, hold=held))[-1]["ok"]
    expected = {spec.name: spec.version for spec in specs}
    assert versions(rocky) == expected
    upgrade(rocky)
    assert versions(rocky) == expected
    assert rocky.read("/etc/docker/daemon.json") == '{"debug": true}\n'
    assert rocky.apply(Packages("why", remove=("nvidia-docker2",)))[-1]["ok"]
    assert versions(rocky) == {spec.name: spec.version for spec in specs[:-1]}


def old(release: str) -> tuple[Package, ...]:
    """A release of the driver as NVIDIA's repository for RHEL 7 has it: a branch is part of its packages' names."""
    branch, version = release[:3], f"3:{release}"
    needs = (
        f"Requires: nvidia-driver-branch-{branch}-cuda-libs = {version}",
        f"Requires: nvidia-kmod = {version}",
    )
    modules = (f"Provides: nvidia-kmod = {version}", "Conflicts: nvidia-kmod")
    return (
        Package(f"nvidia-driver-branch-{branch}-cuda", f"{version}-1.el7", needs, "x86_64"),
        Package(f"nvidia-driver-branch-{branch}-cuda-libs", f"{version}-1.el7", (), "x86_64"),
        Package(f"kmod-nvidia-branch-{branch}", f"3:3.10.0-1160.r{release}.el7", modules, "x86_64"),
    )


def planned(host: Host, wish: str) -> list[Packages]:
    """What gpunode plans for the driver of CentOS 7.9, by what is installed below this root."""
    there = host.probe(packages=("*nvidia*",))["packages"]
    facts: dict[str, object] = {"packages": there}
    for name, version in there.items():
        if name.endswith("-cuda"):
            release = version["version"].removeprefix("3:").partition("-")[0]
            modules = dict.fromkeys(("nvidia", "nvidia_uvm", "nvidia_modeset"), release)
            facts |= {"modules": modules, "library_version": release}
    wanted = cases.host("centos", {"driver": wish, "system_repository": "http://mirror.example/os"})
    seen = cases.facts("centos", facts)
    steps = pipeline.plan(wanted, seen, decide(wanted, seen, None)).steps
    return [
        each for step in steps if step.step == "driver" for each in step.changes if isinstance(each, Packages)
    ]


def test_full_versions_of_branches_in_the_names_go_in_back_and_over(
    rocky: Host, repositories: Repositories, tmp_path
):
    """As CentOS 7 has them, from one repository with all: neither the newest of the branch nor an upgrade is taken."""
    releases = ("460.32.03", "460.106.00", "510.47.03", "510.108.03")
    rpms.build(tmp_path / "rhel7", [each for release in releases for each in old(release)], repositories.key)
    repository(rocky, "gpunode-driver", tmp_path / "rhel7")
    assert rocky.apply(REFRESH)[-1]["ok"]
    for release in ("460.32.03", "460.106.00", "460.32.03", "510.47.03"):
        assert rocky.apply(*planned(rocky, release))[-1]["ok"]
        expected = {entry.name: entry.version for entry in old(release)}
        assert versions(rocky) == expected
        upgrade(rocky)
        assert versions(rocky) == expected
        assert planned(rocky, release) == []
