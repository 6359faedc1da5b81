"""Each mistake in an inventory is named with its line, column, key, and the way to mend it."""

import contextlib
import itertools
import random
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import InventoryError
from gpunode.inventory import load
from tests import tables

HOSTS = "groups:\n  g:\n    hosts: [a, b]\n"


def mistakes(folder: Path, text: str | bytes) -> list[str]:
    """The problems of this text as an inventory, without the path of the file."""
    file = folder / "inventory.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InventoryError) as caught:
        load(file)
    assert caught.value.exit_code == 2
    return [problem.removeprefix(f"{file}:").strip() for problem in caught.value.problems]


def test_a_key_without_its_colon_is_named_at_its_own_line(tmp_path):
    text = f"defaults:\n  ssh:\n    user: x\n    known_hosts known_hosts\n  driver: auto\n{HOSTS}"
    assert mistakes(tmp_path, text) == ["4:5: a key without its `:`"]


def test_a_file_of_a_newer_format_is_refused_by_that_alone(tmp_path):
    """Its other keys may be right there. A file that names no format, or this one, is read."""
    words = "1:10: version: this file has format 2, for a newer gpunode; this one reads formats up to 1"
    assert mistakes(tmp_path, f"version: 2\nfleets: {{}}\n{HOSTS}") == [words]
    assert mistakes(tmp_path, f"version: 0\n{HOSTS}") == [
        "1:10: version: expected a number from 1 to 1, got 0"
    ]
    file = tmp_path / "inventory.yaml"
    loaded = [load(file).hosts for text in (HOSTS, f"version: 1\n{HOSTS}") if file.write_text(text)]
    assert loaded[0] == loaded[1]


def test_mistakes_of_any_number_and_length_are_reported_in_lines_that_can_be_read(tmp_path):
    """Only the first unknown keys get advice: to look for it takes longer than all else."""
    messages = mistakes(tmp_path, HOSTS + "".join(f"grups{number}: 1\n" for number in range(60)))
    assert [number for number, mistake in enumerate(messages) if "did you mean `groups`?" not in mistake] == [
        *range(50, 60)
    ]
    (long,) = mistakes(tmp_path, f"defaults: {{sudo: {'x' * 10_000}}}\n{HOSTS}")
    assert len(long) < 2100
    assert long.startswith('1:18: defaults.sudo: expected true or false, got the text "xxx')


ODD: list[dict[str, Any]] = [
    {
        "case": "nested too deep",
        "text": "groups: " + "[" * 200_000,
        "mistake": "1:58: lists and mappings nest deeper than 50 levels; remove the inner ones",
    },
    {
        "case": "nested too deep in lines",
        "text": "groups:\n" + "- " * 20_000 + "x",
        "mistake": "2:99: lists and mappings nest deeper than 50 levels; remove the inner ones",
    },
    {
        "case": "nested too deep by aliases",
        "text": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000)),
        "mistake": "1:5: lists and mappings nest deeper than 50 levels; remove the inner ones",
    },
    {
        "case": "latin-1",
        "text": b"groups:\n  k\xf6ln: x\n",
        "mistake": "2:4: byte 0xf6 is not UTF-8; save the file as UTF-8",
    },
    {
        "case": "utf-16",
        "text": "groups: {}".encode("utf-16"),
        "mistake": "1:1: byte 0xff is not UTF-8; save the file as UTF-8",
    },
]


@pytest.mark.parametrize("case", [*tables.read("inventory-mistakes"), *ODD], ids=itemgetter("case"))
def test_a_mistake_is_reported_once_with_its_place_and_what_to_write(tmp_path, case: dict[str, Any]):
    """And no other line follows from it."""
    more = f"    {case['group']}\n" if "group" in case else f"{case.get('more')}\n"
    assert mistakes(tmp_path, case.get("text", HOSTS + more)) == [case["mistake"]]


