"""NVIDIA's own installer: a shell script in its place, which takes its options and leaves what it leaves."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpunode.model import InstallDriver, UninstallDriver, WriteFile
from tests import tables
from tests.agent.conftest import Host, wait_until
from tests.agent.guarded import kill

VERSION = "580.178.04"
DEPS = "/lib/modules/6.1.0-13-amd64/modules.dep"
# What the real one leaves: its record, its uninstaller, a module that depmod knows.
INSTALLS = f"""\
#!/bin/sh
echo "run $*" >> "$GPUNODE_ROOT/state/calls"
echo "in $TMPDIR" >> "$GPUNODE_ROOT/state/calls"
mkdir -p "$GPUNODE_ROOT/var/lib/nvidia" "$GPUNODE_ROOT/usr/bin" "$GPUNODE_ROOT/lib/modules/6.1.0-13-amd64"
printf '1.0-58017804 ({VERSION})\\nNVIDIA Accelerated Graphics Driver\\n' > "$GPUNODE_ROOT/var/lib/nvidia/log"
touch "$GPUNODE_ROOT/usr/bin/nvidia-uninstall"
echo "updates/dkms/nvidia.ko:" > "$GPUNODE_ROOT{DEPS}"
touch "$TMPDIR/left"
"""
UNINSTALLS = 'rm -r "$GPUNODE_ROOT/var/lib/nvidia" "$GPUNODE_ROOT/usr/bin/nvidia-uninstall"'


def fails(log: str, status: int = 1) -> str:
    """An installer that writes this log and ends."""
    return f'mkdir -p "$GPUNODE_ROOT/var/log"\ncat > "$GPUNODE_ROOT/var/log/nvidia-installer.log" <<\'E\'\n{log}\nE\nexit {status}\n'


def change(folder: Path, script: str) -> InstallDriver:
    """A file of this machine."""
    path = folder / "NVIDIA.run"
    path.write_text(script)
    digest = hashlib.sha256(script.encode()).hexdigest()
    return InstallDriver(VERSION, digest, "open", "why", archive=str(path))


@pytest.fixture
def mirror(tmp_path) -> Iterator[str]:
    """The address of a server of the folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_driver_is_installed_by_the_file_that_was_sent(host: Host, tmp_path):
    """With dkms where it is there; the file and what it unpacked are gone afterwards, and the probe knows the driver."""
    host.program("dkms", "")
    install = change(tmp_path, INSTALLS)
    assert host.probe()["installed_run"] is None
    messages = host.apply(install, payload=Path(install.archive or "").read_bytes())
    assert messages[-1]["ok"]
    assert messages[-2]["detail"] == {"built": True}
    ran, where = [call for call in host.calls() if call.startswith(("run ", "in "))]
    assert ran == "run --silent --no-x-check --dkms --kernel-module-type=open"
    assert where.endswith("/var/lib/gpunode/runs/run1/unpacked")
    assert not list(host.path("/var/lib/gpunode/runs").rglob("unpacked"))
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))
    assert host.probe()["installed_run"] == {"version": VERSION, "built": True}


def test_a_driver_is_installed_from_a_mirror(host: Host, tmp_path, mirror: str):
    """The host fetches it; without dkms it is not told to use it."""
    install = change(tmp_path, INSTALLS)
    assert host.apply(replace(install, archive=None, url=f"{mirror}/NVIDIA.run"))[-1]["ok"]
    assert host.calls()[0] == "run --silent --no-x-check --kernel-module-type=open"
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))


def test_a_mirror_that_has_another_file_is_named_before_it_runs(host: Host, tmp_path, mirror: str):
    """Nothing of it is run, and nothing is left."""
    install = replace(change(tmp_path, INSTALLS), archive=None, url=f"{mirror}/NVIDIA.run", sha256="0" * 64)
    failed = host.fail(install)
    assert failed["code"] == "checksum-mismatch"
    assert hashlib.sha256(INSTALLS.encode()).hexdigest() in failed["error"]
    assert host.calls() == []
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))


def test_a_driver_stays_while_the_file_that_replaces_it_is_another(host: Host, tmp_path, mirror: str):
    """It is fetched and checked before the first change, and so before the old driver is uninstalled."""
    host.write("/var/lib/nvidia/log", "1.0-57012406 (570.124.06)\n")
    host.write("/usr/bin/nvidia-uninstall", "")
    host.program("nvidia-uninstall", UNINSTALLS)
    install = replace(change(tmp_path, INSTALLS), archive=None, url=f"{mirror}/NVIDIA.run", sha256="0" * 64)
    *_, failed, end = host.apply(UninstallDriver("570.124.06", "why"), install)
    assert not end["ok"]
    assert (failed["n"], failed["code"]) == (1, "checksum-mismatch")
    assert host.probe()["installed_run"] == {"version": "570.124.06", "built": False}


