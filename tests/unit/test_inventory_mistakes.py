"""Each mistake in an inventory is named with its line, column, key, and the way to mend it."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path

import pytest

from gpunode.errors import InventoryError
from gpunode.inventory import load

HOSTS = "groups:\n  g:\n    hosts: [a, b]\n"


def mistakes(folder: Path, text: str | bytes) -> list[str]:
    """The problems of this text as an inventory, without the path of the file."""
    file = folder / "inventory.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InventoryError) as caught:
        load(file)
    assert caught.value.exit_code == 2
    return [problem.removeprefix(f"{file}:").strip() for problem in caught.value.problems]


def test_a_file_of_a_newer_format_is_refused_by_that_alone(tmp_path: Path) -> None:
    """Its other keys may be right there. A file that names no format, or this one, is read."""
    words = "1:10: version: this file has format 2, for a newer gpunode; this one reads formats up to 1"
    assert mistakes(tmp_path, f"version: 2\nfleets: {{}}\n{HOSTS}") == [words]
    assert mistakes(tmp_path, f"version: 0\n{HOSTS}") == [
        "1:10: version: expected a number from 1 to 1, got 0"
    ]
    file = tmp_path / "inventory.yaml"
    loaded = [load(file).hosts for text in (HOSTS, f"version: 1\n{HOSTS}") if file.write_text(text)]
    assert loaded[0] == loaded[1]


def test_mistakes_of_any_number_and_length_are_reported_in_lines_that_can_be_read(tmp_path: Path) -> None:
    """Only the first unknown keys get advice: to look for it takes longer than all else."""
    found = mistakes(tmp_path, HOSTS + "".join(f"grups{number}: 1\n" for number in range(60)))
    assert [number for number, one in enumerate(found) if "did you mean `groups`?" not in one] == [
        *range(50, 60)
    ]
    (long,) = mistakes(tmp_path, f"defaults: {{sudo: {'x' * 10_000}}}\n{HOSTS}")
    assert len(long) < 2100
    assert long.startswith('1:18: defaults.sudo: expected true or false, got the text "xxx')


SYNTAX = {
    "ini": (
        "# hosts\n[gpu:vars]\ngpu-01 ansible_host=10.0.0.1\n",
        "2:1: this is an INI file, such as Ansible's; gpunode reads YAML: see inventories/ for examples",
    ),
    "tab": ("groups:\n\tg: 1\n", "2:1: a tab; YAML is indented with spaces only"),
    "range in a flow list": (
        "groups:\n  g:\n    hosts: [gpu-[01:04]]\n",
        '3:17: a range inside [ ] needs quotes: ["gpu-[01:04]"], or a line of its own: - gpu-[01:04]',
    ),
    "open quote": ("a: 'x\nb: 1\n", "3:1: a quote is opened in line 1 and never closed"),
    "open list": ("a: [x\nb: 2\n", "2:2: the list [ … ] that begins in line 1 needs `,` or `]` before this"),
    "open mapping": (
        "a: {b: 1\n",
        "2:1: the mapping { … } that begins in line 1 needs `,` or `}` before this",
    ),
    "two colons": (
        "a: b: c\n",
        "1:5: a `:` too many, or a line too far to the right; quote the text if the `:` belongs to it",
    ),
    "dedent": ("a:\n  - x\n - y\n", "3:2: this line does not line up with the block that begins in line 1"),
    "list in a value": ("a: - b\n", "1:4: a `-` begins a list: put it on a line of its own"),
    "no colon": ("a: 1\nb\n", "3:1: a key without its `:`"),
    "reserved": ("a: @x\n", "1:4: a value cannot begin with @; quote it"),
    "alias": ("a: *x\n", "1:4: an alias (*name) for which no anchor (&name) was set before"),
    "two documents": ("a: 1\n---\nb: 2\n", "2:1: a second document begins here; a file has one"),
    "endless alias": ("a: &x [*x]\n", "1:4: a[0]: an alias that never ends"),
    "nested too deep": (
        "groups: " + "[" * 200_000,
        "1:58: lists and mappings nest deeper than 50 levels; remove the inner ones",
    ),
    "nested too deep in lines": (
        "groups:\n" + "- " * 20_000 + "x",
        "2:99: lists and mappings nest deeper than 50 levels; remove the inner ones",
    ),
    "nested too deep by aliases": (
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000)),
        "1:5: lists and mappings nest deeper than 50 levels; remove the inner ones",
    ),
    "control character": ("a: 1\nb: x\0\n", "2:5: control character '\\x00': is this a text file?"),
    "latin-1": (b"groups:\n  k\xf6ln: x\n", "2:4: byte 0xf6 is not UTF-8; save the file as UTF-8"),
    "utf-16": ("groups: {}".encode("utf-16"), "1:1: byte 0xff is not UTF-8; save the file as UTF-8"),
    "empty": ("", "the file is empty; it needs `groups` with `hosts`"),
    "comments only": ("# groups:\n", "the file is empty; it needs `groups` with `hosts`"),
    "a kubeconfig": (
        "apiVersion: v1\nkind: Config\nclusters: []\n",
        "this is a kubeconfig, which an inventory names: `cluster: {kubeconfig: FILE}`; `gpunode init` writes an inventory",
    ),
    "another manifest": (
        "apiVersion: k0sctl.k0sproject.io/v1beta1\nkind: Cluster\nspec: {}\n",
        "this is a manifest of kind Cluster; `gpunode init` writes an inventory",
    ),
    "Ansible's": (
        "all: {hosts: {gpu-01: }}\n",
        "this is an inventory of Ansible's; `gpunode init` writes an inventory",
    ),
    "a list": ("- gpu-01\n", "1:1: expected `groups:` and the like at the top, got a list"),
    "a word": ("gpu-01\n", '1:1: expected `groups:` and the like at the top, got the text "gpu-01"'),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_what_is_no_yaml_is_reported_with_line_and_cause(tmp_path, name):
    """A broken file gives one line that a user can act on."""
    text, expected = SYNTAX[name]
    assert mistakes(tmp_path, text) == [expected]


def test_aliases_of_aliases_end_in_time(tmp_path):
    """A few lines that stand for ten thousand million values are stopped, not worked through."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "an alias that never ends" in mistakes(tmp_path, "\n".join(lines))[0]


