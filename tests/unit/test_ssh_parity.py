"""Who is let in, by `ssh` itself and by gpunode: gpunode may only be stricter, and the tables say where it is."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest

from gpunode.cli import session
from gpunode.cli.options import Common
from gpunode.engine import converge
from gpunode.errors import Unreachable
from gpunode.host import openssh
from gpunode.host.ssh import Dialer
from gpunode.model import Host
from tests import tables
from tests.ssh_agent import FIDO
from tests.sshd import Sshd, filled, serve

pytestmark = [
    pytest.mark.openssh,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed"),
]


@pytest.fixture
def sshd(tmp_path, monkeypatch) -> Iterator[Sshd]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with serve(tmp_path) as server:
        yield server


@dataclass(frozen=True)
class Case:
    """`known`, `second` and `everywhere` are known_hosts files, the user's two and the system's.

    NAME is `[127.0.0.1]:PORT`, KEY the host's key, OTHER another of its kind, ECDSA one of another kind.
    """

    name: str
    ssh: str  # in | out
    known: str = ""
    config: str = ""
    second: str = ""
    everywhere: str = ""
    gpunode: str = ""  # where it is not ssh's
    openssh: str = ""  # `connection: openssh`, likewise
    written: str | None = None  # the line that is added to the first file
    check: str = "accept-new"


CASES = [
    Case("known", "in", "NAME KEY"),
    Case("new", "in", written="NAME KEY"),
    Case("new, strict", "out", check="strict"),
    Case("new, the configuration is strict", "out", config="StrictHostKeyChecking yes"),
    Case("changed", "out", "NAME OTHER"),
    Case("changed, the configuration does not mind", "in", "NAME OTHER", "StrictHostKeyChecking no", gpunode="out", openssh="out"),
    Case("two keys of one kind", "in", "NAME OTHER\nNAME KEY"),
    Case("a key of another kind is known", "out", "NAME ECDSA"),
    Case("keys of two kinds are known", "in", "NAME ECDSA\nNAME KEY"),
    Case("pattern with another key", "out", "[127.0.0.*]:* OTHER"),
    Case("pattern with the key", "in", "[127.0.?.1]:*,other KEY"),
    Case("pattern that leaves it out", "in", "[127.*]:*,!NAME OTHER", written="NAME KEY"),
    Case("a set of letters is no pattern", "in", "[127.0.0.[0-9]]:* OTHER", written="NAME KEY"),
    Case("tabs, comment, blanks, carriage return", "in", "# mine\n\n \tNAME\tKEY my comment\r"),
    Case("line that is cut off", "in", "NAME ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE\nNAME KEY"),
    Case("only a line that is cut off", "in", "NAME ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE", written="NAME KEY"),
    Case("a FIDO key is known", "out", "NAME FIDO"),
    Case("hashed", "in", "HASHED KEY"),
    Case("hashed, another key", "out", "HASHED OTHER"),
    Case("a hash that is none", "in", "|1|AAAA OTHER", written="NAME KEY"),
    Case("bare address", "in", "127.0.0.1 KEY"),
    Case("bare address, another key", "in", "127.0.0.1 OTHER", written="NAME KEY"),
    Case("second file", "in", second="NAME KEY"),
    Case("second file, another key", "out", second="NAME OTHER"),
    Case("system's file", "in", everywhere="NAME KEY"),
    Case("system's file, another key", "out", everywhere="NAME OTHER"),
    Case("another key in the system's file, the key in the user's", "in", "NAME KEY", everywhere="NAME OTHER"),
    Case("alias", "in", "gpu-farm KEY", "HostKeyAlias GPU-Farm"),
    Case("alias, another key", "out", "gpu-farm OTHER", "HostKeyAlias gpu-farm"),
    Case("alias, the name is known", "in", "NAME KEY", "HostKeyAlias gpu-farm", written="gpu-farm KEY"),
    Case("authority only", "in", "@cert-authority * OTHER", gpunode="out", written="NAME KEY"),
    Case("authority only, strict", "out", "@cert-authority * OTHER", check="strict"),
    Case("authority and the key", "in", "@cert-authority * OTHER\nNAME KEY"),
    Case("revoked", "out", "NAME KEY\n@revoked * KEY"),
    Case("revoked in the system's file", "out", "NAME KEY", everywhere="@revoked NAME KEY"),
    Case("revoked for another host", "in", "NAME KEY\n@revoked other KEY", gpunode="out"),
    Case("a mark that ssh does not know", "in", "@trusted NAME OTHER", written="NAME KEY"),
    Case("RevokedHostKeys", "out", "NAME KEY", "RevokedHostKeys REVOKED"),
    Case("RevokedHostKeys that is not there", "out", "NAME KEY", "RevokedHostKeys REVOKED-not"),
    Case("RevokedHostKeys with other keys", "in", "NAME KEY", "RevokedHostKeys UNRELATED"),
    Case("no file to write to", "out", config="UserKnownHostsFile none"),
    Case("include", "out", config="Include INCLUDED"),
    Case("match", "out", config='Match originalhost gpu-01 exec "true"\nStrictHostKeyChecking yes'),
    Case("match that does not", "in", config='Match exec "false"\nStrictHostKeyChecking yes', written="NAME KEY"),
    Case("KnownHostsCommand", "in", config="KnownHostsCommand /bin/echo NAME KEY", gpunode="out"),
    Case("KnownHostsCommand, another key", "out", config="KnownHostsCommand /bin/echo NAME OTHER"),
    Case("ProxyCommand", "out", "NAME KEY", "ProxyCommand /bin/false"),
    Case("ProxyCommand none", "in", "NAME KEY", "ProxyCommand none"),
    Case("HostKeyAlgorithms that it has not", "out", "NAME KEY", "HostKeyAlgorithms rsa-sha2-512"),
    Case("localhost is not checked", "in", "NAME OTHER", "NoHostAuthenticationForLocalhost yes", gpunode="out", openssh="out"),
    Case("option that is none", "out", "NAME KEY", "Nonsense yes"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_host_is_let_in_where_ssh_lets_it_in(case: Case, sshd: Sshd, tmp_path):
    """And its key is written down where ssh writes it down, in the same words."""
    outcomes = {}
    for who in ("ssh", "gpunode", "openssh"):
        folder = tmp_path / who
        config = _written(case, sshd, folder)
        before = (folder / "known").read_text()
        outcomes[who] = _ssh(config, case.check) if who == "ssh" else DIALERS[who](config, sshd, case.check)
        after = (folder / "known").read_text()
        allowed = case.written if outcomes[who] == "in" else None
        added = after.removeprefix(before)
        assert added.split() == (_filled(allowed, sshd).split() if allowed else []), f"{who} wrote {added}"

    assert outcomes == {
        "ssh": case.ssh,
        "gpunode": case.gpunode or case.ssh,
        "openssh": case.openssh or case.ssh,
    }
    assert outcomes["ssh"] == "in" or set(outcomes.values()) == {"out"}, "gpunode is laxer"


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.written or case.gpunode], ids=lambda case: case.name
)
def test_a_password_goes_to_no_host_that_strict_ssh_turns_away(case: Case, sshd: Sshd, tmp_path):
    """Whatever the inventory's host_key_check is; and nothing is written down."""
    config = _written(case, sshd, tmp_path / "files")
    before = (tmp_path / "files/known").read_text()
    strict = _ssh(config, "strict")
    for check in ("accept-new", "off", "strict"):
        got = _gpunode(config, sshd, check, proven=True)
        assert got == "out"
        assert strict == "out" or case.gpunode == "out"
        stricter = "out" if case.openssh == "out" else strict
        assert _openssh(config, sshd, check, proven=True) == stricter
    assert (tmp_path / "files/known").read_text() == before


