"""Configurations against OpenSSH's own server: gpunode's client, `connection: openssh` and ssh all get in, or none does.

Where gpunode's client cannot do what ssh does, it refuses beforehand and names `connection: openssh`.
"""

import getpass
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from gpunode.engine.session import Dialer
from gpunode.errors import Unreachable
from gpunode.host import openssh, ssh
from gpunode.model import Host, Ssh
from tests.deviceplugin.test_metrics import free_port
from tests.sim.clusters import until
from tests.ssh_agent import FIDO, Agent
from tests.sshd import SSHD, filled, usable

pytestmark = [
    pytest.mark.openssh,
    pytest.mark.skipif(SSHD is None, reason="OpenSSH's server is not installed"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed"),
]


@dataclass(frozen=True)
class Case:
    """`config` is what ssh's configuration of gpu-01 says beside the usual; `known` the user's known_hosts file.

    DIR is the folder of keys, PORT the server's. KEY, OTHER and CA are public keys: the host's, another, the authority's.
    """

    name: str
    outcome: str  # ssh's: in | out
    config: str = ""
    known: str = "NAME KEY"
    own: str = ""  # gpunode's client's, where it refuses what ssh can: `unsupported`
    code: str = ""  # of openssh, where it is out
    agent: tuple[str, ...] = ()
    address: str = "gpu-01"
    usual: str = "HostName 127.0.0.1\nPort PORT\nUser USER\nIdentityFile DIR/user"


BARE = "HostName 127.0.0.1\nPort PORT\nUser USER\n"
CASES = [
    Case("the usual", "in"),
    Case("User", "out", usual="HostName 127.0.0.1\nPort PORT\nUser nobody-here\nIdentityFile DIR/user", code="permission-denied"),
    Case("a port that nobody listens on", "out", usual="HostName 127.0.0.1\nPort 1\nUser USER\nIdentityFile DIR/user", code="connection-refused"),
    Case("a port that speaks no SSH", "out", usual="HostName 127.0.0.1\nPort SILENT\nUser USER\nConnectTimeout 1", code="handshake-timeout"),
    Case("HostName that does not resolve", "out", usual="HostName gpu-01.invalid\nUser USER", code="name-unknown"),
    Case("HostName with a token", "in", usual="HostName %h.0.0.1\nPort PORT\nUser USER\nIdentityFile DIR/user", address="127"),
    Case("several IdentityFiles", "in", usual=f"{BARE}IdentityFile DIR/none\nIdentityFile DIR/other\nIdentityFile DIR/user"),
    Case("an IdentityFile that does not open it", "out", usual=f"{BARE}IdentityFile DIR/other", code="permission-denied"),
    Case("IdentityFile with tokens", "in", usual=f"{BARE}IdentityFile DIR/by-%n-%r"),
    Case("an encrypted key", "out", usual=f"{BARE}IdentityFile DIR/locked", code="permission-denied"),
    Case("an encrypted key in the agent", "in", usual=f"{BARE}IdentityFile DIR/locked", agent=("user",)),
    Case("the agent's key, not listed", "in", usual=f"{BARE}IdentityFile DIR/other", agent=("user",)),
    Case("the agent's key, IdentitiesOnly", "out", usual=f"{BARE}IdentityFile DIR/other\nIdentitiesOnly yes", agent=("user",), code="permission-denied"),
    Case("IdentityAgent none", "out", "IdentityAgent none", usual=f"{BARE}IdentityFile DIR/other", agent=("user",), code="permission-denied"),
    Case("an IdentityFile that is no key", "in", usual=f"{BARE}IdentityFile DIR/junk\nIdentityFile DIR/user"),
    Case("an IdentityFile that is a folder", "in", usual=f"{BARE}IdentityFile DIR\nIdentityFile DIR/user"),
    Case("a rare cipher", "in", usual=f"{BARE}IdentityFile DIR/rare\nIdentityFile DIR/user"),
    Case("a rare cipher, the key in the agent", "in", "IdentitiesOnly yes", usual=f"{BARE}IdentityFile DIR/rare", agent=("user",)),
    Case("a public half", "out", usual=f"{BARE}IdentityFile DIR/public.pub", code="key-permissions"),
    Case("a public half, the key among others in the agent", "in", "IdentitiesOnly yes", usual=f"{BARE}IdentityFile DIR/public.pub", agent=("other", "user")),
    Case("a key of which only the public half is there", "in", "IdentitiesOnly yes", usual=f"{BARE}IdentityFile DIR/public", agent=("user",)),
    Case("IdentityAgent", "in", "IdentityAgent AGENT", usual=f"{BARE}IdentityFile DIR/none", agent=("user",)),
    Case("IdentityAgent from a variable", "in", "IdentityAgent $SSH_AUTH_SOCK", usual=f"{BARE}IdentityFile DIR/none", agent=("user",)),
    Case("a FIDO key", "out", usual=f"{BARE}IdentityFile DIR/fido.pub", code="permission-denied"),
    Case("a key that others may read", "out", usual=f"{BARE}IdentityFile DIR/open", code="key-permissions", own="key-permissions"),
    Case("a user's certificate beside the key", "in", usual=f"{BARE}IdentityFile DIR/signed"),
    Case("a user's CertificateFile", "in", usual=f"{BARE}IdentityFile DIR/apart\nCertificateFile DIR/apart.crt", own="permission-denied"),
    Case("a user's certificate that expired", "out", usual=f"{BARE}IdentityFile DIR/expired", code="permission-denied"),
    Case("PubkeyAuthentication no", "out", "PubkeyAuthentication no", own="unsupported", code="permission-denied"),
    Case("PreferredAuthentications password", "out", "PreferredAuthentications password", own="unsupported", code="permission-denied"),
    Case("Match host", "in", 'Match host 127.0.0.1\nIdentityFile DIR/user', usual=BARE),
    Case("Match host, another", "out", 'Match host gpu-02\nIdentityFile DIR/user', usual=f"{BARE}IdentityFile DIR/other", code="permission-denied"),
    Case("Match user", "in", "Match user USER\nIdentityFile DIR/user", usual=BARE),
    Case("Match exec", "in", 'Match exec "test -e DIR/user"\nIdentityFile DIR/user', usual=BARE),
    Case("Match exec that fails", "out", 'Match exec "false"\nIdentityFile DIR/user\nMatch all\nIdentityFile DIR/other', usual=BARE, code="permission-denied"),
    Case("Match final", "in", "Match final host 127.0.0.1\nIdentityFile DIR/user", usual=BARE),
    Case("Include", "in", "Match all\nInclude DIR/included", usual=BARE),
    Case("a pattern with a negation", "out", "Host gpu-* !gpu-01\nIdentityFile DIR/user\nMatch all\nIdentityFile DIR/other", usual=BARE, code="permission-denied"),
    Case("a pattern", "in", "Host gpu-?? !gpu-02\nIdentityFile DIR/user", usual=BARE),
    Case("CanonicalizeHostname", "in", "CanonicalizeHostname yes\nCanonicalDomains localhost.invalid\nCanonicalizeFallbackLocal yes"),
    Case("AddressFamily inet", "in", "AddressFamily inet", usual="HostName localhost\nPort PORT\nUser USER\nIdentityFile DIR/user", known="[localhost]:PORT KEY"),
    Case("AddressFamily inet6, of an IPv4 address", "out", "AddressFamily inet6", code="name-unknown"),
    Case("BindAddress", "in", "BindAddress 127.0.0.1"),
    Case("BindAddress that this machine has not", "out", "BindAddress 192.0.2.1", code="bind-address"),
    Case("BindInterface", "in", "BindInterface lo", own="unsupported"),
    Case("ProxyJump", "in", "ProxyJump through"),
    Case("ProxyJump with user and port", "in", "ProxyJump USER@localhost:PORT", usual=f"{BARE}IdentityFile DIR/user"),
    Case("a chain of jump hosts", "in", "ProxyJump through,again", own="unsupported"),
    Case("a jump host with a jump host", "in", "ProxyJump behind", own="unsupported"),
    Case("a jump host that is not there", "out", "ProxyJump nowhere", code="connection-refused"),
    Case("ProxyCommand", "in", "ProxyCommand DIR/proxy %h %p", own="unsupported"),
    Case("ProxyCommand that fails", "out", "ProxyCommand sh -c 'echo no way >&2; exit 1'", own="unsupported", code="proxy-failed"),
    Case("an unknown key", "out", known="", code="host-key-unknown"),
    Case("a changed key", "out", known="NAME OTHER", code="host-key-changed"),
    Case("a hashed name", "in", known="HASHED KEY"),
    Case("HostKeyAlias", "in", "HostKeyAlias gpu-farm", known="gpu-farm KEY"),
    Case("HostKeyAlias, another key", "out", "HostKeyAlias gpu-farm", known="gpu-farm OTHER\nNAME KEY", code="host-key-changed"),
    Case("UserKnownHostsFile with a token", "in", known="", usual=f"UserKnownHostsFile DIR/known-%n\n{BARE}IdentityFile DIR/user"),
    Case("GlobalKnownHostsFile", "in", "GlobalKnownHostsFile DIR/known-global", known=""),
    Case("@cert-authority", "in", "HostKeyAlias gpu-farm", known="@cert-authority gpu-* CA", own="unsupported"),
    Case("@cert-authority, another", "out", "HostKeyAlias gpu-farm", known="@cert-authority gpu-* OTHER", own="unsupported", code="host-key-unknown"),
    Case("@cert-authority, another name", "out", "HostKeyAlias cpu-farm", known="@cert-authority * CA", own="unsupported", code="host-certificate-refused"),
    Case("@cert-authority beside another key", "in", "HostKeyAlias gpu-farm", known="gpu-farm OTHER\n@cert-authority gpu-* CA", own="host-key-changed"),
    # ssh asks for a certificate first, and then not for the kind of key that is known; known it is.
    Case("@cert-authority, another, beside a key of another kind", "out", "HostKeyAlias gpu-farm", known="gpu-farm RSA \n@cert-authority gpu-farm OTHER", own="in", code="host-key-changed"),
    Case("a key of another kind", "in", "HostKeyAlias gpu-farm", known="gpu-farm RSA "),
    Case("@revoked", "out", known="NAME KEY\n@revoked * KEY", code="host-key-revoked"),
    Case("RevokedHostKeys as KRL", "out", "RevokedHostKeys DIR/krl", own="unsupported", code="host-key-revoked"),
    Case("KnownHostsCommand", "in", "KnownHostsCommand /bin/echo %H KEY", known="", own="unsupported"),
    Case("HostKeyAlgorithms that the host has", "in", "HostKeyAlgorithms ssh-ed25519"),
    Case("HostKeyAlgorithms that the host has not", "out", "HostKeyAlgorithms ecdsa-sha2-nistp521", code="algorithms"),
    Case("Ciphers that gpunode's client has not", "in", "Ciphers chacha20-poly1305@openssh.com", own="unsupported"),
    Case("RequiredRSASize", "out", "RequiredRSASize 4096\nHostKeyAlgorithms rsa-sha2-512", known="NAME RSA", code="ssh-failed"),
    Case("ProxyJump beside ProxyUseFdpass", "in", "ProxyUseFdpass yes\nProxyJump through"),
    Case("LogLevel QUIET, an unknown key", "out", "LogLevel QUIET", known="", code="host-key-unknown"),
    Case("a ControlPath of the user's own", "in", "ControlMaster auto\nControlPath DIR/own"),
    Case("forwardings, a terminal and an environment", "in", "LocalForward DIR/forward 127.0.0.1:1\nRequestTTY no\nSendEnv *\nForwardX11 yes"),
    Case("PermitLocalCommand", "in", "PermitLocalCommand yes\nLocalCommand echo noise >&2"),
    Case("an option that ssh does not know", "out", "NoSuchOption yes", code="configuration"),
]  # fmt: skip


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int
    silent: int

    def filled(self, text: str) -> str:
        """A case's text with its words replaced."""

        def public(name: str) -> str:
            return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

        name = f"[127.0.0.1]:{self.port}"
        values = {
            "HASHED": _hashed(name),
            "NAME": name,
            "SILENT": str(self.silent),
            "PORT": str(self.port),
            "USER": getpass.getuser(),
            "DIR": str(self.folder),
            "OTHER": public("other"),
            "RSA ": public("rsa"),
            "CA": public("ca"),
            "KEY": public("host"),
        }
        return filled(text, values)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """sshd on loopback with host keys of two kinds, one of them with a certificate; and a port that says nothing."""
    folder = tmp_path_factory.mktemp("sshd")
    user = getpass.getuser()

    def keygen(*words: str) -> None:
        subprocess.run(["ssh-keygen", "-q", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    for name in ("ca", "host", "other", "user", "signed", "apart", "expired"):
        keygen("-t", "ed25519", "-N", "", "-f", name)
    keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", "rsa")
    keygen("-s", "ca", "-I", "host", "-h", "-n", "gpu-farm", "host.pub")
    keygen("-s", "ca", "-I", "me", "-n", user, "signed.pub", "apart.pub")
    keygen("-s", "ca", "-I", "me", "-n", user, "-V", "20200101:20200102", "expired.pub")
    (folder / "apart-cert.pub").rename(folder / "apart.crt")
    for name in ("locked", "open", "rare", f"by-gpu-01-{user}"):
        (folder / name).write_bytes((folder / "user").read_bytes())
        (folder / name).chmod(0o600)
    keygen("-p", "-N", "secret", "-f", "locked")
    keygen("-p", "-N", "secret", "-Z", "3des-cbc", "-f", "rare")
    (folder / "public.pub").write_text((folder / "user.pub").read_text())
    (folder / "fido.pub").write_text(f"{FIDO} token\n")
    (folder / "junk").write_text("no key at all\n")
    (folder / "junk").chmod(0o600)
    (folder / "open").chmod(0o644)
    keygen("-k", "-f", "krl", "host.pub")
    (folder / "authorized").write_text(
        f"{(folder / 'user.pub').read_text()}cert-authority {(folder / 'ca.pub').read_text()}"
    )
    (folder / "proxy").write_text(
        "#!/usr/bin/env python3\nimport os, socket, sys, threading\n"
        "there = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n    while data := os.read(0, 65536):\n        there.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := there.recv(65536):\n    os.write(1, data)\n"
    )
    (folder / "proxy").chmod(0o755)
    (folder / "included").write_text(f"IdentityFile {folder}/user\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = free_port()
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\nHostKey {folder}/rsa\n"
            f"HostCertificate {folder}/host-cert.pub\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\n"
            "PermitRootLogin yes\nUsePAM no\nPidFile none\nPasswordAuthentication no\nMaxStartups 100\n"
            f"SetEnv HOME={folder}\n"  # what a developer's ~/.bashrc does is no part of a login here
        )
        served = Server(folder, port, silent.getsockname()[1])
        for name in ("known-gpu-01", "known-global"):
            (folder / name).write_text(served.filled("NAME KEY\n127.0.0.1 KEY\n"))
        words = [str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]
        usable(folder / "sshd_config")
        with (folder / "log").open("w") as log, subprocess.Popen(words, stderr=log) as process:
            until(lambda: "listening" in (folder / "log").read_text() or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            yield served
            process.terminate()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_three_get_in_or_none(case: Case, server: Server, tmp_path, monkeypatch):
    """Nobody's ~/.ssh is read: the configuration is one file, and so are the known keys."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "known").write_text(server.filled(f"{case.known}\n") if case.known else "")
    jumps = (
        "Host through again nowhere behind localhost\nHostName 127.0.0.1\nUser USER\nIdentityFile DIR/user\n"
        f"HostKeyAlias jump\nUserKnownHostsFile {tmp_path}/jumps\n"
        "Host nowhere\nPort 1\nHost behind\nProxyJump through\nHost through again behind\nPort PORT\n"
    )
    (tmp_path / "jumps").write_text(server.filled("jump KEY\n"))
    config = tmp_path / "config"
    agent = tmp_path / "agent"
    config.write_text(
        server.filled(
            f"{jumps}Host {case.address}\n{case.usual}\n{case.config}\n"
            f"Match all\nUserKnownHostsFile {tmp_path}/known\nGlobalKnownHostsFile none\n"
        ).replace("AGENT", str(agent))
    )
    timeout = 1 if "SILENT" in case.usual else 15
    with Agent(agent, [server.folder / name for name in case.agent], monkeypatch):
        assert by_hand(config, case.address) == case.outcome
        code = dialled(openssh.Dialer(config), case.address, timeout)
        assert code == ("in" if case.outcome == "in" else case.code)
        own = dialled(ssh.Dialer(config), case.address, timeout)
    if case.own:
        assert own == case.own
    else:
        assert (own == "in") == (case.outcome == "in"), own


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 255", 255), ("kill -9 $PPID; sleep 60", None)],
    ids=["a command's own", "the host's sshd was killed"],
)
@pytest.mark.parametrize("client", [openssh, ssh], ids=["openssh", "gpunode's"])
def test_only_a_lost_connection_has_no_exit_status(
    command: str, status: int | None, client: ModuleType, server: Server, tmp_path
):
    """ssh ends with 255 for both, and says nothing."""
    (tmp_path / "known").write_text(server.filled("NAME KEY\n"))
    config = tmp_path / "config"
    config.write_text(
        server.filled(
            f"Host gpu-01\n{BARE}IdentityFile DIR/user\nUserKnownHostsFile {tmp_path}/known\nGlobalKnownHostsFile none\n"
        )
    )
    dialer = client.Dialer(config)
    connection = dialer.connect(Host("node", Ssh("gpu-01", host_key_check="strict")))
    remote = connection.start(command, [])
    assert list(remote.lines()) == []
    assert remote.end()[0] == status
    connection.close()
    dialer.close()


def by_hand(config: Path, address: str) -> str:
    words = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    done = subprocess.run(
        [*words, address, "echo in"], capture_output=True, text=True, timeout=30, check=False
    )
    return "in" if done.stdout == "in\n" else "out"


def dialled(dialer: Dialer, address: str, timeout: float) -> str:
    """`in`, or the code of the refusal."""
    try:
        connection = dialer.connect(Host("node", Ssh(address, host_key_check="strict", timeout=timeout)))
        remote = connection.start("cat; echo trouble >&2; exit 3", [b"in\n"])
        assert list(remote.lines()) == [b"in\n"]
        assert remote.end() == (3, "trouble\n")
        connection.close()
    except Unreachable as error:
        told = error.hint
        return (
            error.problem.code
            if told and (error.problem.code != "unsupported" or "connection: openssh" in told)
            else "no hint"
        )
    finally:
        dialer.close()
    return "in"


def _hashed(name: str) -> str:
    import paramiko

    return paramiko.HostKeys.hash_host(name)
