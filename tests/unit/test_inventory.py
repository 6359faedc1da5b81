"""What a right inventory means: ranges, precedence, paths, defaults, and the examples in inventories/."""

import shutil
from pathlib import Path

import pytest

from gpunode.errors import InventoryError
from gpunode.inventory import load
from gpunode.model import (
    Cluster,
    ExpectedGpus,
    GateCommand,
    Host,
    Inventory,
    PluginConfig,
    PluginImage,
    PluginPublish,
    PythonBuild,
    Repository,
    RunFile,
    Ssh,
)

from .test_inventory_archive import docker, tar

ROOT = Path(__file__).parents[2]
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n"


def loaded(folder: Path, text: str) -> Inventory:
    file = folder / "inventory.yaml"
    file.write_text(text)
    return load(file)


def test_the_smallest_inventory_takes_every_default_of_the_model(tmp_path):
    """One name is a whole host: what is not written is the model's default."""
    inventory = loaded(tmp_path, "groups:\n  gpu:\n    hosts: [gpu-01]\n")
    assert inventory == Inventory(
        path=str(tmp_path / "inventory.yaml"),
        hosts=(Host(name="gpu-01", ssh=Ssh(address="gpu-01"), groups=("gpu",)),),
        cluster=Cluster(),
    )


def test_gates_are_commands_with_a_timeout(tmp_path):
    """A text is a command with the usual one."""
    text = "gate: [./a.sh, {command: b c, timeout: 2m}]\ngroups:\n  gpu:\n    hosts: [gpu-01]\n"
    assert loaded(tmp_path, text).gates == (GateCommand("./a.sh", 60.0), GateCommand("b c", 120.0))


def test_every_variable_reaches_its_place_in_the_host(tmp_path):
    """No variable is read and then dropped."""
    (tmp_path / "id").write_text("private")
    (tmp_path / "driver.asc").write_text(KEY)
    (tmp_path / "toolkit.asc").write_text(KEY + "\n")
    (tmp_path / "kubeconfig").write_text("")
    (tmp_path / "plugin.yaml").write_text(
        "version: v1\nflags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}  # as it is\n"
    )
    inventory = loaded(
        tmp_path,
        """
cluster: {kubeconfig: kubeconfig, context: prod, namespace: gpus, plugin: {image: "reg.example.org:5000/p:1", config: plugin.yaml, events: false, annotation: true, metrics: true}}
groups:
  gpu:
    hosts:
      - name: a
        address: 10.0.0.1
        node: node-a
        ssh: {user: ops, port: 2222, key: id, known_hosts: known, jump: "me@[fd00::1]:22",
              host_key_check: off, timeout: 2.5}
        connection: local
        sudo: false
        driver: 580
        toolkit: 1.20.1
        runtime: class
        kubelet: {feature_gates: {DevicePlugins: true, Other: false}}
        labels: {pool: "1", example.org/rack: "07", empty: ""}
        repositories:
          driver: {uri: "https://mirror/driver", key: driver.asc}
          toolkit: {uri: file:/srv/toolkit, key: toolkit.asc}
          system: {uri: "http://mirror/centos", key: driver.asc}
""",
    )
    assert inventory.cluster == Cluster(
        kubeconfig=str(tmp_path / "kubeconfig"),
        context="prod",
        namespace="gpus",
        plugin=PluginImage("reg.example.org:5000/p:1"),
        plugin_config=PluginConfig(
            "version: v1\nflags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}  # as it is\n",
            cdi_directory="/var/run/cdi",
        ),
        plugin_publish=PluginPublish(events=False, annotation=True, metrics=True),
    )
    assert inventory.hosts == (
        Host(
            name="a",
            ssh=Ssh(
                address="10.0.0.1",
                port=2222,
                user="ops",
                key=str(tmp_path / "id"),
                known_hosts=str(tmp_path / "known"),
                jump="me@[fd00::1]:22",
                host_key_check="off",
                timeout=2.5,
            ),
            groups=("gpu",),
            connection="local",
            sudo=False,
            node="node-a",
            driver="580",
            toolkit="1.20.1",
            runtime="class",
            cdi=True,
            feature_gates={"DevicePlugins": True, "Other": False},
            labels={"pool": "1", "example.org/rack": "07", "empty": ""},
            driver_repository=Repository("https://mirror/driver", KEY),
            toolkit_repository=Repository("file:/srv/toolkit", KEY + "\n"),
            system_repository=Repository("http://mirror/centos", KEY),
        ),
    )


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("gpu-[01:04]", ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]),
        ("gpu-[9:11].example.org", ["gpu-9.example.org", "gpu-10.example.org", "gpu-11.example.org"]),
        ("gpu-[099:101]", ["gpu-099", "gpu-100", "gpu-101"]),
        ("r[1:2]n[3:4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("gpu-[7:7]", ["gpu-7"]),
        ("a" + "[1:1]" * 40, ["a" + "1" * 40]),
        ("no", ["no"]),
        ("off", ["off"]),
        ('"7"', ["7"]),
    ],
)
def test_names_and_ranges_become_hosts_in_order(tmp_path, written, names):
    """Ranges are as wide as their first number; words that YAML 1.1 takes for booleans are names."""
    inventory = loaded(tmp_path, f"groups:\n  group:\n    hosts:\n      - {written}\n")
    assert [host.name for host in inventory.hosts] == names
    assert [host.ssh.address for host in inventory.hosts] == names


