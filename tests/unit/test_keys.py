"""`gpunode keys`: only NVIDIA's own keys are written, wherever they come from. No test talks to the internet."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gpunode import compat
from gpunode.cli import app
from gpunode.compat import repositories
from gpunode.errors import GpunodeError, UsageError
from gpunode.keys import WrongKey, key
from gpunode.packages.dnf import openpgp
from tests.unit.test_dnf_systems import KEY

PRINT = openpgp.fingerprint(KEY)


@pytest.fixture
def mirror() -> Iterator[str]:
    """The address of a server whose every page ending in .pub is the key."""

    class Mirror(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path.endswith(".pub") else 404)
            self.end_headers()
            self.wfile.write(KEY.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables have the fingerprint of the test's key for debian12."""
    table = {"debian12": PRINT, "*": PRINT}
    monkeypatch.setattr(repositories, "_keys", lambda *_: table)


@pytest.mark.usefixtures("ours")
def test_both_keys_are_written_with_the_repositories_to_paste(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a mirror, and from a file."""
    monkeypatch.chdir(tmp_path)
    Path("brought").write_text(KEY)
    words = ["keys", "debian12", "--driver", f"{mirror}/k.pub", "--toolkit", "brought"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert Path("nvidia-driver.asc").read_text() == Path("nvidia-toolkit.asc").read_text() == KEY
    read = yaml.safe_load("repositories:" + done.stderr.split("repositories:")[1])["repositories"]
    assert read["driver"] == {
        "uri": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
        "key": "nvidia-driver.asc",
    }
    assert read["toolkit"]["uri"].endswith("/stable/deb/amd64")
    rows = [json.loads(line) for line in CliRunner().invoke(app, [*words, "--json"]).stdout.splitlines()]
    assert [row["purpose"] for row in rows if row["type"] == "key"] == ["driver", "toolkit"]


def test_another_key_is_refused_and_nothing_is_written(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the second is wrong, and where the address is a mirror's."""
    monkeypatch.chdir(tmp_path)
    words = ["keys", "debian12", "--driver", f"{mirror}/k.pub", "--toolkit", f"{mirror}/k.pub"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, WrongKey)
    assert (error.exit_code, PRINT in error.message) == (4, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{mirror}/gone", "cannot be fetched: Not Found"),
        ("http://127.0.0.1:1/k.pub", "cannot be fetched"),
        ("gone", "gone cannot be read: No such file"),
        (__file__, "is no key: no armoured public key"),
    ],
)
def test_a_place_without_a_key_is_named(mirror: str, place: str, words: str) -> None:
    source = compat.signed("debian12", "amd64")[0]
    with pytest.raises(GpunodeError, match=words):
        key(source, place.format(mirror=mirror))


def test_a_system_whose_keys_are_not_known_is_refused_with_those_that_are() -> None:
    for words, hint in (
        (["ubuntu2604"], "debian12, debian13"),
        (["Ubuntu-22.04"], "Did you mean ubuntu2204?"),
        (["debian12", "--arch", "x86_64"], "Choose one of amd64, arm64."),
        (["debian12", "--to", "no/where"], "Make it"),
    ):
        error = CliRunner().invoke(app, ["keys", *words]).exception
        assert isinstance(error, UsageError)
        assert hint in error.hint


@pytest.mark.parametrize(
    "system", ["debian12", "debian13", "ubuntu2404", "rhel9", "rhel10", "amzn2023", "fedora43", "sles15"]
)
def test_nvidias_own_places_are_under_its_own_hosts(system: str) -> None:
    """By https, the driver's file named as its key's last digits."""
    driver, toolkit = compat.signed(system, "amd64")
    assert driver.key_uri.startswith("https://developer.download.nvidia.com/compute/cuda/repos/")
    assert driver.key_uri.lower().endswith(f"/{driver.fingerprint[-8:].lower()}.pub")
    assert toolkit.key_uri == "https://nvidia.github.io/libnvidia-container/gpgkey"
    assert len(toolkit.fingerprint) == 40
