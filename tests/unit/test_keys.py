"""`gpunode keys`: only NVIDIA's own keys are written, wherever they come from. No test talks to the internet."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import yaml
from typer.testing import CliRunner

from gpunode.cli import app
from gpunode.errors import GpunodeError, UsageError
from gpunode.packages import keys, repositories, signing
from gpunode.packages.keys import WrongKey, read_key
from tests.unit.test_dnf_systems import KEY

PRINT = signing.fingerprint(KEY)


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


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_server_that_sends_a_byte_now_and_then_is_left_after_the_deadline(monkeypatch, start: bytes):
    """Within the key, or within the header already."""

    class Dripping(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(start)
            with suppress(OSError):
                while True:
                    time.sleep(0.05)
                    self.request.sendall(b"x")

    monkeypatch.setattr(keys, "WHOLE_SECONDS", 0.5)
    with ThreadingTCPServer(("127.0.0.1", 0), Dripping) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(GpunodeError, match=r"cannot be fetched: no whole answer within 0.5 s"):
            read_key(
                repositories.signed_repositories("debian12", "amd64")[0],
                f"http://127.0.0.1:{server.server_address[1]}/k.pub",
            )
        assert time.monotonic() - began < 60
        server.shutdown()


@pytest.fixture
def ours(monkeypatch) -> None:
    """The tables have the fingerprint of the test's key for debian12."""
    table = {"debian12": PRINT, "*": PRINT}
    monkeypatch.setattr(repositories, "_keys", lambda *_: table)


@pytest.mark.usefixtures("ours")
def test_both_keys_are_written_with_the_repositories_to_paste(mirror: str, tmp_path, monkeypatch):
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


def test_another_key_is_refused_and_nothing_is_written(mirror: str, tmp_path, monkeypatch):
    """Also where only the second is wrong, and where the address is a mirror's."""
    monkeypatch.chdir(tmp_path)
    words = ["keys", "debian12", "--driver", f"{mirror}/k.pub", "--toolkit", f"{mirror}/k.pub"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, WrongKey)
    assert (error.exit_code, PRINT in error.message) == (4, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["{mirror}/k.pub", "brought"])
def test_a_forged_key_that_ends_in_the_same_eight_digits_is_refused(
    mirror: str, place: str, tmp_path, monkeypatch
):
    """Also where the user gives its fingerprint: the tables have another in whole."""
    monkeypatch.chdir(tmp_path)
    Path("brought").write_text(KEY)
    monkeypatch.setattr(repositories, "_keys", lambda *_: {"debian12": f"{0:032}{PRINT[-8:]}", "*": PRINT})
    words = ["keys", "debian12", "--driver", place.format(mirror=mirror), "--toolkit", "brought"]
    for more in ([], ["--fingerprint", PRINT]):
        error = CliRunner().invoke(app, [*words, *more]).exception
        assert isinstance(error, WrongKey)
        assert f"its fingerprint is {PRINT}, NVIDIA's is {0:032}{PRINT[-8:]}" in error.message
        assert ("the file holds another key" in error.hint) == (place == "brought")
        assert ("--fingerprint does not change that" in error.hint) == bool(more)
    assert [path.name for path in tmp_path.iterdir()] == ["brought"]