def test_host_wins_over_group_and_group_over_defaults_key_by_key(tmp_path):
    """A group that sets one key of `ssh` keeps the others; labels and gates add up."""
    inventory = loaded(
        tmp_path,
        """
defaults:
  ssh: {user: ops, port: 22, jump: bastion}
  labels: {a: default, b: default, c: default}
  kubelet: {feature_gates: {A: true}}
  driver: 570
groups:
  g:
    hosts:
      - {name: one, work_timeout: 90s}
      - {name: two, ssh: {jump: none}, labels: {c: host}, driver: "595", work_timeout: 2h}
    ssh: {port: 2222}
    labels: {b: group, c: group}
    kubelet: {feature_gates: {B: false}}
    driver: 580
""",
    )
    first, second = inventory.hosts
    assert first.ssh == Ssh(address="one", port=2222, user="ops", jump="bastion")
    assert second.ssh == Ssh(address="two", port=2222, user="ops", jump="none")
    assert first.labels == {"a": "default", "b": "group", "c": "group"}
    assert second.labels == {"a": "default", "b": "group", "c": "host"}
    assert first.feature_gates == {"A": True, "B": False}
    assert (first.driver, second.driver) == ("580", "595")
    assert (first.work_timeout, second.work_timeout) == (90, 7200)


def test_an_installer_is_replaced_whole(tmp_path):
    """A host's version never meets a group's file."""
    (tmp_path / "NVIDIA.run").write_text("#!/bin/sh")
    inventory = loaded(
        tmp_path,
        f"""
defaults: {{driver: 580}}
groups:
  g:
    hosts: [one, {{name: two, driver: none}}]
    driver: {{from: run, version: "580.178.04", file: NVIDIA.run, sha256: "{"a" * 64}", flavour: open}}
""",
    )
    first, second = inventory.hosts
    assert first.driver == "580.178.04"
    assert first.driver_run == RunFile("580.178.04", "a" * 64, str(tmp_path / "NVIDIA.run"), None, "open")
    assert (second.driver, second.driver_run) == ("none", None)


def test_packages_of_the_distribution_take_a_branch_or_none(tmp_path):
    """And NVIDIA's may be asked for in their place."""
    inventory = loaded(
        tmp_path,
        """
groups:
  a: {hosts: [one], driver: {from: distribution, version: 580}}
  b: {hosts: [two], driver: {from: distribution}}
  c: {hosts: [three], driver: {from: nvidia, version: "580"}}
""",
    )
    drivers = [(host.driver, host.driver_from) for host in inventory.hosts]
    assert drivers == [("580", "distribution"), ("auto", "distribution"), ("580", "nvidia")]


def test_expected_gpus_are_a_number_or_number_and_model(tmp_path):
    """One value: nothing of a group's model is merged into a host's number."""
    inventory = loaded(
        tmp_path,
        """
groups:
  a:
    gpus: {model: H100, count: 8}
    hosts: [one, {name: two, gpus: 4}]
  b: {hosts: [three]}
""",
    )
    assert [host.gpus for host in inventory.hosts] == [ExpectedGpus(8, "H100"), ExpectedGpus(4), None]


