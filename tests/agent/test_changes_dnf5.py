"""The agent changes packages with dnf 5, as on Fedora. No real one was there: its words are those of its manual and its sources."""

import pytest

from gpunode.model import Packages, PackageSpec
from tests.agent.conftest import Host
from tests.agent.test_changes_dnf import Rocky

FEDORA = 'ID="fedora"\nVERSION_ID="42"\n'
DRIVER = (
    PackageSpec("nvidia-driver-cuda", "3:580.*", downgrade=True),
    PackageSpec("kmod-nvidia-open-dkms", "3:580.*", downgrade=True),
)
NAMES = tuple(spec.name for spec in DRIVER)
TABLE = """Package                     Arch   Version                Repository      Size
Installing:
 kmod-nvidia-open-dkms      noarch 3:580.178.04-1.fc42    gpunode-driver  18.0 KiB
 nvidia-driver-cuda         x86_64 3:580.178.04-1.fc42    gpunode-driver  2.0 MiB
Installing dependencies:
 dkms                       noarch 0:3.3.0-1.fc42         fedora          210.0 KiB
%s
Transaction Summary:
 Installing:         3 packages

Total size of inbound packages is 3 MiB. Need to download 3 MiB.
After this operation, %s extra will be used (install 10 MiB, remove 0 B).
Operation aborted by the user.
"""
LOCK = """version = "1.0"

# Added by 'versionlock add' command on 2026-11-20 10:00:00
[[packages]]
name = "nvidia-driver-cuda"
[[packages.conditions]]
key = "evr"
comparator = "="
value = "3:570.195.03-1.fc42"
"""


class Fedora(Rocky):
    """A host of rpm and dnf 5, which `dnf` is a link to."""

    wish = DRIVER

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        host.write("/etc/os-release", FEDORA)
        (host.bin / "dnf").rename(host.bin / "dnf5")
        (host.bin / "dnf").symlink_to(host.bin / "dnf5")
        self.says("dry", TABLE % ("", "10 MiB"), 1)


@pytest.fixture
def fedora(host: Host) -> Fedora:
    """Without packages."""
    return Fedora(host)


def asked(fedora: Fedora) -> list[str]:
    """What dnf was asked, without its options."""
    return [call.partition("install_weak_deps=0 ")[2] for call in fedora.dnf()]


def test_locks_are_its_own_commands(fedora: Fedora):
    """There is no --color, and no list that others write."""
    fedora.rpms("nvidia-driver-cuda\t3:570.195.03-1.fc42\tx86_64\n")
    fedora.host.write("/etc/dnf/versionlock.toml", LOCK)
    assert fedora.host.probe(packages=("*nvidia*",))["packages"]["nvidia-driver-cuda"]["held"]
    assert fedora.host.apply(Packages("why", install=DRIVER, refresh=True))[-1] == {"type": "end", "ok": True}
    assert asked(fedora) == [
        "-y --refresh makecache",
        "versionlock delete nvidia-driver-cuda",
        "install --assumeno nvidia-driver-cuda-3:580.* kmod-nvidia-open-dkms-3:580.*",
        "install -y nvidia-driver-cuda-3:580.* kmod-nvidia-open-dkms-3:580.*",
    ]
    assert not any("--color" in call for call in fedora.dnf())


def test_what_is_locked_is_not_locked_again(fedora: Fedora):
    """The other is, and one that is locked at an earlier version; a package's name may begin another's."""
    fedora.host.write("/etc/dnf/versionlock.toml", LOCK + LOCK.replace("cuda", "cuda-libs"))
    fedora.rpms("nvidia-driver-cuda\t3:570.195.03-1.fc42\tx86_64\n")
    assert fedora.host.apply(Packages("why", hold=(*NAMES, "nvidia-driver")))[-1]["ok"]
    assert asked(fedora) == ["versionlock add kmod-nvidia-open-dkms nvidia-driver"]
    fedora.rpms("nvidia-driver-cuda\t3:570.211.01-1.fc42\tx86_64\n")
    assert fedora.host.apply(Packages("why", hold=("nvidia-driver-cuda",)))[-1]["ok"]
    assert asked(fedora)[1:] == [
        "versionlock delete nvidia-driver-cuda",
        "versionlock add nvidia-driver-cuda",
    ]


