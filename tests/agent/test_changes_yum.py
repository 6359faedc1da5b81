"""The agent changes packages with yum 3, as on CentOS 7. No real yum was there: its words are those of its sources and manuals."""

from collections.abc import Mapping

import pytest

from gpunode.model import Packages, PackageSpec
from tests.agent.conftest import Host
from tests.agent.test_changes_dnf import Rocky

CENTOS = 'ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"\n'
LOCKS = "/etc/yum/pluginconf.d/versionlock.list"
RULE = "=" * 80
DRIVER = (
    PackageSpec("nvidia-driver-branch-460-cuda", "3:460.*", downgrade=True),
    PackageSpec("kmod-nvidia-branch-460", downgrade=True),
)
NAMES = tuple(spec.name for spec in DRIVER)
TABLE = f"""Loaded plugins: fastestmirror, versionlock
Resolving Dependencies
--> Running transaction check
---> Package nvidia-driver-branch-460-cuda.x86_64 3:460.106.00-1.el7 will be installed
--> Finished Dependency Resolution

Dependencies Resolved

{RULE}
 Package                         Arch    Version                          Repository      Size
{RULE}
Installing:
 kmod-nvidia-branch-460          x86_64  3:3.10.0-1160.r460.106.00.el7    gpunode-driver   25 M
 nvidia-driver-branch-460-cuda   x86_64  3:460.106.00-1.el7               gpunode-driver  450 k
Installing for dependencies:
 ocl-icd                         x86_64  2.2.12-1.el7                     epel             40 k
%s
Transaction Summary
{RULE}
Install  2 Packages (+1 Dependent package)

Total download size: 27 k
Installed size: 40 k
Exiting on user command
Your transaction was saved, rerun it with:
 yum load-transaction /tmp/yum_save_tx.x.yumtx
"""


class Centos(Rocky):
    """A host of rpm and yum."""

    wish = DRIVER

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        (host.bin / "dnf").rename(host.bin / "yum")
        text = (host.bin / "yum").read_text()
        host.write("/etc/os-release", CENTOS)
        script = text.replace("makecache)", "makecache|clean)").replace('"dnf $*"', '"yum $*"')
        (host.bin / "yum").write_text(script)
        self.says("dry", TABLE % "", 1)

    def yum(self) -> list[str]:
        return [call.partition("--color=never ")[2] for call in self.host.calls() if call.startswith("yum ")]

    def changing(self) -> list[str]:
        return [call for call in self.yum() if call.startswith("install -y")]


@pytest.fixture
def centos(host: Host) -> Centos:
    """Without packages."""
    return Centos(host)


def test_packages_are_installed_and_locked_in_yums_order(centos: Centos):
    """The epoch comes first in its list; the packages of the driver's version go with it."""
    centos.rpms(
        "nvidia-driver-branch-460-cuda\t3:460.106.00-1.el7\tx86_64\nkmod-nvidia-branch-460\t3:3.10.0-1160.r460.106.00.el7\tx86_64\n"
        "nvidia-driver-branch-460-cuda-libs\t3:460.106.00-1.el7\tx86_64\nbash\t4.2.46-35.el7_9\tx86_64\n"
    )
    messages = centos.host.apply(Packages("why", install=DRIVER, hold=NAMES, refresh=True))
    assert messages[-1] == {"type": "end", "ok": True}
    assert centos.yum() == [
        "-y clean expire-cache",
        "-y makecache fast",
        "install --assumeno nvidia-driver-branch-460-cuda-3:460.* kmod-nvidia-branch-460",
        "install -y nvidia-driver-branch-460-cuda-3:460.* kmod-nvidia-branch-460",
    ]
    assert centos.host.read(LOCKS).splitlines() == [
        "3:kmod-nvidia-branch-460-3.10.0-1160.r460.106.00.el7.*",
        "3:nvidia-driver-branch-460-cuda-460.106.00-1.el7.*",
        "3:nvidia-driver-branch-460-cuda-libs-460.106.00-1.el7.*",
    ]
    packages = centos.host.probe(packages=("*nvidia*",))["packages"]
    assert {name: entry["held"] for name, entry in packages.items()} == dict.fromkeys(packages, True)
    assert len(packages) == 3


def test_own_locks_are_lifted_for_a_change_and_the_users_stay(centos: Centos):
    """They come back as they were when yum fails."""
    before = "3:nvidia-driver-branch-460-cuda-460.91.03-1.el7.*\n0:kernel-3.10.0-1160.el7.*\n"
    centos.host.write(LOCKS, before)
    centos.host.write(
        "/state/dnf-run", f'cat "$GPUNODE_ROOT{LOCKS}" > "$GPUNODE_ROOT/state/seen"; echo Error: no; exit 1\n'
    )
    assert centos.host.fail(Packages("why", install=DRIVER))["code"] == "dnf-failed"
    assert centos.host.read("/state/seen") == "0:kernel-3.10.0-1160.el7.*\n"
    assert centos.host.read(LOCKS) == before