def test_python_is_a_path_or_a_build_and_one_value(tmp_path):
    """Nothing of a group's build is merged into a host's path."""
    inventory = loaded(
        tmp_path,
        f"""
groups:
  a:
    python: {{url: "https://mirror.example/python.tar.gz", sha256: "{"a" * 64}"}}
    hosts: [one, {{name: two, python: /opt/python3}}]
""",
    )
    first, second = inventory.hosts
    build = PythonBuild("https://mirror.example/python.tar.gz", "a" * 64)
    assert (first.python, first.python_build) == ("", build)
    assert (second.python, second.python_build) == ("/opt/python3", None)


def test_a_rehearsal_needs_no_installer(tmp_path):
    """It has packages of that version in its place."""
    path = tmp_path / "inventory.yaml"
    run = f'{{from: run, version: "580.178.04", file: none.run, sha256: "{"a" * 64}"}}'
    path.write_text(f"version: 1\ngroups: {{g: {{hosts: [one], driver: {run}}}}}\n")
    (host,) = load(path, keys=False).hosts
    assert (host.driver, host.driver_run) == ("580.178.04", None)


def test_a_repository_is_replaced_whole(tmp_path):
    """A group's repository never mixes its address with the key of another."""
    (tmp_path / "a.asc").write_text(KEY)
    (tmp_path / "b.asc").write_text(KEY + "b")
    inventory = loaded(
        tmp_path,
        """
defaults: {repositories: {driver: {uri: "https://a", key: a.asc}, toolkit: {uri: "https://t", key: a.asc}}}
groups:
  g: {hosts: [one], repositories: {driver: {uri: "https://b", key: b.asc}}}
""",
    )
    assert inventory.hosts[0].driver_repository == Repository("https://b", KEY + "b")
    assert inventory.hosts[0].toolkit_repository == Repository("https://t", KEY)


def test_a_fingerprint_is_read_as_gpg_prints_it(tmp_path):
    (tmp_path / "a.asc").write_text(KEY)
    text = 'groups: {{g: {{hosts: [one], repositories: {{driver: {{uri: "https://a", key: a.asc, fingerprint: {}}}}}}}}}'
    printed = "1299 9448 0EC6 3D27 89BC  98E4 90DF ED2F 73CD 9B30"
    repository = loaded(tmp_path, text.format(printed)).hosts[0].driver_repository
    assert repository == Repository("https://a", KEY, printed.replace(" ", ""))
    with pytest.raises(InventoryError, match="a whole fingerprint has 40"):
        loaded(tmp_path, text.format("73CD9B30"))


def test_a_host_in_two_groups_gets_the_values_of_both(tmp_path):
    """Equal values are no contradiction, and what the host says itself settles one."""
    inventory = loaded(
        tmp_path,
        """
groups:
  a: {hosts: ["gpu-[1:2]", gpu-3], driver: 580, labels: {pool: x}}
  b: {hosts: [gpu-2, {name: gpu-3, runtime: none}], driver: 580, runtime: class, labels: {zone: y}}
""",
    )
    assert [host.name for host in inventory.hosts] == ["gpu-1", "gpu-2", "gpu-3"]
    _, two, three = inventory.hosts
    assert (two.groups, two.driver, two.runtime) == (("a", "b"), "580", "class")
    assert two.labels == {"pool": "x", "zone": "y"}
    assert three.runtime == "none"


def test_paths_start_beside_the_file_and_the_tilde_is_the_home(tmp_path, monkeypatch):
    """The working directory does not matter."""
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/known").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text = (
        "groups: {g: {hosts: [a], ssh: {key: ~/.ssh/id, known_hosts: site/known, host_key_check: strict}}}\n"
    )
    ssh = loaded(tmp_path, text).hosts[0].ssh
    Path("relative.yaml").write_text(text)
    assert ssh.key == str(tmp_path / "home/.ssh/id")
    assert (
        ssh.known_hosts
        == load(Path("relative.yaml")).hosts[0].ssh.known_hosts
        == str(tmp_path / "site/known")
    )