def test_a_lock_that_was_lifted_comes_back_when_dnf_fails(fedora: Fedora):
    """By the same command."""
    fedora.host.write("/etc/dnf/versionlock.toml", LOCK)
    fedora.says(
        "dry", "No match for argument: kmod-nvidia-open-dkms-3:580.*\nFailed to resolve the transaction:\n", 1
    )
    assert fedora.host.fail(Packages("why", install=DRIVER))["code"] == "package-missing"
    assert asked(fedora)[-1] == "versionlock add nvidia-driver-cuda"


OBTAIN = "Failed to obtain rpm transaction lock."
CREATE = "error: can't create transaction lock on /usr/lib/sysimage/rpm/.rpm.lock"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (OBTAIN, "dnf-locked"),
        (f"{CREATE} (Resource temporarily unavailable)", "dnf-locked"),
        (f"{CREATE} (No space left on device)\n{OBTAIN}", "disk-full"),
        (f"{CREATE} (Read-only file system)", "dnf-failed"),
    ],
)
def test_a_transaction_that_another_program_has_begun_is_a_lock(fedora: Fedora, words: str, code: str):
    """After the locks were free; by dnf's own words, and rpm's. A lock's file that cannot be written is none."""
    fedora.says("run", f"{words}\n", 1)
    failed = fedora.host.fail(Packages("why", install=DRIVER))
    assert failed["code"] == code
    assert failed["error"] == "dnf is in use by another program" or "(" in failed["error"]


# What its dry run says, of its own table: code, words, exit status, cause.
FOUND = tuple(
    (code, TABLE % (rows, size), 1, "")
    for rows, size, code in (
        (
            "Removing dependent packages:\n kubelet  x86_64 0:1.36.3-1 kubernetes 13.0 MiB",
            "1 MiB",
            "would-remove",
        ),
        (
            "Upgrading:\n nvidia-fabricmanager x86_64 0:580.178.04-1 gpunode-driver 1.0 MiB\n"
            "   replacing nvidia-fabric-manager x86_64 0:570.195.03-1 gpunode-driver 1.0 MiB",
            "1 MiB",
            "would-remove",
        ),
        (
            "Installing weak dependencies:\n kernel-core x86_64 0:6.17.4-200.fc42 updates 60.0 MiB",
            "1 MiB",
            "would-install-kernel",
        ),
        ("", "900000000 GiB", "disk-full"),
    )
)


def test_an_upgrade_that_replaces_its_own_old_version_removes_nothing(fedora: Fedora):
    """dnf 5 prints such a line for every upgrade."""
    rows = (
        "Upgrading:\n libnvidia-ml x86_64 3:580.178.04-1.fc42 gpunode-driver 1.0 MiB\n"
        "   replacing libnvidia-ml x86_64 3:570.195.03-1.fc42 gpunode-driver 1.0 MiB"
    )
    fedora.says("dry", TABLE % (rows, "1 MiB"), 1)
    assert fedora.host.apply(Packages("why", install=DRIVER))[-1]["ok"]


def test_a_removal_needs_no_space_and_takes_nothing_else_along(fedora: Fedora):
    """The table of Fedora 42."""
    table = """Package            Arch   Version              Repository      Size
Removing:
 nvidia-driver-cuda x86_64 3:570.195.03-1.fc42  gpunode-driver  900000000.0 GiB
%s
Transaction Summary:
 Removing:           1 package

After this operation, 900000000 GiB will be freed (install 0 B, remove 900000000 GiB).
Operation aborted by the user.
"""
    fedora.rpms("nvidia-driver-cuda\t3:570.195.03-1.fc42\tx86_64\n")
    fedora.says("dry", table % "", 1)
    change = Packages("why", remove=("nvidia-driver-cuda",))
    assert fedora.host.apply(change)[-1]["ok"]
    fedora.says(
        "dry", table % "Removing unused dependencies:\n fuse  x86_64 2.9.9-23.fc42 fedora  222.5 KiB", 1
    )
    failed = fedora.host.fail(change)
    assert (failed["code"], failed["error"]) == (
        "would-remove",
        "dnf would also remove fuse, which was not planned",
    )
