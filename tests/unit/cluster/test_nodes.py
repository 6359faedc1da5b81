"""Which node a host is, the labels on it, and what its kubelet reports of itself."""

import re
from dataclasses import replace

import pytest

from gpunode.cluster.api import Api
from gpunode.errors import ClusterError, HttpError
from gpunode.links import node as nodes
from gpunode.links.machine import pci
from gpunode.links.node import identity, labels
from gpunode.links.node.link import read_gates
from gpunode.model import Host, PciDevice, Ssh
from gpunode.planning.tables import table
from tests import cases, tables

from .conftest import add_node
from .fake import FakeApi, Fault, Object

SEEN = cases.facts("modern")


def host(name: str, address: str = "10.9.9.9", node: str | None = None) -> Host:
    return Host(name, Ssh(address), node=node)


def node(name: str, *addresses: str, **labels: str) -> nodes.Node:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return nodes.parse({"metadata": {"name": name, "uid": "1", "labels": labels}, "status": status})


FLEET = (node("gpu-01", "10.0.0.1"), node("gpu-02.example.org", "10.0.0.2"), node("ip-10-0-0-3", "10.0.0.3"))


@pytest.mark.parametrize(
    ("asked", "hostname", "expected"),
    [
        (host("a", node="gpu-01"), "other", "gpu-01"),
        (host("a"), "GPU-01", "gpu-01"),
        (host("a"), "gpu-01.example.org", "gpu-01"),
        (host("a"), "gpu-02", "gpu-02.example.org"),
        (host("a", "10.0.0.3"), "something", "ip-10-0-0-3"),
        (host("gpu-01"), "", "gpu-01"),
    ],
    ids=["by name", "case", "full for short", "short for full", "by address", "unprobed"],
)
def test_a_host_finds_its_node(asked: Host, hostname: str, expected: str):
    """By the inventory's `node`, its hostname in its forms, its address."""
    facts = replace(SEEN, hostname=hostname) if hostname else None
    assert identity.find(asked, FLEET, facts).name == expected


def test_a_hosts_name_in_the_inventory_is_no_proof_when_its_hostname_is_known():
    """The inventory calls a machine gpu-01, but it calls itself otherwise: another machine's node is not taken."""
    with pytest.raises(ClusterError, match="no node of the cluster has its hostname `other`"):
        identity.find(host("gpu-01"), FLEET, replace(SEEN, hostname="other"))


# What the host's files say and what its node does: machine-id, firmware's UUID, boot id.
@tables.rows("other-machines")
@pytest.mark.parametrize("way", ["node", "hostname", "address"])
def test_a_host_is_no_node_that_is_another_machine(
    own: tuple[str, str, str], told: tuple[str, str, str], wrong: str, way: str
):
    """Whichever way it goes for it; what either does not know tells nothing."""
    asked = host("x", "10.0.0.1" if way == "address" else "10.9.9.9", "gpu-01" if way == "node" else None)
    seen = replace(SEEN, hostname="gpu-01" if way == "hostname" else "x")
    seen = replace(seen, machine_id=own[0], product_uuid=own[1], boot_id=own[2])
    claimed = replace(FLEET[0], machine_id=told[0], system_uuid=told[1], boot_id=told[2])
    if not wrong:
        assert identity.find(asked, (claimed, *FLEET[1:]), seen) is claimed
        return
    if way == "address":  # several machines can be behind one: it is not joined yet
        with pytest.raises(
            ClusterError, match=r"gpu-01, which has its address 10\.0\.0\.1, is another machine"
        ) as lost:
            identity.find(asked, (claimed, *FLEET[1:]), seen)
        assert lost.value.problem.code != identity.ANOTHER_MACHINE
        assert lost.value.hint.startswith("Join it to the cluster")
        return
    with pytest.raises(ClusterError) as caught:
        identity.find(asked, (claimed, *FLEET[1:]), seen)
    assert caught.value.problem.code == identity.ANOTHER_MACHINE
    assert caught.value.message.startswith(f"x: it claims node gpu-01, which is another machine: {wrong}")


def test_a_host_that_goes_for_a_wrong_node_learns_which_it_is():
    """Where its files say so of one node."""
    seen = replace(SEEN, hostname="gpu-01", machine_id="b", product_uuid="v", boot_id="2")
    fleet = (
        replace(FLEET[0], machine_id="a", system_uuid="u", boot_id="1"),
        replace(FLEET[1], machine_id="b", system_uuid="v", boot_id="1"),
    )
    with pytest.raises(ClusterError) as caught:
        identity.find(host("x"), fleet, seen)
    assert "it is node `gpu-02.example.org`: set `node: gpu-02.example.org`" in caught.value.hint


def test_a_node_tells_which_machine_it_is():
    """In Kubernetes' own words, which are not always there."""
    info = {"machineID": "a", "systemUUID": "u", "bootID": "1"}
    node = nodes.parse({"metadata": {"name": "n", "uid": "1"}, "status": {"nodeInfo": info}})
    assert (node.machine_id, node.system_uuid, node.boot_id) == ("a", "u", "1")
    assert (FLEET[0].machine_id, FLEET[0].system_uuid, FLEET[0].boot_id) == ("", "", "")