def test_a_mirror_without_the_file_is_named(host: Host, mirror: str):
    """404, and a server that is not there."""
    install_driver = InstallDriver(VERSION, "0" * 64, "open", "why", url=f"{mirror}/none.run")
    assert "404" in host.fail(install_driver)["error"]
    failed = host.fail(replace(install_driver, url="http://127.0.0.1:9/none.run"))
    assert failed["code"] == "download-failed"
    assert "http://127.0.0.1:9/none.run" in failed["error"]


@tables.rows("installer-options")
def test_an_installer_gets_the_options_that_its_version_has(
    host: Host, tmp_path, version: str, flavour: str, beside: bool, words: str
):
    """An unknown option makes it fail."""
    install = change(tmp_path, INSTALLS.replace(VERSION, version))
    install = replace(install, version=version, flavour=flavour, beside=beside)
    assert host.apply(install, payload=Path(install.archive or "").read_bytes())[-1]["ok"]
    assert host.calls()[0] == f"run --silent --no-x-check {words}".strip()


@tables.rows("nvidia-installer-logs")
def test_what_failed_is_read_from_the_log(host: Host, tmp_path, code: str, log: str, status: int):
    """Its status is 1 whatever it was, and 0 where it cancels."""
    install = change(tmp_path, fails(log, status))
    failed = host.fail(install, payload=Path(install.archive or "").read_bytes())
    assert failed["code"] == code
    assert failed["detail"][-1] == "all of it: /var/log/nvidia-installer.log"
    assert log in failed["detail"]


def test_an_installer_that_hangs_is_ended(host: Host, tmp_path):
    """As a package manager is."""
    install = change(tmp_path, "sleep 600")
    *_, failed, end = host.ask(host.job(install, apt_silence=0.3), Path(install.archive or "").read_bytes())
    assert not end["ok"]
    assert failed["code"] == "packages-hang"
    assert failed["error"].startswith("NVIDIA's installer printed nothing")
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))


def test_what_a_killed_installer_has_unpacked_goes_with_the_next_apply(host: Host, tmp_path):
    waits = 'touch "$GPUNODE_ROOT/state/begun"\nuntil [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    install = change(tmp_path, waits)
    host.start(host.job(install), (tmp_path / "NVIDIA.run").read_bytes())
    wait_until(host.path("/state/begun").exists)
    kill(host)
    assert host.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert not list(host.path("/var/lib/gpunode/runs").rglob("unpacked"))


def test_an_installer_that_writes_its_log_does_not_hang(host: Host, tmp_path):
    """It prints nothing while it builds, for longer than the limit here."""
    builds = 'for n in 1 2 3 4 5 6 7 8 9; do echo "-> CC $n" >> "$GPUNODE_ROOT/var/log/nvidia-installer.log"; sleep 0.5; done'
    host.write("/var/log/nvidia-installer.log", "")
    install = change(tmp_path, INSTALLS + builds)
    *_, end = host.ask(host.job(install, apt_silence=3), Path(install.archive or "").read_bytes())
    assert end["ok"]


def test_a_driver_is_uninstalled(host: Host):
    """By what it brought for that."""
    host.write("/var/lib/nvidia/log", f"1.0-58017804 ({VERSION})\n")
    host.write("/usr/bin/nvidia-uninstall", "")
    assert host.probe()["installed_run"] == {"version": VERSION, "built": False}
    host.program("nvidia-uninstall", UNINSTALLS)
    assert host.apply(UninstallDriver(VERSION, "why"))[-1]["ok"]
    assert host.calls()[-1] == "nvidia-uninstall --silent"
    assert host.probe()["installed_run"] is None


def test_an_uninstaller_that_leaves_the_driver_has_failed(host: Host):
    """It ends with 0 then, too."""
    host.write("/var/lib/nvidia/log", f"1.0-58017804 ({VERSION})\n")
    host.write("/usr/bin/nvidia-uninstall", "")
    host.write("/var/log/nvidia-uninstall.log", "ERROR: Uninstallation failed.\n")
    host.program("nvidia-uninstall", "")
    failed = host.fail(UninstallDriver(VERSION, "why"))
    assert failed["code"] == "installer-failed"
    assert failed["error"] == f"NVIDIA's installer did not uninstall driver {VERSION}: Uninstallation failed."