RULES = {
    "unknown key": (HOSTS + "    drvier: 580\n", "4:5: groups.g.drvier: unknown key; did you mean `driver`?"),
    "key of ssh outside": (
        HOSTS + "defaults: {user: ops}\n",
        "4:12: defaults.user: unknown key; did you mean `ssh.user`?",
    ),
    "variable at the top": (
        HOSTS + "driver: 580\n",
        "4:1: driver: unknown key; did you mean `defaults.driver`?",
    ),
    "hosts at the top": (
        HOSTS + "hosts: []\n",
        "4:1: hosts: unknown key; did you mean `groups.<name>.hosts`?",
    ),
    "address of a group": (
        HOSTS + "    address: x\n",
        "4:5: groups.g.address: unknown key; did you mean `hosts[].address`?",
    ),
    "a model of no number": (
        HOSTS + "    gpus: {model: H100}\n",
        "4:11: groups.g.gpus: `count` is missing; add `count: 8`",
    ),
    "no GPU expected": (
        HOSTS + "    gpus: 0\n",
        "4:11: groups.g.gpus: expected a number from 1 to 64, got 0",
    ),
    "nothing alike": (
        HOSTS + "cluster: {zzz: 1}\n",
        "4:11: cluster.zzz: unknown key; the keys here are `kubeconfig`, `context`, `namespace`, `max_tainted`, `share` and `plugin`",
    ),
    "key twice": (
        HOSTS + "    driver: 580\n    driver: 590\n",
        "5:5: groups.g.driver: written twice, first in line 4; keep one",
    ),
    "group twice": (HOSTS + "  g: {hosts: [b]}\n", "4:3: groups.g: written twice, first in line 2; keep one"),
    "merge key": (
        HOSTS + "    <<: {driver: 580}\n",
        "4:5: groups.g.<<: merge keys are not read; what hosts share goes into a group or `defaults`",
    ),
    "tag": (
        HOSTS + "    driver: !vault x\n",
        "4:13: groups.g.driver: unknown tag `!vault`; remove it",
    ),
    "template": (
        HOSTS + "    driver: {{ version }}\n",
        "4:14: groups.g.driver: a key is a word, not a list or mapping; {{ templates }} are not filled in here",
    ),
    "yaml 1.1 boolean": (
        HOSTS + "    sudo: yes\n",
        '4:11: groups.g.sudo: expected true or false, got the text "yes"; write true',
    ),
    "quoted boolean": (
        HOSTS + '    sudo: "false"\n',
        '4:11: groups.g.sudo: expected true or false, got the text "false"; write it without quotes',
    ),
    "boolean as a name": (
        "groups: {g: {hosts: [a, true]}}\n",
        '1:25: groups.g.hosts[1]: expected text or a mapping, got `true`; in quotes it is text: "true"',
    ),
    "leading zero": (
        HOSTS + "    ssh: {port: 0022}\n",
        '4:17: groups.g.ssh.port: 0022 begins with 0, which some read as octal: write 22, or "0022" for text',
    ),
    "leading zero in a list": (
        "groups: {g: {hosts: [a, 007]}}\n",
        '1:25: groups.g.hosts[1]: 007 begins with 0, which some read as octal: write 7, or "007" for text',
    ),
    "number as a label": (
        HOSTS + "    labels: {rack: 7}\n",
        '4:20: groups.g.labels.rack: expected text, got the number 7; in quotes it is text: "7"',
    ),
    "quoted port": (
        HOSTS + '    ssh: {port: "22"}\n',
        '4:17: groups.g.ssh.port: expected a whole number, got the text "22"; write it without quotes',
    ),
    "broken port": (
        HOSTS + "    ssh: {port: 22.0}\n",
        "4:17: groups.g.ssh.port: expected a whole number, got the number 22.0",
    ),
    "port too high": (
        HOSTS + "    ssh: {port: 65536}\n",
        "4:17: groups.g.ssh.port: expected a number from 1 to 65535, got 65536",
    ),
    "jump port": (
        HOSTS + '    ssh: {jump: "me@bastion:65536"}\n',
        "4:17: groups.g.ssh.jump: expected a port from 1 to 65535, got 65536",
    ),
    "two jump hosts": (
        HOSTS + '    ssh: {jump: "a,b"}\n',
        "4:17: groups.g.ssh.jump: a jump host is [user@]host[:port], an IPv6 address in [brackets], "
        'and only one; this one is "a,b"',
    ),
    "choice": (
        HOSTS + "    runtime: clas\n",
        "4:14: groups.g.runtime: expected `default`, `class` or `none`, got the text "
        '"clas"; did you mean `class`?',
    ),
    "float as a version": (
        HOSTS + "    driver: 580.95\n",
        "4:13: groups.g.driver: expected text or a whole number or a mapping, got the number 580.95; "
        'in quotes it is text: "580.95"',
    ),
    "a build of Python without its checksum": (
        HOSTS + '    python: {url: "https://a/python.tar.gz"}\n',
        "4:13: groups.g.python: `sha256` is missing; add "
        "`sha256: 4fcf0a9d2a0b1ee6f2a1c6a0e8d4ab5d6f6a4d4f1c6f3d2a1b0c9d8e7f6a5b4c`",
    ),
    "a build of Python behind a login": (
        HOSTS + f'    python: {{url: "https://u:p@a/python.tar.gz", sha256: "{"a" * 64}"}}\n',
        "4:19: groups.g.python.url: a build's url begins with https:// or http:// and holds no spaces, quotes or user:password@",
    ),
    "an installer without its checksum": (
        HOSTS + '    driver: {from: run, version: "580.178.04", url: "https://a/d.run"}\n',
        "4:13: groups.g.driver: `sha256` is missing; `from: run` needs it",
    ),
    "an installer from nowhere": (
        HOSTS + f'    driver: {{from: run, version: "580.178.04", sha256: "{"a" * 64}"}}\n',
        "4:13: groups.g.driver: `from: run` needs one of `file` and `url`",
    ),
    "a branch in place of the installer's version": (
        HOSTS + f'    driver: {{from: run, version: "580", url: "https://a/d.run", sha256: "{"a" * 64}"}}\n',
        '4:34: groups.g.driver.version: a full version is of the form "580.178.04"; this one is "580"',
    ),
    "a driver from elsewhere": (
        HOSTS + "    driver: {from: runn}\n",
        '4:20: groups.g.driver.from: expected `run`, `distribution` or `nvidia`, got the text "runn"; did you mean `run`?',
    ),
    "a full version of an archive": (
        HOSTS + '    driver: {from: distribution, version: "580.178.04"}\n',
        '4:43: groups.g.driver.version: `from: distribution` takes a branch such as 580; this one is "580.178.04"',
    ),
    "an installer's key beside an archive": (
        HOSTS + "    driver: {from: distribution, flavour: open}\n",
        "4:34: groups.g.driver.flavour: `flavour` is for `from: run` alone; remove it",
    ),
    "half a version": (
        HOSTS + "    toolkit: 1.20\n",
        '4:14: groups.g.toolkit: a toolkit is auto, none, nvidia-docker2, or a full version such as "1.20.1"; this one is "1.20"',
    ),
    "nothing there": (
        HOSTS + "defaults:\n",
        "4:10: defaults: expected a mapping, got nothing; give it a value or remove the line",
    ),
    "a word for a list": (
        "groups: {g: {hosts: a}}\n",
        '1:21: groups.g.hosts: expected a list, got the text "a"; a list of one is ["a"]',
    ),
    "hosts as a mapping": (
        "groups: {g: {hosts: {a: {}}}}\n",
        "1:21: groups.g.hosts: expected a list, got a mapping; "
        "each host is a line of its own: `- name`, or `- {name: …, address: …}`",
    ),
    "no name": (
        "groups: {g: {hosts: [{address: a}]}}\n",
        "1:22: groups.g.hosts[0]: `name` is missing; add `name: gpu-01`",
    ),
    "variables beside their group": (
        HOSTS + "  ssh:\n    user: ops\n    port: 22\n",
        "4:3: groups.ssh: `ssh` is no group; indent it below the group it belongs to",
    ),
    "name misspelt": (
        "groups: {g: {hosts: [{nam: a}]}}\n",
        "1:23: groups.g.hosts[0].nam: unknown key; did you mean `name`?",
    ),
    "no hosts": (
        "groups: {g: {hosts: []}}\n",
        "1:9: groups: no hosts; name at least one under a group's `hosts`",
    ),
    "no groups": (
        "groups: {}\n",
        "1:9: groups: no hosts; name at least one under a group's `hosts`",
    ),
    "range ends first": (
        "groups:\n  g:\n    hosts:\n      - gpu-[04:01]\n",
        "4:9: groups.g.hosts[0]: the range [04:01] ends before it starts; did you mean `gpu-[01:04]`?",
    ),
    "range as a shell writes it": (
        'groups: {g: {hosts: ["gpu-{01..04}"]}}\n',
        "1:22: groups.g.hosts[0]: a range counts from one number to another, as in gpu-[01:04]; "
        "did you mean `gpu-[01:04]`?",
    ),
    "range as Slurm writes it": (
        'groups: {g: {hosts: ["gpu-[1-4].example"]}}\n',
        "1:22: groups.g.hosts[0]: a range counts from one number to another, as in gpu-[01:04]; "
        "did you mean `gpu-[1:4].example`?",
    ),
    "range of letters": (
        'groups: {g: {hosts: ["gpu-[a:d]"]}}\n',
        "1:22: groups.g.hosts[0]: a range counts from one number to another, as in gpu-[01:04]; "
        'this one is "gpu-[a:d]"; name such hosts one by one',
    ),
    "seconds with a unit": (
        HOSTS + "    ssh: {timeout: 15s}\n",
        '4:20: groups.g.ssh.timeout: expected a number, got the text "15s"; write seconds, without a unit',
    ),
    "range without end": (
        "groups:\n  g:\n    hosts:\n      - gpu-[1:999999]\n",
        "4:9: groups.g.hosts[0]: the range names more than 10000 hosts",
    ),
    "port in the name": (
        "groups: {g: {hosts: [gpu-01:22]}}\n",
        "1:22: groups.g.hosts[0]: a host's name has letters, digits, `.`, `_` and `-`, with a letter or digit at "
        'both ends, and ranges such as [01:04]; its user and port go under `ssh`; this one is "gpu-01:22"',
    ),
    "range with values": (
        'groups: {g: {hosts: [{name: "a[1:2]"}]}}\n',
        "1:29: groups.g.hosts[0].name: a host's name has letters, digits, `.`, `_` and `-`, with a letter or digit "
        'at both ends; a range is an entry of the list without other keys; this one is "a[1:2]"',
    ),
    "port in the address": (
        'groups: {g: {hosts: [{name: a, address: "10.0.0.1:22"}]}}\n',
        "1:41: groups.g.hosts[0].address: an address is a host name or an IP address alone; "
        'user and port go under `ssh`; this one is "10.0.0.1:22"',
    ),
    "label value": (
        HOSTS + "    labels: {pool: two words}\n",
        "4:20: groups.g.labels.pool: a label value has at most 63 characters of [A-Za-z0-9_.-], "
        "with a letter or digit at both ends; this one has a space",
    ),
    "long label value": (
        HOSTS + f"    labels: {{pool: {'x' * 64}}}\n",
        "4:20: groups.g.labels.pool: a label value has at most 63 characters of [A-Za-z0-9_.-], "
        "with a letter or digit at both ends; this one has 64 characters",
    ),
    "label key": (
        HOSTS + "    labels: {a/b/c: x}\n",
        '4:14: groups.g.labels["a/b/c"]: a label\'s key is [prefix/]name: the prefix a DNS name, the name at most 63 '
        "characters of [A-Za-z0-9_.-] with a letter or digit at both ends; "
        'this one is "a/b/c"',
    ),
    "gate": (
        HOSTS + "    kubelet: {feature_gates: {devicePlugins: true}}\n",
        "4:31: groups.g.kubelet.feature_gates.devicePlugins: a feature gate's name is written like "
        'DevicePlugins; this one is "devicePlugins"',
    ),
    "host twice in a group": (
        "groups:\n  g:\n    hosts:\n      - gpu-[1:3]\n      - gpu-2\n",
        "5:9: groups.g.hosts[1]: gpu-2 is already in this group (line 4); list it once",
    ),
    "host named like a group": (
        "groups:\n  g: {hosts: [a]}\n  a: {hosts: [b]}\n",
        "2:15: groups.g.hosts[0]: a is also a group's name (line 3); rename one, --limit cannot distinguish them",
    ),
    "one machine twice": (
        "groups:\n  g:\n    hosts:\n      - 10.0.0.1\n      - {name: a, address: 10.0.0.1}\n",
        "5:9: groups.g.hosts[1]: a is reached at 10.0.0.1 port 22, as is 10.0.0.1 (line 4)",
    ),
    "this machine twice": (
        HOSTS + "    connection: local\n",
        "3:16: groups.g.hosts[1]: b is this machine, as is a (line 3)",
    ),
    "one node twice": (
        "groups:\n  g:\n    hosts:\n      - {name: a, node: n}\n      - {name: b, node: n}\n",
        "5:9: groups.g.hosts[1]: b is node n, as is a (line 4)",
    ),
    "contradiction": (
        "groups:\n  g:\n    hosts: [a, b, c]\n    driver: 580\n  h:\n    hosts: [b]\n    driver: 590\n",
        "7:13: groups.h.driver: b: groups.g.driver (line 4) has another value; "
        "use the same, or set it on the host",
    ),
    "contradiction of many": (
        "groups:\n  g:\n    hosts: [a, b, c]\n    ssh: {port: 1}\n  h:\n    hosts: [b, c, a]\n    ssh: {port: 2}\n",
        "7:17: groups.h.ssh.port: a and 2 more: groups.g.ssh.port (line 4) has another value; "
        "use the same, or set it on the host",
    ),
    "plugin without anything": (
        HOSTS + "cluster: {plugin: {}}\n",
        "4:19: cluster.plugin: needs `image` or `archive`",
    ),
    "plugin without an image": (
        HOSTS + "cluster: {plugin: {config: plugin.yaml}}\n",
        "4:19: cluster.plugin: needs `image` or `archive`",
    ),
    "plugin with its image's key misspelt": (
        HOSTS + "cluster: {plugin: {imagee: a}}\n",
        "4:20: cluster.plugin.imagee: unknown key; did you mean `image`?",
    ),
    "plugin with a wrong image": (
        HOSTS + "cluster: {plugin: {image: A}}\n",
        "4:27: cluster.plugin.image: an image reference is name[:tag][@sha256:digest], its name in lower case; "
        'this one is "A"',
    ),
    "MIG devices that do not fit": (
        HOSTS + "    mig: {A100-SXM4-80GB: [3g.40gb, 3g.40gb, 1g.10gb]}\n",
        "4:27: groups.g.mig.A100-SXM4-80GB: A100-SXM4-80GB: 3g.40gb, 3g.40gb, 1g.10gb do not fit into one GPU",
    ),
    "MIG devices that fit no GPU": (
        HOSTS + "    mig: [4g.40gb, 4g.40gb]\n",
        "4:10: groups.g.mig: A100-SXM4-80GB: 4g.40gb, 4g.40gb do not fit into one GPU",
    ),
    "MIG profile of another model": (
        HOSTS + "    mig: {A30: all-1g.5gb}\n",
        "4:16: groups.g.mig.A30: A30: no MIG profile 1g.5gb; it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb",
    ),
    "MIG profile misspelt": (
        HOSTS + "    mig: {A30: [1g]}\n",
        "4:17: groups.g.mig.A30[0]: a MIG profile is one that `nvidia-smi mig -lgip` lists "
        "(on 80 GB: 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb); "
        'this one is "1g"',
    ),
    "MIG profile without how many": (
        HOSTS + "    mig: 1g.10gb\n",
        "4:10: groups.g.mig: a MIG layout is off, all-PROFILE such as all-1g.10gb, or a list of profiles such as [3g.40gb, 3g.40gb]; "
        'this one is "1g.10gb"',
    ),
    "MIG without devices": (
        HOSTS + "    mig: []\n",
        "4:10: groups.g.mig: name at least one profile, or write off",
    ),
    "namespace": (
        HOSTS + "cluster: {namespace: GPU}\n",
        "4:22: cluster.namespace: a namespace has lower-case letters, digits and `-`, "
        'with a letter or digit at both ends; this one is "GPU"',
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_reported_once_with_what_to_write(tmp_path, name):
    """One mistake gives one line, and no other line follows from it."""
    text, expected = RULES[name]
    assert mistakes(tmp_path, text) == [expected]


def test_mistakes_beside_each_other_are_reported_in_one_round(tmp_path):
    """A layout that breaks the form hides none of another model, and a version of an installer not its missing file."""
    found = mistakes(
        tmp_path,
        """
groups:
  g: {hosts: [a], mig: {A100-SXM4-80GB: 1g.10gb, H100: [9g.10gb], A30: [4g.24gb, 4g.24gb]}}
  h: {hosts: [b], driver: {from: run, version: "580", file: no.run}}
""",
    )
    assert [mistake.split(": ")[1] for mistake in found] == [
        "groups.g.mig.A100-SXM4-80GB",
        "groups.g.mig.H100[0]",
        "groups.g.mig.A30",
        "groups.h.driver",
        "groups.h.driver.version",
        "groups.h.driver.file",
    ]


def test_files_that_are_named_must_be_there(tmp_path):
    """Missing, wrong and swapped key files are found before anything is contacted."""
    (tmp_path / "private.asc").write_text("-----BEGIN PGP PRIVATE KEY BLOCK-----\n")
    (tmp_path / "binary.gpg").write_bytes(b"\x99\x01\x0d\x04")
    found = mistakes(
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
    assert found == [
        f"2:23: cluster.kubeconfig: no such file: {tmp_path}/none",
        f"2:47: cluster.plugin.archive: no such file: {tmp_path}/image.tar; `gpunode plugin image` writes one",
        "4:14: defaults.ssh.key: id.pub is the public key; name the private key's file: id",
        f"4:35: defaults.ssh.known_hosts: no such file: {tmp_path}/known; "
        "with host_key_check: strict gpunode could reach no host",
        f"6:42: defaults.repositories.driver.key: {tmp_path}/private.asc is a PRIVATE key; "
        "export the public one: gpg --armor --export",
        f"7:43: defaults.repositories.toolkit.key: {tmp_path}/binary.gpg is no armoured public key; "
        f"convert a binary one: gpg --no-default-keyring --keyring {tmp_path}/binary.gpg --armor --export",
        f"9:37: groups.g.ssh.key: is a folder, expected a file: {tmp_path}",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "version: v2\nsharing: {timeSlice: {}}\n",
            [
                '{file}:1:10: version: expected v1, found the text "v2"',
                "{file}:2:11: sharing.timeSlice: unknown key; is sharing.timeSlicing meant?",
            ],
        ),
        (
            "version: v1\nsharing: [\n",
            ["{file}:3:1: a value is missing here, or a `[` or `{{` before it is not closed"],
        ),
        (None, ["no such file: {file}"]),
    ],
)
def test_a_configuration_that_the_plugin_could_not_use_is_a_mistake_of_the_inventory(tmp_path, text, said):
    """The plugin's own reader looks at it, so that no node gets what its plugin refuses; every mistake with its place."""
    file = tmp_path / "plugin.yaml"
    if text is not None:
        file.write_text(text)
    found = mistakes(tmp_path, HOSTS + "cluster: {plugin: {image: a, config: plugin.yaml}}\n")
    assert found == [f"4:38: cluster.plugin.config: {line.format(file=file)}" for line in said]


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
    (found,) = mistakes(
        tmp_path, HOSTS + '    repositories: {driver: {uri: "https://u:hush@m/x", key: k}}\n'
    )[:1]
    assert "user:password@" in found
    assert "hush" not in found


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file(tmp_path):
    """Syntax-free files never need a second round: schema, files and contradictions come together."""
    found = mistakes(
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
    places = [line.split(": ")[:2] for line in found]
    assert places == [
        ["2:11", "cluster.contxt"],
        ["2:37", "cluster.kubeconfig"],
        ["3:18", "defaults.sudo"],
        ["5:20", "groups.a.hosts[1]"],
        ["5:40", "groups.a.driver"],
        ["6:20", "groups.b.hosts[1]"],
        ["7:33", "groups.c.labels.x"],
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
    (found,) = mistakes(
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
    assert f'6:47: {place}["{CHOICE}"]: {told}' in found


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
    (found,) = mistakes(tmp_path, HOSTS + f"cluster: {{plugin: {{image: a, {plugin}}}}}\n")
    assert told in found


GATES = {
    "'true'": '1:7: gate: expected a list, got the text "true"; a list of one is ["true"]',
    "[true]": '1:8: gate[0]: expected text or a mapping, got `true`; in quotes it is text: "true"',
    "[{comand: x}]": "1:9: gate[0].comand: unknown key; did you mean `command`?",
    "[{timeout: 1m}]": "1:8: gate[0]: `command` is missing; add `command: ./no-alerts.sh`",
    "[{command: x, timeout: 90}]": '1:30: gate[0].timeout: expected a duration such as 90s, 30m or 2h; this one is "90"',
}


@pytest.mark.parametrize(("written", "expected"), GATES.items())
def test_a_gate_that_is_none_is_named(tmp_path: Path, written: str, expected: str) -> None:
    assert mistakes(tmp_path, f"gate: {written}\n{HOSTS}") == [expected]


@pytest.mark.parametrize(
    ("taints", "problem"),
    [
        ("[dedicated=ml]", "KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute"),
        (
            "[gpunode.dev/unverified=x:NoSchedule]",
            "taints of gpunode.dev/ are not set by an inventory; remove it",
        ),
        (
            "[node.kubernetes.io/not-ready:NoExecute]",
            "taints of node.kubernetes.io/ are not set by an inventory",
        ),
        ("[a=1:NoSchedule, a=2:NoSchedule]", "keep this or a=1:NoSchedule"),
        ("a=1:NoSchedule", "expected a list"),
    ],
)
def test_a_taint_that_cannot_be_set_is_named(tmp_path: Path, taints: str, problem: str) -> None:
    (found,) = mistakes(tmp_path, f"defaults: {{taints: {taints}}}\n{HOSTS}")
    assert "defaults.taints" in found
    assert problem in found
