"""A running pod whose device cgroup loses its GPU, as after `systemctl daemon-reload` on some hosts: verify names it; started again it has it."""

import io
import json
import tarfile
from collections.abc import Callable

import pytest

from .api import Lab
from .conftest import Ran
from .pods import Pods

pytestmark = pytest.mark.lab
# Takes NVIDIA's devices away from the cgroup of the process whose environment names the pod, as a new set of rules does.
DENY = """
import ctypes, glob, os, re, struct

def attach(folder):  # a program that allows every device but major 195
    code = ((0x61, 0x12, 4, 0), (0xB7, 0, 0, 1), (0x55, 2, 1, 195), (0xB7, 0, 0, 0), (0x95, 0, 0, 0))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=BBhi", *each) for each in code))
    license = ctypes.create_string_buffer(b"GPL")
    def bpf(command, *fields):
        fields = ctypes.create_string_buffer(struct.pack(*fields), 128)
        done = ctypes.CDLL(None, use_errno=True).syscall(321, command, fields, len(fields))
        assert done >= 0, os.strerror(ctypes.get_errno())
        return done
    loaded = bpf(5, "=IIQQ", 15, len(code), ctypes.addressof(program), ctypes.addressof(license))
    bpf(8, "=IIII", os.open(folder, os.O_RDONLY), loaded, 6, 2)

for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        environ = open(path, "rb").read()
    except OSError:
        continue
    if b"LOSES=yes" not in environ.split(b"\\0"):
        continue
    cgroup = open(os.path.dirname(path) + "/cgroup").read()
    listed = re.search(r"(?m)^\\d+:devices:(.*)$", cgroup)
    if not listed:
        attach("/sys/fs/cgroup" + re.search(r"(?m)^0::(.*)$", cgroup)[1])
        print(path)
        continue
    place = "/sys/fs/cgroup/devices" + listed[1]
    for rule in open(place + "/devices.list"):  # the kernel takes away a rule that is written as it was given
        if rule.startswith("c 195:"):
            open(place + "/devices.deny", "w").write(rule)
    print(place)
"""


@pytest.mark.parametrize("name", ["legacy", "modern"])
def test_a_pod_that_lost_its_gpu_is_named_with_what_starts_it_again(
    lab: Lab, gpunode: Callable[..., Ran], made: Pods, name: str
):
    """docker's containers and containerd's; the pods of other nodes, and the node's own links, hold."""
    limited = ("--json", "--no-run", "--limit", name)
    ready = gpunode("provision", "--yes", *limited, timeout=800)
    assert ready.code == 0, ready
    made.make(f"keeps-{name}", name)
    made.make(f"loses-{name}", name, env={"LOSES": "yes"})
    made.seen(f"keeps-{name}", f"loses-{name}")
    before = {link["layer"]: link for link in gpunode("verify", *limited).of("link", name)}
    assert before["work"]["status"] == "ok", before["work"]
    node = lab.node(name)
    assert node.exec(["python3", "-c", DENY]).stdout.strip()
    ran = gpunode("verify", *limited)
    assert ran.code == 1, ran
    links = {link["layer"]: link for link in ran.of("link", name)}
    assert [layer for layer, link in links.items() if link["status"] == "broken"] == ["work"]
    assert links["work"]["text"] == f"1 container lost GPUs: default/loses-{name}"
    assert "refuses /dev/nvidia" in links["work"]["cause"]
    assert f"kubectl -n default get pod loses-{name} -o yaml" in links["work"]["fix"]
    made.delete(f"loses-{name}")
    assert gpunode("verify", *limited).code == 0


def test_a_pod_with_gpus_that_it_never_asked_for_is_a_remark(
    lab: Lab, gpunode: Callable[..., Ran], made: Pods
):
    """Its image's variable is enough where nvidia is the default runtime."""
    ready = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", timeout=800)
    assert ready.code == 0, ready
    made.make("uninvited", "legacy", gpus=0, env={"NVIDIA_VISIBLE_DEVICES": "all"})
    made.seen("uninvited")
    links = gpunode("verify", "--json", "--no-run", "--limit", "legacy").of("link", "legacy")
    (link,) = [link for link in links if link["layer"] == "work"]
    assert (link["status"], "default/uninvited has GPUs and asks for none" in link["cause"]) == (
        "ok",
        True,
    ), link


def test_label_features_are_what_the_hosts_have(lab: Lab, gpunode: Callable[..., Ran]):
    """Written by server-side apply, found again in the books of the API server, and taken off."""
    ready = gpunode("provision", "--yes", "--json", "--no-run", timeout=800)
    assert ready.code == 0, ready

    def products() -> dict[str, str | None]:
        nodes = {name: lab.request("GET", f"/api/v1/nodes/{name}") for name in ("legacy", "modern")}
        return {
            name: node["metadata"]["labels"].get("nvidia.com/gpu.product") for name, node in nodes.items()
        }

    try:
        assert gpunode("label --features").code == 0
        assert "P100" in str(products()["legacy"])
        assert "H100" in str(products()["modern"])
        again = gpunode("label --features", "--json")
        assert {line["result"] for line in again.of("features")} == {"same"}, again
    finally:
        assert gpunode("label --features", "--remove").code == 0
    assert products() == {"legacy": None, "modern": None}


def test_a_support_bundle_has_hosts_nodes_and_the_plugins_logs(
    lab: Lab, gpunode: Callable[..., Ran], tmp_path
):
    ready = gpunode("provision", "--yes", "--json", "--no-run", timeout=800)
    assert ready.code == 0, ready
    path = tmp_path / "help.tar.gz"
    assert gpunode("support-bundle", "--output", str(path)).code == 0
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        facts = archive.extractfile(next(n for n in archive.getnames() if n.endswith("hosts/modern.json")))
        assert facts is not None
        assert json.load(io.TextIOWrapper(facts))["gpus"]
    assert {
        "verify.jsonl",
        "plan.jsonl",
        "hosts/legacy.json",
        "cluster/nodes/modern.json",
        "cluster/events.json",
    } <= names
    assert len([name for name in names if name.startswith("cluster/logs/")]) == 2