def test_an_unknown_key_and_a_password_name_the_way_out(sshd: Sshd, tmp_path):
    """The fingerprint, and the two ways to make the key known; then the password may go there."""
    host = sshd.host(known_hosts=str(tmp_path / "mine"), host_key_check="accept-new")
    dialer = Dialer(Path("/dev/null"), proven=True)
    with pytest.raises(Unreachable, match="gpunode sends a password only to known hosts") as caught:
        dialer.connect(host)
    assert "SHA256:" in caught.value.message
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1" in caught.value.hint
    assert f"ssh -o UserKnownHostsFile={tmp_path / 'mine'} -i" in caught.value.hint
    dialer.close()

    (tmp_path / "mine").write_text(sshd.known_hosts.read_text())
    Dialer(Path("/dev/null"), proven=True).connect(host).close()


def test_a_host_with_keys_of_several_kinds_is_asked_for_the_known_one(sshd: Sshd, tmp_path):
    """Else it would show another that is as good, and look changed."""
    ecdsa = paramiko.ECDSAKey.generate()
    sshd.host_keys.append(ecdsa)
    case = Case("", "in", f"NAME ecdsa-sha2-nistp256 {ecdsa.get_base64()}")
    config = _written(case, sshd, tmp_path / "files")
    assert (_ssh(config, "strict"), _gpunode(config, sshd, "strict")) == ("in", "in")