def test_a_host_without_a_node_learns_the_way_out():
    """The nodes there are; for a mistyped `node:`, the nearest."""
    with pytest.raises(ClusterError) as caught:
        identity.find(host("x"), FLEET, replace(SEEN, hostname="x"))
    assert (
        "Join it to the cluster; or, if it is a node under another name, name that with `node:`"
        in caught.value.hint
    )
    assert "gpu-01, gpu-02.example.org, ip-10-0-0-3" in caught.value.hint
    with pytest.raises(ClusterError, match="Did you mean `gpu-01`"):
        identity.find(host("x", node="gpu-1"), FLEET)


def test_a_node_that_was_deleted_meanwhile_is_not_born_again(api: Api, fake: FakeApi):
    """Empty but for its labels."""
    add_node(fake, "a")
    (node,) = nodes.fetch(api)
    fake.drop("/api/v1/nodes/a")
    with pytest.raises(ClusterError, match="uid mismatch"):
        labels.write(api, node, {"pool": "ml"})
    assert fake.all("Node") == []


def test_labels_of_one_writer_leave_those_of_others(api: Api, fake: FakeApi):
    """Each writer's wish is whole: what it leaves out goes, what others set stays."""
    add_node(fake, "a", labels={"zone": "x"})

    def now() -> nodes.Node:
        return nodes.fetch(api)[0]

    assert labels.write(api, now(), {"accelerator": "nvidia-l4"}, writer=labels.ACCELERATOR) == {
        "accelerator": (None, "nvidia-l4")
    }
    assert labels.write(api, now(), {"pool": "ml", "gpunode.dev/gpu": "true"}).keys() == {
        "pool",
        "gpunode.dev/gpu",
    }
    assert labels.write(api, now(), {"gpunode.dev/gpu": "true"}) == {"pool": ("ml", None)}
    assert labels.write(api, now(), {}, writer=labels.ACCELERATOR) == {"accelerator": ("nvidia-l4", None)}
    assert now().labels == {"kubernetes.io/hostname": "a", "zone": "x", "gpunode.dev/gpu": "true"}


def test_a_dry_run_says_what_would_change_and_changes_nothing(api: Api, fake: FakeApi):
    """For `--dry-run` and for plans."""
    add_node(fake, "a")
    node = nodes.fetch(api)[0]
    assert labels.write(api, node, {"pool": "ml"}, dry_run=True) == {"pool": (None, "ml")}
    assert nodes.fetch(api)[0].labels == node.labels


def test_a_label_that_somebody_set_otherwise_is_not_overwritten_unasked(api: Api, fake: FakeApi):
    """The refusal names the label and its value; `overwrite` takes it."""
    add_node(fake, "a", labels={"accelerator": "mine"})
    node = nodes.fetch(api)[0]
    with pytest.raises(ClusterError) as caught:
        labels.write(api, node, {"accelerator": "nvidia-l4"}, writer=labels.ACCELERATOR)
    assert "a: another client set accelerator=mine" in caught.value.message
    assert "kubectl label node a accelerator-" in caught.value.hint
    assert "--overwrite" in caught.value.hint
    with pytest.raises(ClusterError, match="another client") as caught:
        labels.write(api, node, {"accelerator": "nvidia-l4"})
    assert "remove it from the inventory" in caught.value.hint  # `provision` has no --overwrite
    changed = labels.write(api, node, {"accelerator": "nvidia-l4"}, overwrite=True)
    assert changed == {"accelerator": ("mine", "nvidia-l4")}


@pytest.mark.usefixtures("other_words")
def test_a_conflict_of_labels_is_known_whatever_an_error_says(api: Api, fake: FakeApi):
    add_node(fake, "a", labels={"accelerator": "mine"})
    with pytest.raises(ClusterError) as caught:
        labels.write(api, nodes.fetch(api)[0], {"accelerator": "nvidia-l4"})
    assert not isinstance(caught.value, HttpError)  # which says nothing of the label and its owner


def test_only_taints_that_people_set_are_kept():
    """Kubernetes' own taints say that the node is cordoned or not well; pods must not tolerate those."""
    item = {
        "metadata": {"name": "a", "uid": "1"},
        "spec": {
            "unschedulable": True,
            "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
            ],
        },
    }
    node = nodes.parse(item)
    assert [taint["key"] for taint in node.taints] == ["dedicated"]
    assert not node.schedulable
    assert not node.ready


@tables.rows("node-counts")
def test_units_of_a_node_are_counted(
    capacity: dict[str, str], allocatable: dict[str, str], counted: list[int], short: dict[str, int]
):
    status = {"capacity": capacity, "allocatable": allocatable}
    node = nodes.parse({"metadata": {"name": "a", "uid": "1"}, "status": status})
    assert ([node.capacity, node.allocatable], node.short) == (counted, short)


