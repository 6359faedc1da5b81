"""The process behind a demo: it runs the cluster and the hosts' SSH servers until it is ended.

`python -m gpunode.sim.server FOLDER`, with the folder's lock inherited. It prints `ready`. When its standard input ends,
as when its parent process ends, it ends, too, unless it has read a line `keep`. At its end it removes the folder and
leaves no process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from gpunode.sim import cleanup, folder
from gpunode.sim.cluster import serve as serve_cluster
from gpunode.sim.host import sshd
from gpunode.sim.host.state import State


def main(demo: Path) -> int:
    """Serve the hosts in the folder until the end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    states = [State(path) for path in sorted((demo / "hosts").iterdir())]
    try:
        key, text = sshd.new_key()
        sshd.write_key(demo / "id_ed25519", text)
        server = sshd.Server(states, key)
        (demo / "known_hosts").write_text(server.known_hosts(), encoding="utf-8")
        machines = [state.machine() for state in states]
        cluster = serve_cluster(demo, machines, pullable=folder.pullable(demo))
        ports = {state.folder.name: server.port(state.folder.name) for state in states}
        folder.write(demo, ports)
        (demo / "demo.json").write_text(
            json.dumps({"pid": os.getpid(), "ports": ports, "metrics": cluster.metrics}), encoding="utf-8"
        )
        print("ready", flush=True)
        threading.Thread(target=_listen, args=(ended,), daemon=True).start()
        ended.wait()
        cluster.close()
        server.close()
    finally:
        cleanup.clear(demo)
    return 0


def _listen(ended: threading.Event) -> None:
    if sys.stdin.readline().strip() != "keep":
        ended.set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