def test_aliases_of_aliases_end_in_time(tmp_path):
    """A few lines that stand for ten thousand million values are stopped, not worked through."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "an alias that never ends" in mistakes(tmp_path, "\n".join(lines))[0]


def test_mistakes_beside_each_other_are_reported_in_one_round(tmp_path):
    """A layout that breaks the form hides none of another model, and a version of an installer not its missing file."""
    messages = mistakes(
        tmp_path,
        """
groups:
  g: {hosts: [a], mig: {A100-SXM4-80GB: 1g.10gb, H100: [9g.10gb], A30: [4g.24gb, 4g.24gb]}}
  h: {hosts: [b], driver: {from: run, version: "580", file: no.run}}
""",
    )
    assert [mistake.split(": ")[1] for mistake in messages] == [
        "groups.g.mig.A100-SXM4-80GB",
        "groups.g.mig.H100[0]",
        "groups.g.mig.A30",
        "groups.h.driver",
        "groups.h.driver.version",
        "groups.h.driver.file",
    ]


def test_files_that_are_named_must_be_there(tmp_path):
    """Missing, wrong and swapped key files are found before anything is contacted. Missing ones are last: of an inventory that was copied
    elsewhere they are many."""
    (tmp_path / "private.asc").write_text("-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
    (tmp_path / "binary.gpg").write_bytes(b"\x99\x01\x0d\x04")
    messages = mistakes(
        tmp_path,
        """
cluster: {kubeconfig: none, plugin: {archive: image.tar}}
defaults:
  ssh: {key: id.pub, known_hosts: known, host_key_check: strict}
  repositories:
    driver: {uri: "https://mirror", key: private.asc}
    toolkit: {uri: "https://mirror", key: binary.gpg}
groups:
  g: {hosts: ["a[1:3]"], ssh: {key: .}}
""",
    )
    assert messages == [
        "4:14: defaults.ssh.key: id.pub is the public key; name the private key's file: id",
        f"4:35: defaults.ssh.known_hosts: no such file: {tmp_path}/known; "
        "with host_key_check: strict gpunode could reach no host",
        f"6:42: defaults.repositories.driver.key: {tmp_path}/private.asc is a PRIVATE key; "
        "export the public one: gpg --armor --export",
        f"7:43: defaults.repositories.toolkit.key: {tmp_path}/binary.gpg is no armoured public key; "
        f"convert a binary one: gpg --no-default-keyring --keyring {tmp_path}/binary.gpg --armor --export",
        f"2:23: cluster.kubeconfig: no such file: {tmp_path}/none",
        f"2:47: cluster.plugin.archive: no such file: {tmp_path}/image.tar; `gpunode plugin image` writes one",
        f"9:37: groups.g.ssh.key: is a folder, expected a file: {tmp_path}",
    ]


@tables.rows("plugin-files")
def test_a_configuration_that_the_plugin_could_not_use_is_a_mistake_of_the_inventory(tmp_path, text, said):
    """The plugin's own reader looks at it, so that no node gets what its plugin refuses; every mistake with its place."""
    file = tmp_path / "plugin.yaml"
    if text is not None:
        file.write_text(text)
    messages = mistakes(tmp_path, HOSTS + "cluster: {plugin: {image: a, config: plugin.yaml}}\n")
    assert messages == [f"4:38: cluster.plugin.config: {line.format(file=file)}" for line in said]


def test_a_port_that_the_plugins_pods_use_is_a_mistake_of_the_inventory(tmp_path):
    """The plugin would end on each node. Where gpunode itself sets the address, it is as if the file said nothing."""
    file = tmp_path / "plugin.yaml"
    file.write_text("flags: {plugin: {metricsAddress: ':9401'}}\n")
    where = f"cluster.plugin.config: {file}:1:18: flags.plugin.metricsAddress"
    assert mistakes(tmp_path, HOSTS + "cluster: {plugin: {image: a, config: plugin.yaml}}\n") == [
        f"4:38: {where}: port 9401 cannot be had twice; --probe-address (PROBE_ADDRESS) has it"
    ]
    (tmp_path / "right.yaml").write_text(
        HOSTS + "cluster: {plugin: {image: a, config: plugin.yaml, metrics: true}}\n"
    )
    load(tmp_path / "right.yaml")


