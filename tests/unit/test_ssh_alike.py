"""ssh's configuration is asked for once where it cannot tell hosts apart, and every host has the answer of its own."""

import shutil
from pathlib import Path

import pytest

from gpunode.host import ssh_options
from gpunode.host.ssh_options import Configuration
from gpunode.model import Ssh

SSH = shutil.which("ssh")
pytestmark = pytest.mark.skipif(SSH is None, reason="no ssh")
ADDRESSES = ("gpu-1", "gpu-2", "10.0.0.7", "GPU-3", "::1")
EXTRA = "Port 2222\nUser ops\n"
ALIKE = {
    "nothing": "",
    "options for all": EXTRA,
    "a block for all": f"Host *\n{EXTRA}  HostKeyAlgorithms ssh-ed25519\n",
    "a comment": f"# Host gpu-2, 100%\nhost=*\n{EXTRA}",
    "lines of Windows": f"# as it was\r\n\r\nHost *\r\n{EXTRA}".replace("\nU", "\r\nU"),
    "an include": f"Include {{folder}}/alike\n{EXTRA}",
}
APART = {
    "a block for some": f"Host gpu-2\n{EXTRA}",
    "a quoted keyword": f'"Host" gpu-2\n{EXTRA}',
    "a carriage return": f"\rHost gpu-2\n{EXTRA}",
    "an equals sign": f"=Host gpu-2\n{EXTRA}",
    "a pattern": f"Host * !gpu-2\n{EXTRA}",
    "a match": f"Match host gpu-2\n{EXTRA}",
    "a match by command": f'Match exec "test %h = gpu-2"\n{EXTRA}',
    "a name": "HostName real.example",
    "a name of its own": "Hostname %h.example.org",
    "a token": "IdentityFile ~/.ssh/%h",
    "canonical names": "CanonicalizeHostname yes\nCanonicalDomains example.org",
    "an include": "Include {folder}/apart",
}


def asked(monkeypatch, tmp_path, text: str) -> int:
    """How often ssh is run for two hosts with names that it takes as they are; every answer is compared with the host's own."""
    (tmp_path / "alike").write_text(EXTRA)
    (tmp_path / "apart").write_text(f"Host gpu-2\n{EXTRA}")
    file = tmp_path / "config"
    file.write_text(text.replace("{folder}", str(tmp_path)))
    assert SSH
    shared = Configuration(SSH, file)
    runs: list[str] = []
    resolve = ssh_options._resolve

    def count(program: str, ssh: Ssh, file: Path | None) -> tuple[ssh_options.Options, list[Path]]:
        runs.append(ssh.address)
        return resolve(program, ssh, file)

    for address in ADDRESSES:
        for ssh in (Ssh(address), Ssh(address, user="root", port=22)):
            own = Configuration(SSH, file).options(ssh)
            with monkeypatch.context() as patch:
                patch.setattr(ssh_options, "_resolve", count)
                assert shared.options(ssh) == own
    return sum(address in ("gpu-1", "gpu-2") for address in runs)


@pytest.mark.parametrize("name", ALIKE)
def test_hosts_that_ssh_treats_alike_are_asked_for_once(monkeypatch, tmp_path, name: str):
    """Once for each user and port of the inventory."""
    assert asked(monkeypatch, tmp_path, ALIKE[name]) == 2


@pytest.mark.parametrize("name", APART)
def test_hosts_that_ssh_may_tell_apart_are_asked_for_one_by_one(monkeypatch, tmp_path, name: str):
    assert asked(monkeypatch, tmp_path, APART[name]) == 4