def test_labels_that_a_node_lacks_are_known_without_asking():
    """For who may look, and not write."""
    labelled = node("a", pool="web", zone="x")
    wish = {"pool": "ml", "zone": "x", "gpunode.dev/gpu": "true"}
    assert labels.missing(labelled, wish) == {"pool": ("web", "ml"), "gpunode.dev/gpu": (None, "true")}


def gpu(slot: int, device: str, driver: str | None = None) -> PciDevice:
    return PciDevice(f"0000:{slot:02x}:00.0", "10de", device, "030200", driver)


def test_a_node_is_named_after_its_gpus():
    """The values that people know from GKE and the Kubernetes documentation."""
    assert labels.accelerator([gpu(1, "15f8"), gpu(2, "15f8")]) == {"accelerator": "nvidia-tesla-p100"}
    assert labels.accelerator([gpu(1, "2330")]) == {"accelerator": "nvidia-h100-80gb"}
    a16 = replace(gpu(1, "25b6"), subsystem="14a9")
    assert labels.accelerator([a16]) == {"accelerator": "nvidia-a16"}
    assert labels.accelerator([]) == {}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA GH200 480GB", "nvidia-gh200"),
        *(
            (f"NVIDIA {name}", f"nvidia-{name.lower()}")
            for name in ["A2", "A16", "A10G", "A10M", "L2", "L4", "L40", "L40S", "T4G"]
        ),
        *(
            (f"NVIDIA {name}", f"nvidia-{name.lower()}")
            for name in ["H20", "H800", "B200", "GB200", "B300", "GB300"]
        ),
        ("NVIDIA GH200 120GB", "nvidia-gh200"),
        ("NVIDIA B300 SXM6 AC", "nvidia-b300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "nvidia-rtx-pro-6000"),
        ("NVIDIA H200 NVL", "nvidia-h200-141gb"),
        ("Tesla P100-PCIE-16GB", "nvidia-tesla-p100"),
        ("NVIDIA H800 NVL", "nvidia-h800-nvl"),
        ("NVIDIA A100-SXM-64GB", "nvidia-a100-64gb"),
        ("NVIDIA RTX A4000", "nvidia-rtx-a4000"),
        ("Tesla V100-SXM2-32GB-LS", "nvidia-tesla-v100"),
        ("NVIDIA GeForce RTX 3090 Ti", ""),
    ],
)
def test_a_name_of_nvml_gives_the_model_of_its_pci_id(name: str, model: str):
    assert pci.accelerator(name) == model


def test_of_several_models_the_most_numerous_names_the_node():
    """The others can be told; of equally many the first slot decides, whatever order they were found in."""
    mixed = [gpu(3, "2330"), gpu(1, "15f8"), gpu(2, "15f8")]
    assert labels.accelerator(mixed) == {"accelerator": "nvidia-tesla-p100"}
    assert labels.others(mixed) == ("nvidia-h100-80gb",)
    even = [gpu(2, "15f8"), gpu(1, "2330")]
    assert labels.accelerator(even) == labels.accelerator(even[::-1]) == {"accelerator": "nvidia-h100-80gb"}


def test_gpus_for_virtual_machines_do_not_name_the_node():
    """No pod can have them."""
    mixed = [gpu(1, "15f8", "vfio-pci"), gpu(2, "15f8", "vfio-pci"), gpu(3, "2330", "nvidia")]
    assert labels.accelerator(mixed) == {"accelerator": "nvidia-h100-80gb"}
    assert labels.others(mixed) == ()


def test_every_model_has_a_value_that_a_label_can_hold():
    """A value that Kubernetes refuses would fail only on that one node."""
    values = [
        pci.gpu(device).accelerator
        for device in [*table("gpunode.links.machine", "gpus.yaml")["gpus"], "1234", "1b00"]
    ]
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value) for value in values)


WHERE = "/api/v1/nodes/gpu-1/proxy/configz"


@pytest.mark.parametrize(
    ("answer", "gates"),
    [
        ({"kubeletconfig": {"featureGates": {"A": True, "B": False}}}, {"A": True, "B": False}),
        ({"componentconfig": {"featureGates": {"A": True}}}, {"A": True}),
        ({"kubeletconfig": {"featureGates": None}}, {}),
        ({"kubeletconfig": {}}, {}),
        ({}, "the kubelet answers /configz without its configuration (HTTP 200)"),
    ],
)
def test_gates_are_those_that_the_kubelet_was_told(fake: FakeApi, api: Api, answer: Object, gates: object):
    fake.objects[WHERE] = answer
    assert read_gates(api, "gpu-1") == gates


def test_a_user_without_the_right_is_told_so(fake: FakeApi, api: Api):
    """It is no error: few users have it."""
    fake.closed[WHERE] = Fault(
        403, "Forbidden", 'User "ann" cannot get resource "nodes/proxy" in API group ""'
    )
    assert "nodes/proxy" in str(read_gates(api, "gpu-1"))
