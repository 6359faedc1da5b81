"""Versions as dpkg and rpm write them."""

import pytest

from gpunode.model import Package, PackageSpec
from gpunode.planning.versions import branch_of, is_installed, numbers, upstream


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        (PackageSpec("a"), True),
        (PackageSpec("a", "580.*"), True),
        (PackageSpec("a", "580.178.04-1"), True),
        (PackageSpec("a", "595.*"), False),
        (PackageSpec("a", "580.178.04-*"), True),
        (PackageSpec("b"), False),
    ],
    ids=str,
)
def test_installed_in_the_wished_version(spec: PackageSpec, right: bool):
    """A pattern, an exact version, or any; an epoch does not matter."""
    assert is_installed({"a": Package("a", "1:580.178.04-1")}, spec) is right


def test_versions_are_read_as_debian_writes_them():
    """Epoch and revision aside."""
    assert upstream("1:580.178.04-1") == "580.178.04"
    assert branch_of("595.91.07-1ubuntu1") == 595
    assert branch_of("1.20.1-1") is None
    assert numbers("1.20.1-1") == (1, 20, 1)