def test_names_are_hashed_where_ssh_hashes_them(sshd: Sshd, tmp_path):
    """HashKnownHosts; what was written is known from then on, to both."""
    config = _written(Case("", "in", config="HashKnownHosts yes"), sshd, tmp_path / "files")
    assert _gpunode(config, sshd, "accept-new") == "in"
    assert (tmp_path / "files/known").read_text().startswith("|1|")
    assert (_ssh(config, "strict"), _gpunode(config, sshd, "strict")) == ("in", "in")


def test_the_key_of_the_address_counts_where_ssh_checks_it(sshd: Sshd, tmp_path):
    """CheckHostIP; ssh leaves it out on loopback, gpunode does not."""
    (tmp_path / "known").write_text(_filled("gpu-farm KEY\nNAME OTHER\n", sshd))
    for option, match in (("yes", r"known is ssh-ed25519 SHA256:\S+ \(\S+/known, line 2\)"), ("no", "")):
        config = tmp_path / f"config-{option}"
        config.write_text(
            f"Host gpu-01\nHostName localhost\nPort {sshd.port}\nUser ops\nHostKeyAlias gpu-farm\n"
            f"CheckHostIP {option}\nUserKnownHostsFile {tmp_path}/known\n"
        )
        if match:
            with pytest.raises(Unreachable, match=match):
                Dialer(config).connect(_host(sshd, "strict"))
        else:
            Dialer(config).connect(_host(sshd, "strict")).close()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("ProxyCommand /bin/false", "ProxyCommand"),
        ("ProxyJump one,two", "a chain of jump hosts"),
        ("ProxyJump through", "only one jump host"),
        ("KnownHostsCommand /bin/true", "KnownHostsCommand"),
        ("Ciphers chacha20-poly1305@openssh.com", "chacha20"),
        ('UserKnownHostsFile /a "/b c"', "a path with a space"),
        ("Nonsense yes", "Bad configuration option: nonsense"),
    ],
)
def test_what_gpunode_cannot_do_is_refused_by_name(sshd: Sshd, tmp_path, option: str, named: str):
    """With the host, and what to do."""
    config = tmp_path / "config"
    config.write_text(
        f"Host gpu-01\n {option}\n HostName 127.0.0.1\n Port {sshd.port}\nHost through\n ProxyJump x\n"
    )
    with pytest.raises(Unreachable, match=named) as caught:
        Dialer(config).connect(_host(sshd, "strict"))
    assert caught.value.host == "node"
    assert caught.value.hint
    assert sshd.connections == 0