def test_a_password_in_a_repository_address_is_refused_and_not_repeated(tmp_path):
    """The address lands in a file that everybody on the host can read."""
    (message,) = mistakes(
        tmp_path, HOSTS + '    repositories: {driver: {uri: "https://u:hush@m/x", key: k}}\n'
    )[:1]
    assert "user:password@" in message
    assert "hush" not in message


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file(tmp_path):
    """Syntax-free files never need a second round: schema, contradictions and, last, files come together."""
    messages = mistakes(
        tmp_path,
        """
cluster: {contxt: prod, kubeconfig: gone}
defaults: {sudo: no}
groups:
  a: {hosts: [one, two words], driver: 99}
  b: {hosts: [one, one], labels: {x: "y"}}
  c: {hosts: [one], labels: {x: "z"}}
""",
    )
    places = [line.split(": ")[:2] for line in messages]
    assert places == [
        ["2:11", "cluster.contxt"],
        ["3:18", "defaults.sudo"],
        ["5:20", "groups.a.hosts[1]"],
        ["5:40", "groups.a.driver"],
        ["6:20", "groups.b.hosts[1]"],
        ["7:33", "groups.c.labels.x"],
        ["2:37", "cluster.kubeconfig"],
    ]


def test_no_file_a_folder_and_an_unreadable_path_are_told_apart(tmp_path):
    """The path itself can be the mistake."""
    (tmp_path / "inventory.yaml").write_text(HOSTS)

    def problem(path: Path) -> str:
        with pytest.raises(InventoryError) as caught:
            load(path)
        (line,) = caught.value.problems
        return line.replace(str(tmp_path), "T")

    assert problem(tmp_path) == "T: is a directory, expected a YAML file; in it: inventory.yaml"
    assert (
        problem(tmp_path / "inventroy.yaml")
        == "T/inventroy.yaml: no such file; did you mean T/inventory.yaml?"
    )
    assert problem(tmp_path / "prod.yaml") == "T/prod.yaml: no such file; its folder has inventory.yaml"
    assert problem(tmp_path / "no/where") == "T/no/where: no such file; there is no folder T/no either"
    host = problem(tmp_path / "gpu-01")
    assert host == "T/gpu-01: no such file; the argument is the inventory's file, `--limit` chooses hosts"
    assert problem(Path("-")) == "-: no such file; standard input has the name /dev/stdin"
    words = "/dev/zero: cannot be read: it is a device, not a file; name another file"
    assert problem(Path("/dev/zero")) == words
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    words = "T/large: has more than 64 MiB, as no inventory has; name another file"
    assert problem(tmp_path / "large") == words
    assert (
        problem(tmp_path / "inventory.yaml/x")
        == "T/inventory.yaml/x: cannot be read: Not a directory; name another file"
    )


WORDS = [
    "~",
    "x",
    "no",
    "010",
    "1.5",
    "true",
    "[]",
    "{}",
    "[1]",
    "{a: 1}",
    '""',
    "!x y",
    "{{a}}",
    "*z",
    "&z q",
]
KEYS = [
    "cluster",
    "plugin",
    "defaults",
    "ssh",
    "key",
    "groups",
    "g",
    "hosts",
    "labels",
    "repositories",
    "driver",
]


def test_no_combination_of_odd_values_ends_in_anything_but_a_problem(tmp_path):
    """Whatever stands where, the answer is a list of mistakes or an inventory, never a traceback."""
    file = tmp_path / "inventory.yaml"
    everything = list(itertools.product(KEYS, KEYS, KEYS, WORDS))
    for outer, middle, inner, word in random.Random(1).sample(everything, 500):
        text = f"groups: {{h: {{hosts: [a]}}}}\n{outer}:\n  {middle}: {{{inner}: {word}}}\n"
        file.write_text(text.split("\n", 1)[1] if outer == "groups" else text)
        with contextlib.suppress(InventoryError):
            load(file)


