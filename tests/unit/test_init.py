"""`gpunode init`: a first inventory that is valid as it stands, wherever its hosts come from."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from gpunode import inventory
from gpunode.cli import app
from gpunode.cluster.pods import GPU
from gpunode.commands import init as start
from gpunode.engine import nodes
from gpunode.errors import UsageError
from gpunode.host.ssh_options import aliases
from gpunode.inventory.starter import SCHEMA, Entry, Starter, ranges, text
from gpunode.links import node as cluster_nodes
from gpunode.links.node import Node, Resource
from gpunode.model import Cluster
from tests import forks

BARE = cluster_nodes.parse(
    {"metadata": {"name": "", "uid": ""}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
)
SSH = """\
Include extra
Host gpu-01 gpu-02
    HostName 10.0.0.1
Host "gpu-03"
Host *.example.org !not
    User ops
Host github.com
    User git
Match host x
    User git
host=bastion
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, and a home with ssh's configuration but no kubeconfig."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").write_text(SSH)
    (home / ".ssh/extra").write_text("Host gpu-04\n")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return work


def init(*words: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(app, ["init", *words], input=answers)


def test_hosts_come_from_sshs_configuration(folder: Path):
    """With its Includes, without its patterns and without code hosting."""
    done = init("--from", "ssh", "--limit", "gpu-*", "--user", "ops")
    assert done.exit_code == 0, done.output
    assert "Wrote inventory.yaml: 4 hosts from ~/.ssh/config" in done.stderr
    read = inventory.load(folder / "inventory.yaml")
    assert [host.name for host in read.hosts] == ["gpu-04", "gpu-01", "gpu-02", "gpu-03"]
    assert {host.ssh.user for host in read.hosts} == {"ops"}
    assert '- "gpu-[01:03]"' in (folder / "inventory.yaml").read_text()

    assert init("all.yaml", "--from", "ssh").exit_code == 0
    names = {host.name for host in inventory.load(folder / "all.yaml").hosts}
    assert "bastion" in names
    assert "github.com" not in names


def test_what_another_ssh_configuration_sets_is_written(folder: Path):
    """Connections read only ssh's own files. Hosts of which nothing is set are ranges, as ever."""
    (folder / "conf").write_text(
        "Host gpu-1\n  HostName 10.0.3.1\n  Port 2222\nHost gpu-1 gpu-2\n  User ops\n  IdentityFile ~/.ssh/lab\n"
        "Host gpu-2\n  ProxyJump jump.example.org\nHost gpu-3 gpu-4 gpu-5\n"
    )
    assert init("--from", "conf").exit_code == 0
    written = (folder / "inventory.yaml").read_text()
    assert '- "gpu-[3:5]"' in written
    first, second = inventory.load(folder / "inventory.yaml", keys=False).hosts[-2:]
    assert (first.name, first.ssh.address, first.ssh.port, first.ssh.user, first.ssh.jump) == (
        "gpu-1", "10.0.3.1", 2222, "ops", None,
    )  # fmt: skip
    assert (second.name, second.ssh.address, second.ssh.port, second.ssh.jump) == (
        "gpu-2",
        "gpu-2",
        None,
        "jump.example.org",
    )
    assert written.count('key: "~/.ssh/lab"') == 2


def test_options_of_ssh_that_no_key_holds_are_named(folder: Path):
    """Else the host that was reached by hand is not reached by gpunode, and nobody knows why."""
    (folder / "conf").write_text(
        "Host gpu-1\n  ProxyCommand nc %h %p\n  UserKnownHostsFile /kh\n  StrictHostKeyChecking yes\n"
        "Host gpu-2\n  UserKnownHostsFile /one /other\n"
    )
    done = init("--from", "conf")
    assert "No key of it holds proxycommand, userknownhostsfile: " in done.stderr
    written = (folder / "inventory.yaml").read_text()
    assert 'ssh: {known_hosts: "/kh", host_key_check: strict}}   # no key holds proxycommand: ' in written
    assert "{name: gpu-2}   # no key holds userknownhostsfile: " in written
    host, _ = inventory.load(folder / "inventory.yaml", keys=False).hosts
    assert host.ssh.host_key_check == "strict"


@pytest.mark.parametrize(
    ("section", "way", "jump", "left"),
    [
        ("HostName 10.0.0.9\n  User hop\n  Port 2222", "bastion", "hop@10.0.0.9:2222", ""),
        ("HostName fd00::9", "me@bastion:22", "me@[fd00::9]:22", ""),
        ("HostName bastion.example.org", "bastion", "bastion.example.org", ""),
        ("HostName 10.0.0.9\n  IdentityFile /hop", "bastion", "bastion", "Host bastion"),
        ("HostName 10.0.0.9", "bastion,other", None, "proxyjump"),
    ],
)
def test_a_jump_host_of_another_ssh_configuration_is_written_as_it_is_reached_and_is_no_gpu_host(
    folder: Path, section: str, way: str, jump: str | None, left: str
):
    """Its name means nothing to ssh's own files. What the inventory cannot say of it is named."""
    (folder / "conf").write_text(f"Host gpu-1\n  ProxyJump {way}\nHost bastion\n  {section}\n")
    done = init("--from", "conf")
    assert done.exit_code == 0, done.output
    assert (f"No key of it holds {left}: " in done.stderr) == bool(left)
    (host,) = inventory.load(folder / "inventory.yaml", keys=False).hosts
    assert (host.name, host.ssh.jump) == ("gpu-1", jump)
    assert "# - bastion " in (folder / "inventory.yaml").read_text()


def test_a_file_that_is_there_is_never_overwritten(folder: Path):
    (folder / "inventory.yaml").write_text("mine")
    error = init("--from", "ssh").exception
    assert isinstance(error, UsageError)
    assert "exists already; nothing was written" in error.message
    assert (folder / "inventory.yaml").read_text() == "mine"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ((), "no terminal to ask on"),
        (("--from", "ssh", "--hosts", "a"), "exclude each other"),
        (("--from", "ssh", "--limit", "zzz*"), "none of 5 hosts matches --limit"),
        (("--from", "gone"), "gone cannot be read: No such file"),
        (("--from", "kubeconfig"), "`--from cluster` takes a kubeconfig's nodes"),
        (("--hosts", "gpu-[4:1]"), "ends before it starts"),
        (("--hosts", "a_ b!"), "inventory.yaml as it would be:"),
        (("--from", "~nobody9/x"), "~nobody9/x cannot be read: No such file"),
        (("--from", "x" * 300), "cannot be read: File name too long"),
        (("--from", "/dev/zero"), "/dev/zero cannot be read: it is a device"),
        (("--from", "."), ". cannot be read: Is a directory"),
    ],
)
def test_a_mistake_writes_nothing(words: tuple[str, ...], mistake: str):
    done = init(*words)
    assert mistake in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == 2
    assert not Path("inventory.yaml").exists()


