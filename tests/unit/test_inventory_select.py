"""--limit and --exclude: which hosts a command is for."""

import pytest

from gpunode.errors import InventoryError
from gpunode.inventory import select
from gpunode.model import Cluster, Host, Inventory, Ssh
from tests import tables


def host(name: str, *groups: str) -> Host:
    return Host(name=name, ssh=Ssh(address=name), groups=groups)


INVENTORY = Inventory(
    path="inventory.yaml",
    hosts=(
        host("gpu-01", "p100"),
        host("gpu-02", "p100", "canary"),
        host("gpu-11", "h100"),
        host("gpu-12", "h100"),
        host("head", "p"),
    ),
    cluster=Cluster(),
)


@tables.rows("chosen-hosts")
def test_names_groups_ranges_and_globs_choose_in_the_order_of_the_inventory(limit, exclude, names):
    """However it is written, the inventory's order stays."""
    assert [chosen.name for chosen in select(INVENTORY, limit, exclude)] == names.split()


def test_a_glob_is_for_host_names_only():
    """`p*` does not take in a group that happens to begin with p."""
    with pytest.raises(InventoryError, match="--limit p10\\*: no such host or group"):
        select(INVENTORY, ["p10*"])


def test_everything_unknown_is_named_at_once_with_what_is_near():
    """A typo in --limit never silently shrinks the run."""
    with pytest.raises(InventoryError) as caught:
        select(INVENTORY, ["gpu-1,h10,GPU-12,p1oo", "zzz", "gpu-[02:03]", "a100-*", "gpu-[2:1]"], ["hed"])
    assert caught.value.exit_code == 2
    assert caught.value.problems == [
        "--limit gpu-1: no such host or group; did you mean `gpu-12`?",
        "--limit h10: no such host or group; did you mean `h100`?",
        "--limit GPU-12: no such host or group; did you mean `gpu-12`?",
        "--limit p1oo: no such host or group; did you mean `p100`?",
        "--limit zzz: no such host or group; inventory.yaml has the groups p100, canary, h100, p",
        "--limit gpu-03: no such host or group; did you mean `gpu-02`?",
        "--limit a100-*: no such host or group; inventory.yaml has the groups p100, canary, h100, p",
        "--limit gpu-[2:1]: the range [2:1] ends before it starts; did you mean `gpu-[1:2]`?",
        "--exclude hed: no such host or group; did you mean `head`?",
    ]


def test_a_range_that_goes_too_far_is_summed_up():
    with pytest.raises(InventoryError) as caught:
        select(INVENTORY, ["gpu-[02:99]"])
    *named, last = caught.value.problems
    assert (len(named), last) == (3, "--limit gpu-[02:99]: 92 more of this range are no hosts")


def test_an_empty_limit_is_not_all_hosts():
    """`--limit "$UNSET"` in a script must not reach the whole fleet."""
    with pytest.raises(InventoryError, match="--limit is empty"):
        select(INVENTORY, [""])


def test_excluding_everything_is_reported():
    """A command for no host is a mistake of whoever typed it."""
    with pytest.raises(InventoryError, match="no host is left: --exclude gpu-\\*,head matches all of them"):
        select(INVENTORY, [], ["gpu-*", "head"])