CHOICE = "nvidia.com/device-plugin.config"


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("mpz", "no configuration of cluster.plugin.configs has this name; did you mean `mps`?"),
        ("q", "no configuration of cluster.plugin.configs has this name; there are default, mps"),
    ],
)
def test_a_label_that_names_no_configuration_is_a_mistake(tmp_path, label, told):
    """Its node's plugin would pass over it and stay as it was; said once, where it is written."""
    (tmp_path / "good.yaml").write_text("version: v1\n")
    (message,) = mistakes(
        tmp_path,
        f"""
cluster: {{plugin: {{image: a, configs: {{default: good.yaml, mps: good.yaml}}}}}}
groups:
  gpu:
    hosts: [a, b, {{name: c, labels: {{{CHOICE}: default}}}}]
    labels: {{{CHOICE}: {label}}}
""",
    )
    place = "groups.gpu.labels"
    assert f'6:47: {place}["{CHOICE}"]: {told}' in message


def test_configurations_without_a_name_and_without_text_are_mistakes(tmp_path):
    """No configuration at all, and a file that is no UTF-8: where it is named, not as a traceback."""
    plugin = "cluster: {{plugin: {{image: a, {}}}}}\n"
    assert mistakes(tmp_path, HOSTS + plugin.format("configs: {}")) == [
        "4:39: cluster.plugin.configs: is empty; give it an entry or remove it"
    ]
    (tmp_path / "plugin.yaml").write_bytes(b"version: v1\n# \xf6\n")
    (mistake,) = mistakes(tmp_path, HOSTS + plugin.format("config: plugin.yaml"))
    assert "plugin.yaml" in mistake
    assert "UTF-8" in mistake


def test_a_label_without_several_configurations_is_nobodys_mistake(tmp_path):
    """NVIDIA's own plugin may have left it in the inventory's labels."""
    (tmp_path / "good.yaml").write_text("version: v1\n")
    (tmp_path / "inventory.yaml").write_text(
        f"groups: {{gpu: {{hosts: [a], labels: {{{CHOICE}: x}}}}}}\n"
        "cluster: {plugin: {image: a, config: good.yaml}}\n"
    )
    assert load(tmp_path / "inventory.yaml").hosts[0].labels == {CHOICE: "x"}


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        ("configs: {a: good.yaml, b: none.yaml}", "4:57: cluster.plugin.configs.b: no such file"),
        ("configs: {a: bad.yaml}", "4:43: cluster.plugin.configs.a: "),
        ("config: good.yaml, configs: {a: good.yaml}", "`config` is set too; keep one of them"),
        ("configs: {a b: good.yaml}", "a configuration's name is a label's value"),
        (
            "configs: {a: cdi.yaml, b: other-cdi.yaml}",
            "flags.plugin.cdiDirectory must be the same in all of them",
        ),
    ],
)
def test_each_of_several_configurations_is_looked_at(tmp_path, plugin, told):
    """Every one of them is read as the plugin reads it; what they need of the host goes together."""
    cdi = "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri, cdiDirectory: %s}}\n"
    for name, text in {
        "good": "version: v1\n",
        "bad": "version: v2\n",
        "cdi": cdi % "/etc/cdi",
        "other-cdi": cdi % "/run/cdi",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (message,) = mistakes(tmp_path, HOSTS + f"cluster: {{plugin: {{image: a, {plugin}}}}}\n")
    assert told in message


@tables.rows("taints")
def test_a_taint_that_cannot_be_set_is_named(tmp_path, taints: str, problem: str):
    (message,) = mistakes(tmp_path, f"defaults: {{taints: {taints}}}\n{HOSTS}")
    assert "defaults.taints" in message
    assert problem in message