def test_a_pipe_that_nobody_writes_to_is_empty(folder: Path):
    """It must not be waited for."""
    os.mkfifo(folder / "pipe")
    assert "pipe: no host is there" in str(init("--from", "pipe").exception)
    assert "the file is empty" in str(CliRunner().invoke(app, ["plan", "pipe"]).exception)


@pytest.mark.parametrize(
    "pattern",
    ["~nobody9/x", "a**b", "/", "x" * 3000, "~/" + "x" * 300, "'a\0b*'", "a\0b/*"],
    ids=lambda host: host[:9],
)
def test_an_include_of_nothing_is_passed_over(folder: Path, pattern: str):
    """As ssh does it."""
    (folder / "config").write_text(f"Include {pattern}\nHost gpu-01\n")
    assert aliases(folder / "config") == ("gpu-01",)
    (folder / "config").write_text("Include config config config\nHost gpu-01\n")
    with pytest.raises(OSError, match="its Includes go deeper than 16"):
        aliases(folder / "config")


def test_the_plugins_image_and_the_context_are_taken_where_they_are_there(folder: Path):
    (folder / "plugin.tar").touch()
    (folder / "config").write_text("{contexts: [{name: prod, context: {}}], current-context: prod}\n")
    (folder / "sub").mkdir()
    assert init("--hosts", "gpu-1", "--kubeconfig", "sub/..//config").exit_code == 0
    written = (folder / "inventory.yaml").read_text()
    assert f"\n  kubeconfig: {json.dumps(str(folder / 'config'))}" in written
    assert "\n  plugin: {archive: plugin.tar}" in written
    assert "\n  context: prod" in written
    assert inventory.load(folder / "inventory.yaml", keys=False).cluster.context == "prod"