def test_what_is_fetched_and_a_fingerprint_that_does_not_count_are_named(mirror: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("brought").write_text(KEY)
    monkeypatch.setattr(repositories, "_keys", lambda *_: {"debian12": PRINT, "*": PRINT})
    words = ["keys", "debian12", "--driver", f"{mirror}/k.pub", "--toolkit", "brought"]
    done = CliRunner().invoke(app, [*words, "--fingerprint", f"{7:040}"])
    assert done.stderr.startswith(f"Fetching {mirror}/k.pub\n")
    assert "--fingerprint was not used: gpunode uses the whole" in done.stderr
    assert "--fingerprint was not used" not in CliRunner().invoke(app, words).stderr


@pytest.mark.parametrize("place", ["{mirror}/k.pub", "brought"])
def test_a_key_of_which_only_the_end_is_known_needs_the_whole_fingerprint(
    mirror: str, place: str, tmp_path, monkeypatch
):
    """From whoever answers there, as from a file: 32 bits are no fingerprint. It is shown, and may be given as gpg prints it."""
    monkeypatch.chdir(tmp_path)
    Path("brought").write_text(KEY)
    monkeypatch.setattr(repositories, "_keys", lambda *_: {"debian12": PRINT[-8:], "*": PRINT})
    words = ["keys", "debian12", "--driver", place.format(mirror=mirror), "--toolkit", "brought"]
    for more, message in (
        ([], f"has the fingerprint {PRINT}; gpunode knows only that"),
        (
            ["--fingerprint", f"{0:032}{PRINT[-8:]}"],
            f"its fingerprint is {PRINT}, NVIDIA's is {0:032}{PRINT[-8:]}",
        ),
    ):
        error = CliRunner().invoke(app, [*words, *more]).exception
        assert isinstance(error, WrongKey)
        assert message in error.message
        # Who has given another one is not told to give this.
        assert (f"--fingerprint {PRINT}" in error.hint) == (not more)
    short = CliRunner().invoke(app, [*words, "--fingerprint", PRINT[-8:]]).exception
    assert isinstance(short, UsageError)
    assert [path.name for path in tmp_path.iterdir()] == ["brought"]

    spaced = " ".join(PRINT[at : at + 4] for at in range(0, 40, 4)).lower()
    done = CliRunner().invoke(app, [*words, "--fingerprint", spaced])
    assert done.exit_code == 0, done.output
    assert Path("nvidia-driver.asc").read_text() == KEY
    read = yaml.safe_load("repositories:" + done.stderr.split("repositories:")[1])["repositories"]
    assert read["driver"]["fingerprint"] == PRINT
    rows = CliRunner().invoke(app, [*words, "--fingerprint", PRINT, "--json"]).stdout.splitlines()
    assert json.loads(rows[0])["fingerprint"] == PRINT


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            "{mirror}/gone",
            "cannot be fetched: Not Found\n  Check that address, or bring the key as a file: `--driver PLACE`",
        ),
        ("http://127.0.0.1:1/k.pub", "cannot be fetched: Connection refused"),
        ("gone", "gone cannot be read: No such file"),
        (__file__, "is no key: no armoured public key"),
    ],
)
def test_a_place_without_a_key_is_named(mirror: str, place: str, words: str):
    source = repositories.signed_repositories("debian12", "amd64")[0]
    with pytest.raises(GpunodeError, match=words):
        read_key(source, place.format(mirror=mirror))


def test_a_system_whose_keys_are_not_known_is_refused_with_those_that_are():
    for words, hint in (
        (["ubuntu1804"], "debian12, debian13"),
        (["Ubuntu-22.04"], "Did you mean ubuntu2204?"),
        (["debian12", "--arch", "x86_64"], "Choose one of amd64, arm64."),
        (["debian12", "--to", "no/where"], "Make it"),
    ):
        error = CliRunner().invoke(app, ["keys", *words]).exception
        assert isinstance(error, UsageError)
        assert hint in error.hint


@pytest.mark.parametrize(
    "system",
    ["debian12", "debian13", "ubuntu2404", "ubuntu2604", "rhel9", "rhel10", "amzn2023", "fedora43", "sles15"],
)
def test_nvidias_own_places_are_under_its_own_hosts(system: str):
    """By https, the driver's file named as its key's last digits."""
    driver, toolkit = repositories.signed_repositories(system, "amd64")
    assert driver.key_uri.startswith("https://developer.download.nvidia.com/compute/cuda/repos/")
    assert driver.key_uri.lower().endswith(f"/{driver.fingerprint[-8:].lower()}.pub")
    assert toolkit.key_uri == "https://nvidia.github.io/libnvidia-container/gpgkey"
    assert len(toolkit.fingerprint) == 40
    assert len(driver.fingerprint) == (8 if system in ("rhel10", "fedora43") else 40)