@tables.rows("ssh-files-without-ssh")
def test_without_ssh_the_plain_files_are_read(sshd: Sshd, tmp_path, text: str, named: str, monkeypatch):
    """And what only ssh itself could answer is refused."""
    (tmp_path / "EMPTY").touch()
    (tmp_path / "OTHER").write_text(_filled("NAME OTHER\ngpu-farm OTHER\n", sshd))
    for name in ("EMPTY", "OTHER"):
        text, named = text.replace(name, str(tmp_path / name)), named.replace(name, str(tmp_path / name))
    config = tmp_path / "config"
    config.write_text(f"{text}Host gpu-01\n HostName 127.0.0.1\n Port {sshd.port}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match=named):
        Dialer(config).connect(_host(sshd, "accept-new"))


def test_a_fido_key_that_is_the_only_one_is_named(sshd: Sshd, tmp_path):
    """With what to do."""
    config, fido = tmp_path / "config", tmp_path / "fido.pub"
    fido.write_text(f"{FIDO} token\n")
    config.write_text(f"Host gpu-01\nHostName 127.0.0.1\nPort {sshd.port}\nUser ops\nIdentityFile {fido}\n")
    for key in (None, str(fido)):
        host = _host(sshd, "accept-new", key=key, known_hosts=str(sshd.known_hosts))
        with pytest.raises(Unreachable, match="cannot use FIDO keys") as caught:
            Dialer(config).connect(host)
        assert "ssh.key" in caught.value.hint


# --- What both are asked ----------------------------------------------------------------------------


def _written(case: Case, sshd: Sshd, folder: Path) -> Path:
    """The case's files; the path of the configuration."""
    folder.mkdir()
    files = {"known": case.known, "second": case.second, "everywhere": case.everywhere}
    files |= {"REVOKED": "KEY", "UNRELATED": "OTHER", "INCLUDED": "StrictHostKeyChecking yes"}
    for name, text in files.items():
        (folder / name).write_bytes(f"{_filled(text, sshd)}\n".encode() if text else b"")
    text = case.config
    for name in ("REVOKED", "UNRELATED", "INCLUDED"):
        text = text.replace(name, str(folder / name))
    text = text if "UserKnownHostsFile" in text else f"{text}\nMatch all\nUserKnownHostsFile KNOWN SECOND"
    text = _filled(text, sshd).replace("KNOWN", f"{folder}/known").replace("SECOND", f"{folder}/second")
    (folder / "config").write_text(
        f"Host gpu-01\nHostName 127.0.0.1\nPort {sshd.port}\nUser ops\nIdentityFile {sshd.key}\n"
        f"GlobalKnownHostsFile {folder}/everywhere\n{text}\n"
    )
    return folder / "config"


def _filled(text: str, sshd: Sshd) -> str:
    name = f"[127.0.0.1]:{sshd.port}"
    other = paramiko.Ed25519Key.from_private_key_file(str(_other(sshd.key.parent)))
    values = {
        "HASHED": paramiko.HostKeys.hash_host(name),
        "NAME": name,
        "FIDO": FIDO,
        "OTHER": f"ssh-ed25519 {other.get_base64()}",
        "ECDSA": f"ecdsa-sha2-nistp256 {_ECDSA.get_base64()}",
        "KEY": f"ssh-ed25519 {sshd.host_key.get_base64()}",
    }
    return filled(text, values)


def _other(folder: Path) -> Path:
    if not (folder / "other").exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "other"], check=True)
    return folder / "other"


_ECDSA = paramiko.ECDSAKey.generate()


def _ssh(config: Path, check: str) -> str:
    """What ssh does, asked in the words of the inventory: unless its configuration has others."""
    words = ["-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-F", str(config)]
    answer = subprocess.run(
        ["ssh", "-G", *words, "gpu-01"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if "stricthostkeychecking ask" in answer.stdout or check == "strict":
        words += ["-o", f"StrictHostKeyChecking={'yes' if check == 'strict' else check}"]
    done = subprocess.run(
        ["ssh", *words, "gpu-01", "echo in"], capture_output=True, text=True, timeout=30, check=False
    )
    return "in" if done.stdout == "in\n" else "out"


def _host(sshd: Sshd, check: str, **ssh: object) -> Host:
    host = sshd.host(host_key_check=check)
    ssh = {"key": str(sshd.key), "known_hosts": None, **ssh}
    return replace(host, ssh=replace(host.ssh, address="gpu-01", port=None, user=None, **ssh))


def _gpunode(config: Path, sshd: Sshd, check: str, *, proven: bool = False) -> str:
    return _dialled(Dialer(config, proven=proven), sshd, check)


def _openssh(config: Path, sshd: Sshd, check: str, *, proven: bool = False) -> str:
    return _dialled(openssh.Dialer(config, proven=proven), sshd, check)


DIALERS = {"gpunode": _gpunode, "openssh": _openssh}


def _dialled(dialer: Dialer | openssh.Dialer, sshd: Sshd, check: str) -> str:
    try:
        connection = dialer.connect(_host(sshd, check))
        remote = connection.start("echo in", [])
        got = list(remote.lines())
        remote.end()
        connection.close()
    except Unreachable:
        return "out"
    finally:
        dialer.close()
    return "in" if got == [b"in\n"] else "out"


@pytest.mark.parametrize("connection", ["ssh", "openssh"])
def test_the_command_line_asks_for_known_keys_with_its_password(
    connection: str, sshd: Sshd, tmp_path, monkeypatch
):
    """-K: an unknown host sees neither the password nor a command, and is not written down."""
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "s3cret")
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        f"groups: {{g: {{hosts: [127.0.0.1], ssh: {{user: ops, port: {sshd.port}, key: id_ed25519, known_hosts: mine}}, "
        f"connection: {connection}}}}}\n"
    )
    with session.session(Common(inventory, forks=1, ask_sudo=True, json=True)) as run:
        (outcome,) = run.each(converge.probe_and_plan)
    assert outcome.status == "unreachable"
    assert outcome.problem.code == "host-key-unknown"
    assert sshd.execs == []
    assert not (tmp_path / "mine").exists()
