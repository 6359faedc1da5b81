"""The process behind a demo: it runs the cluster and the hosts' SSH servers until it is ended.

`python -m gpunode.sim.server FOLDER`, with the folder's lock inherited. It prints `ready`. When its standard input ends,
as when its parent process ends, it ends, too, unless it has read a line `keep`. SIGUSR1 has it serve the hosts that were
added to the folder and can be read. At its end it removes the folder and leaves no process.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from gpunode.sim import folder, process
from gpunode.sim.cluster import Cluster
from gpunode.sim.host import sshd
from gpunode.sim.host.state import State

Orders: TypeAlias = "queue.SimpleQueue[str]"
END, ADD = "end", "add"


def main(demo: Path) -> int:
    """Serve the hosts in the folder until the end."""
    orders: Orders = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: orders.put(END))
    signal.signal(signal.SIGUSR1, lambda *_: orders.put(ADD))
    states = [State(path) for path in sorted((demo / "hosts").iterdir())]
    try:
        key, text = sshd.new_key()
        sshd.write_key(demo / "id_ed25519", text)
        server = sshd.Server(states, key, (demo / process.CONNECTED).open("wb"))
        (demo / "known_hosts").write_text(server.known_hosts(), encoding="utf-8")
        machines = [state.machine() for state in states]
        cluster = Cluster(demo, machines, pullable=folder.pullable_images(demo))
        ports = {state.folder.name: server.port(state.folder.name) for state in states}
        folder.write_files(demo, ports)
        _publish(demo, ports, cluster.metrics)
        print("ready", flush=True)
        threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
        while orders.get() == ADD:
            for name in sorted({path.name for path in (demo / "hosts").iterdir()} - ports.keys()):
                state = State(demo / "hosts" / name)
                try:
                    state.machine(), state.now()
                    server.add(state)
                    cluster.add(name)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    # Half written: tried at the next ADD
                    print(f"{name} cannot be served yet: {error!r}", file=sys.stderr, flush=True)
                    continue
                ports[name] = server.port(name)
            (demo / "known_hosts").write_text(server.known_hosts(), encoding="utf-8")
            _publish(demo, ports, cluster.metrics)
        cluster.close()
        server.close()
    finally:
        process.remove(demo)
    return 0


def _publish(demo: Path, ports: Mapping[str, int], metrics: Mapping[str, str]) -> None:
    """Write what commands read of a demo that runs, at once."""
    new = demo / "demo.json.new"
    new.write_text(json.dumps({"pid": os.getpid(), "ports": ports, "metrics": metrics}), encoding="utf-8")
    new.replace(demo / "demo.json")


def _read_orders(orders: Orders) -> None:
    if sys.stdin.readline().strip() != "keep":
        orders.put(END)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