@pytest.mark.parametrize("answers", ["gpu-[1:3]\n\n", "ssh\nops\n"])
def test_who_sits_at_a_terminal_is_asked(folder: Path, answers: str):
    """Where the hosts come from, and the user."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "gpunode", "init"]
    with forks.Popen(command, cwd=folder, stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, answers.encode())
        _, printed = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, printed
    read = inventory.load(folder / "inventory.yaml")
    assert len(read.hosts) in (3, 5)
    assert read.hosts[0].ssh.user == ("ops" if "ops" in answers else None)


TABLE = {
    "names only": Starter("names", (Entry("gpu-01"), Entry("no"), Entry("1"))),
    "addresses": Starter("x", (Entry("a", "10.0.0.1"), Entry("b", "fd00::1")), user="ops"),
    "a context that YAML would read otherwise": Starter("x", (Entry("a"),), context="on", archive="p t.tar"),
}


@pytest.mark.parametrize("known", TABLE.values(), ids=TABLE)
def test_what_is_written_is_valid_and_has_the_schema_line(known: Starter, tmp_path):
    """With every optional key as a comment that is valid, too, once the mark is taken away."""
    file = tmp_path / "inventory.yaml"
    file.write_text(text(known))
    read = inventory.load(file, keys=False)
    assert [(host.name, host.ssh.address) for host in read.hosts] == [
        (host.name, host.address or host.name) for host in known.hosts
    ]
    assert read.cluster.context == (known.context or None)
    assert file.read_text().startswith(f"# yaml-language-server: $schema={SCHEMA}\n")
    assert Path(SCHEMA).is_file()

    lines = [line.replace("# ", "", 1) if _optional(line) else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines))
    assert inventory.load(file, keys=False).hosts[0].labels == {"pool": "inference"}


def _optional(line: str) -> bool:
    return line.lstrip().startswith(
        ("# cluster:", "# kubeconfig:", "# context:", "# plugin:", "# ssh:", "# labels:")
    )


def test_a_node_has_its_address_where_ssh_does_not_know_it_by_name(folder: Path, monkeypatch):
    """Nodes of the control plane are left out, and those without GPUs where others have some."""

    def node(name: str, *addresses: str, gpus: int = 1, **labels: str) -> Node:
        return replace(
            BARE, name=name, addresses=addresses, labels=labels, resources={GPU: Resource(gpus, gpus)}
        )

    there = (
        node("gpu-01", "10.0.0.1"),
        node("gpu-11", "gpu-11", "10.0.0.2"),
        node("shared", "10.0.0.9"),
        node("web", "10.0.0.9", gpus=0),
        node("master", "10.0.0.3", **{"node-role.kubernetes.io/control-plane": ""}),
    )
    monkeypatch.setattr(nodes, "connect", lambda _: SimpleNamespace(access=SimpleNamespace(context="prod")))
    monkeypatch.setattr(cluster_nodes, "fetch", lambda _: there)
    hosts = start.from_cluster(Cluster())
    assert hosts.hosts == (Entry("gpu-01"), Entry("gpu-11", "10.0.0.2"), Entry("shared"))
    assert (hosts.context, hosts.source) == ("prod", "the nodes of prod (only hosts that have joined)")


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["a1", "a2"], ["a1", "a2"]),
        (["a1", "a2", "a3"], ["a[1:3]"]),
        (["a09", "a10", "a11", "b1"], ["a[09:11]", "b1"]),
        (["a9", "a10", "a11"], ["a[9:11]"]),
        (["r1n1", "r1n2", "x"], ["r1n1", "r1n2", "x"]),
    ],
)
def test_names_that_count_up_are_a_range(names: list[str], written: list[str]):
    assert ranges(names) == written
    again = [host.name for host in start.from_names(",".join(written)).hosts]
    assert again == names
