"""Which package system a host has, and how its packages are asked for."""

from fnmatch import fnmatchcase

import pytest

from gpunode import packages
from gpunode.model import Os, PackageSpec
from gpunode.packages.apt import plan as apt
from gpunode.packages.dnf import plan as dnf
from gpunode.packages.names import PackageNames
from gpunode.packages.releases import sections
from tests import cases

NAMES = PackageNames("apt")


@pytest.mark.parametrize(
    ("os", "system"),
    [
        (Os("debian", "12", "Debian 12", arch="amd64"), apt.SYSTEM),
        (Os("ubuntu", "24.04", "Ubuntu 24.04", arch="arm64"), apt.SYSTEM),
        (Os("debian", "12", "Debian 12", arch="riscv64"), None),
        (Os("debian", "9", "Debian 9", arch="amd64"), None),
        (Os("rocky", "9.4", "Rocky 9.4", arch="amd64"), dnf.SYSTEM),
        (Os("amzn", "2023", "Amazon Linux 2023", arch="arm64"), dnf.SYSTEM),
        (Os("rocky", "7.9", "Rocky 7.9", arch="amd64"), None),
        (Os("rocky", "9.4", "Rocky 9.4", arch="s390x"), None),
    ],
    ids=lambda value: value.pretty + value.arch if isinstance(value, Os) else "",
)
def test_the_package_system_is_that_of_a_release_in_the_tables(os: Os, system: object):
    """Not that of a release that merely has the program."""
    over = {"os": {"id": os.id, "version": os.version, "pretty": os.pretty, "arch": os.arch}}
    assert packages.system_of_host(cases.facts("modern", over)) is system


def test_what_comes_from_nvidia_is_not_known_by_its_version():
    """The pin has none; the headers are the distribution's. What is held at a version may replace a newer one."""
    assert NAMES.pin(580, "580.178.04") == (PackageSpec("nvidia-driver-pinning-580.178.04", origin="nvidia"),)
    assert NAMES.headers("6.1.0-40-amd64") == (PackageSpec("linux-headers-6.1.0-40-amd64"),)
    assert NAMES.driver(580, "open") == (
        PackageSpec("nvidia-open-580", "580.*", origin="nvidia", downgrade=True),
    )
    assert NAMES.driver(595, "open", "595.91.07") == (
        PackageSpec("nvidia-open", "595.91.07-*", origin="nvidia", downgrade=True),
    )
    assert {spec.version for spec in NAMES.toolkit("1.20.1")} == {"1.20.1-1"}


@pytest.mark.parametrize("family", packages.SYSTEMS)
def test_every_package_that_the_tables_know_is_looked_at(family: str):
    """One that no probe asks for would be installed for ever, or stay beside what excludes it."""
    system = packages.SYSTEMS[family]
    rows = sections()[family]
    known = [
        *rows["driver_family"],
        *rows["accessories"],
        *(row["name"].format(branch=550) for part in rows["fabric"].values() for row in part),
        *rows["retired"],
        *rows["toolkit"],
    ]
    unseen = [name for name in known if not any(fnmatchcase(name, each) for each in system.watch.packages)]
    assert not unseen
    assert system.names.family == family
