"""Results of benchmarks: what is kept, and what a comparison names."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from bench import results
from bench.compare import compare
from bench.peers import delay
from bench.peers.table import summary
from bench.results import Results, Row


def measured(**rows: list[float]) -> Results:
    """Rows by "who_what", in milliseconds."""
    made = [Row(key.partition("_")[0], key.partition("_")[2], "ms", rounds) for key, rounds in rows.items()]
    return Results("abc", "2026-01-01", [0.1], 2, {}, made)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ([1.0, 9.0, 1.0], [1.05, 1.05], ""),
        ([1.0], [1.1], "start: gpunode: 1 -> 1.1 ms"),
        ([1.0], [0.5], ""),
        ([0.0], [0.0], ""),
    ],
)
def test_a_median_that_is_a_tenth_worse_is_named(old: list[float], new: list[float], named: str):
    assert "".join(compare(measured(gpunode_start=old), measured(gpunode_start=new))) == named


def test_a_slow_network_delays_each_byte_by_half_a_round_trip_and_no_byte_waits_for_others():
    """A TCP handshake, a question and its answer; then a megabyte there and back in little more than one round trip."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as free:
        port, door = server.getsockname()[1], free.getsockname()[1]
        free.close()

        def echo() -> None:
            client, _ = server.accept()
            with client, contextlib.suppress(ConnectionResetError):  # in the end
                while data := client.recv(65536):
                    client.sendall(data)

        threading.Thread(target=echo, daemon=True).start()
        words = [sys.executable, delay.__file__, json.dumps([["127.0.0.1"], port, [[door, 0.2]]])]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as network:
            assert network.stdout.readline() == b"ready\n"
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", door)) as client:
                client.sendall(b"?")
                assert client.recv(1) == b"?"
                first = time.monotonic() - began
                text = b"x" * 1_000_000
                threading.Thread(target=client.sendall, args=(text,), daemon=True).start()
                got = 0
                while got < len(text):
                    got += len(client.recv(65536))
                whole = time.monotonic() - began - first
            network.terminate()
    assert first >= 0.4
    assert 0.2 <= whole < 3.0  # 16 pieces of 64 KiB, one after the other, would take 3.2


def test_the_figures_of_the_documents_are_those_that_were_measured():
    """Each kept run that docs/performance.md names: its commit, its load, and its tables."""
    text = (results.FOLDER.parents[1] / "docs/performance.md").read_text()
    named = re.findall(r"bench/results/(peers[\w-]*\.json)", text)
    assert len(named) == 3
    for name in named:
        run = results.load(results.FOLDER / name)
        load = f"load {min(run.load):.1f} to {max(run.load):.1f}"
        assert f"commit {run.commit.removesuffix('-dirty')}, {run.date}, {load}" in " ".join(text.split())
        for line in summary(run.rows, "wall"):
            assert line in text