FAILURES: Mapping[str, tuple[str, int, str]] = {
    "package-missing": (
        "No package kmod-nvidia-branch-460 available.\n" + TABLE % "",
        1,
        "no repository of this host has the package kmod-nvidia-branch-460",
    ),
    "headers-missing": (
        "No package kernel-devel-3.10.0-957.el7 available.\nError: Nothing to do\n",
        1,
        "no repository of this host has the headers of its running kernel: kernel-devel-3.10.0-957.el7",
    ),
    "no-repositories": (
        'There are no enabled repos.\n Run "yum repolist all" to see the repos you have.\n',
        1,
        "yum has no enabled repository",
    ),
    "would-remove": (
        TABLE % "Removing for dependencies:\n kubelet    x86_64  1.16.15-0   @kubernetes   13 M\n",
        1,
        "yum would also remove kubelet, which was not planned",
    ),
    "would-install-kernel": (
        TABLE % "Updating for dependencies:\n kernel    x86_64  3.10.0-1160.119.1.el7   updates   52 M\n",
        1,
        "yum would also install a kernel, kernel 3.10.0-1160.119.1.el7",
    ),
    "repository-damaged": (
        "Downloading packages:\nhttp://mirror.example/kmod.rpm: [Errno -1] Package does not match intended download. "
        "Suggestion: run yum --enablerepo=gpunode-driver clean metadata\nTrying other mirror.\n",
        1,
        "yum fetched a file that does not match its index: http://mirror.example/kmod.rpm",
    ),
    "repository-unsigned": (
        "Public key for kmod-nvidia-branch-460-3.10.0-1160.r460.106.00.el7.x86_64.rpm is not installed\n"
        'The GPG keys listed for the "NVIDIA driver" repository are already installed but they are not correct for this package.\n'
        "warning: /var/cache/yum/x.rpm: Header V4 RSA/SHA512 Signature, key ID d42d0685: NOKEY\n",
        1,
        "yum cannot check the signature: Public key for kmod-nvidia-branch-460-3.10.0-1160.r460.106.00.el7.x86_64.rpm",
    ),
    "rpmdb-broken": (
        "error: rpmdb: BDB0113 Thread/process 4242/140 failed: BDB1507 Thread died in Berkeley DB library\n"
        "error: db5 error(-30973) from dbenv->failchk: BDB0087 DB_RUNRECOVERY: Fatal error, run database recovery\n"
        "CRITICAL:yum.main:\nError: rpmdb open failed\n",
        1,
        "rpm's database is damaged: rpmdb open failed",
    ),
    "disk-full": (
        "Error Summary\n-------------\nDisk Requirements:\n  At least 310MB more space needed on the / filesystem.\n",
        1,
        "At least 310MB more space needed on the / filesystem.",
    ),
    "dependency-missing": (
        "Error: Package: 3:nvidia-driver-branch-460-cuda-libs-460.106.00-1.el7.x86_64 (gpunode-driver)\n"
        "           Requires: ocl-icd\n You could try using --skip-broken to work around the problem\n",
        1,
        "no repository of this host has ocl-icd, which 3:nvidia-driver-branch-460-cuda-libs-460.106.00-1.el7.x86_64 needs",
    ),
}


# Where a name is missing, yum installs the rest: gpunode stops before it.
FOUND = tuple((code, *said) for code, said in FAILURES.items())


def test_a_version_that_the_user_has_locked_away_is_named(centos: Centos):
    """yum knows no such package then. A lock on another one is no cause."""
    text = 'Excluding 1 update due to versionlock (use "yum versionlock status" to show it)\nNo package %s available.\n'
    centos.host.write(LOCKS, "3:kmod-nvidia-branch-460-3.10.0-1127.r460.32.03.el7.x86_64\n")
    centos.says("dry", text % "kmod-nvidia-branch-460" + TABLE % "", 1)
    failed = centos.host.fail(Packages("why", install=DRIVER))
    assert (failed["code"], failed["error"]) == (
        "version-locked",
        "a version lock of the host hides kmod-nvidia-branch-460",
    )
    centos.says("dry", text % "nvidia-driver-branch-460-cuda-3:460.*" + TABLE % "", 1)
    assert centos.host.fail(Packages("why", install=DRIVER))["code"] == "package-missing"


def test_an_earlier_version_is_gone_back_to_by_yums_own_command(centos: Centos):
    """Its `install` finds nothing to do where a later one is there."""
    centos.rpms("nvidia-container-toolkit\t1.20.1-1\tx86_64\nlibnvidia-container1\t1.17.8-1\tx86_64\n")
    there = "\n".join(
        ["Downgrading:", " nvidia-container-toolkit  x86_64  1.17.8-1  gpunode-toolkit  1 M", ""]
    )
    centos.says("dry", TABLE % there, 1)
    names = ("nvidia-container-toolkit", "libnvidia-container1")
    specs = tuple(PackageSpec(name, "1.17.8-1", downgrade=True) for name in names)
    assert centos.host.apply(Packages("why", install=specs))[-1]["ok"]
    assert centos.yum()[2:] == [
        "downgrade --assumeno nvidia-container-toolkit-1.17.8-1",
        "downgrade -y nvidia-container-toolkit-1.17.8-1",
    ]
    centos.says("dry", TABLE % "", 1)
    assert centos.host.apply(Packages("why", install=(PackageSpec("libnvidia-container1"),)))[-1]["ok"]
    assert not [call for call in centos.yum()[4:] if call.startswith("downgrade")]


AWAY = (
    "http://mirror.example/{0}/repodata/repomd.xml: [Errno 14] HTTP Error 404 - Not Found\nTrying other mirror.\n"
    "Metadata Cache Created\n"
)


def test_only_gpunodes_own_repository_stops_it_when_it_cannot_be_read(centos: Centos):
    """Those of CentOS itself are gone on most hosts."""
    centos.host.write(
        "/etc/yum.repos.d/gpunode-driver.repo", "[gpunode-driver]\nbaseurl=http://mirror.example/driver\n"
    )
    centos.says("refresh", AWAY.format("driver"))
    failed = centos.host.fail(Packages("why", refresh=True))
    assert (failed["code"], failed["error"][:60]) == (
        "repository-unreachable",
        "yum could not read http://mirror.example/driver/repodata/rep",
    )
    centos.says("refresh", AWAY.format("base"))
    messages = centos.host.apply(Packages("why", refresh=True))
    assert messages[-1]["ok"]
    assert "http://mirror.example/base" in next(m["text"] for m in messages if m["type"] == "progress")