def test_aliases_and_a_byte_order_mark_are_fine(tmp_path):
    """What a person repeats with an anchor, or an editor of Windows puts first, is no mistake."""
    text = "defaults: {ssh: &ops {user: ops}}\r\ngroups: {g: {hosts: [a], ssh: *ops}}\r\n"
    (tmp_path / "inventory.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load(tmp_path / "inventory.yaml").hosts[0].ssh.user == "ops"


@pytest.mark.parametrize("name", ["single-host", "fleet", "local", "airgap"])
def test_the_examples_are_valid_and_name_their_schema(tmp_path, name):
    """Each file of inventories/ loads, given the files it names, and its first line leads to the schema."""
    example = ROOT / "inventories" / f"{name}.yaml"
    first = example.read_text().splitlines()[0]
    assert (
        example.parent / first.partition("$schema=")[2]
    ).resolve() == ROOT / "gpunode/inventory/schema.json"
    files = tmp_path / "airgap"
    files.mkdir()
    for file in ["kubeconfig", "id_ed25519", "known_hosts"]:
        (files / file).write_text("")
    for file in ["nvidia-driver.asc", "nvidia-toolkit.asc"]:
        (files / file).write_text(KEY)
    tar(files / "device-plugin.tar", docker("gpunode/device-plugin:0.1.0"))
    for file in ["nvidia-driver.asc", "nvidia-toolkit.asc"]:  # README's names, beside the file
        shutil.copy(files / file, tmp_path)
    shutil.copy(files / "device-plugin.tar", tmp_path / "plugin.tar")
    inventory = load(Path(shutil.copy(example, tmp_path)))
    assert len(inventory.hosts) == {"single-host": 1, "fleet": 22, "local": 1, "airgap": 9}[name]


def test_the_fleet_example_says_what_its_comments_say():
    """Jump host, direct host, pinned driver, labels and the canary group come out as described."""
    hosts = {host.name: host for host in load(ROOT / "inventories/fleet.yaml").hosts}
    assert hosts["p100-04"].ssh.jump == "ops@bastion.example.org:2222"
    assert hosts["p100-04"].labels == {"pool": "batch", "example.org/rack": "07"}
    assert hosts["h100-17"].ssh == Ssh(
        address="10.0.3.17", port=2222, user="ops", jump="none", host_key_check="strict"
    )
    assert (hosts["h100-17"].node, hosts["h100-17"].driver) == ("ip-10-0-3-17", "580.95.05")
    assert hosts["h100-1"].groups == ("h100", "canary")
    assert hosts["h100-1"].feature_gates == {"DynamicResourceAllocation": True}
    assert hosts["h100-2"].feature_gates == {}


def test_there_is_an_example_for_every_file_in_inventories():
    """A new example is not forgotten by the tests."""
    names = {file.name for file in (ROOT / "inventories").glob("*.yaml")}
    assert names == {"single-host.yaml", "fleet.yaml", "local.yaml", "airgap.yaml"}


def test_a_thousand_written_out_hosts_with_mistakes_are_all_reported(tmp_path):
    """The count of mistakes is exact; each has its own line."""
    lines = "".join(f"      - {{name: gpu-{n}, ssh: {{prot: 22}}}}\n" for n in range(1000))
    with pytest.raises(InventoryError) as caught:
        loaded(tmp_path, f"groups:\n  g:\n    hosts:\n{lines}")
    assert len(caught.value.problems) == 1000
    assert ":1003:" in caught.value.problems[-1]


def test_several_configurations_of_the_plugin_go_by_their_names(tmp_path):
    """What one of them needs of the host is there for all."""
    texts = {
        "default": "version: v1\n",
        "cdi": "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    inventory = loaded(
        tmp_path,
        """
cluster: {plugin: {image: a, configs: {default: default.yaml, cdi: cdi.yaml}}}
groups: {gpu: {hosts: [a]}}
""",
    )
    assert inventory.cluster.plugin_config == PluginConfig(files=texts, cdi_directory="/var/run/cdi")
    assert [(host.cdi, host.device_specs) for host in inventory.hosts] == [(True, False)]


def test_taints_are_one_value(tmp_path):
    """A host's list replaces its group's, so one can have none."""
    file = tmp_path / "inventory.yaml"
    file.write_text(
        "groups:\n  g:\n    taints: [a=1:NoSchedule, b:PreferNoSchedule]\n"
        "    hosts: [one, {name: two, taints: []}]\n"
    )
    assert [host.taints for host in load(file).hosts] == [("a=1:NoSchedule", "b:PreferNoSchedule"), ()]
