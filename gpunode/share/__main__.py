"""`python -m gpunode.share`: the scheduler extender, until SIGTERM or SIGINT. Of several replicas one serves."""

import argparse
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpunode.contract.config import GPU_MEM
from gpunode.deviceplugin.cluster.apiserver import Follower
from gpunode.deviceplugin.cluster.incluster import InCluster
from gpunode.deviceplugin.logfmt import log_to_stderr

from .binding import Noting
from .lease import ANSWER, RENEW, Lease
from .ledger import Home, Ledger, kinds
from .protocol import Extender
from .server import Probes, Server
from .waiting import Waiting

log = logging.getLogger("gpunode.share")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LEASE = "gpunode-share"
LEAVING = 10 * ANSWER  # seconds for the binds that are under way: three requests each
STANDBY, STARTING = "another replica leads", "nodes and pods are not known yet"


class Replica:
    """Serves while it leads. `why_not`: why it does not serve."""

    def __init__(
        self, options: argparse.Namespace, tls: ssl.SSLContext, api: InCluster, quick: InCluster, node: str
    ) -> None:
        """`api`: to follow; `quick`, with deadlines of ANSWER: to bind; `node`: on which it runs."""
        self.why_not = STANDBY
        self.stop = threading.Event()
        self._options = options
        self._tls = tls
        self._api = api
        self._quick = quick
        self._home = Home(node)
        self._settled = True  # every bind that was begun has ended

    def run(self, lease: Lease) -> None:
        """Until `stop`."""
        tending = threading.Thread(target=self._tend, args=(lease,), name="lease", daemon=True)
        tending.start()
        Follower(self._api, self._home.kind, self.stop).start()
        while not self.stop.is_set():
            if lease.leads:
                self._lead(lease)
            self.stop.wait(RENEW / 4)
        tending.join(RENEW * 2)
        if self._settled:  # else the Lease runs out, once they have ended
            lease.release()

    def _tend(self, lease: Lease) -> None:
        """Keep the lease; let it expire while no client can reach this replica."""
        while not self.stop.is_set():
            if self._home.ready:
                lease.tend()
            self.stop.wait(RENEW)

    def _lead(self, lease: Lease) -> None:
        """Lead with a new ledger: its list is younger than the last binding of the leader before."""
        self.why_not = STARTING
        log.info("leading")
        with _follow(self._api, self._options.resource) as (ledger, followers):
            while (
                lease.leads
                and not self.stop.is_set()
                and not all(follower.listed.wait(0.1) for follower in followers)
            ):
                pass
            if lease.leads and not self.stop.is_set():
                self._serve(lease, ledger)
        self.why_not = STANDBY
        log.info("not leading any more")

    def _serve(self, lease: Lease, ledger: Ledger) -> None:
        over = threading.Event()  # of this term: a later one has another ledger
        extender = Extender(
            ledger,
            self._quick,
            packed=self._options.policy == "packed",
            leads=lambda: lease.leads and not over.is_set(),
        )
        with Server(("", self._options.port), extender, self._tls) as server:
            thread = threading.Thread(target=server.serve_forever, name="server", daemon=True)
            thread.start()
            for each in (extender.waiting, Noting(ledger, self._quick)):
                threading.Thread(
                    target=_tend, args=(each, over), name=type(each).__name__, daemon=True
                ).start()
            self.why_not = ""
            while lease.leads and not self.stop.wait(RENEW / 4):
                pass
            self.why_not = STANDBY
            over.set()
            self._settled = server.leave(LEAVING)


def _tend(waiting: Waiting | Noting, over: threading.Event) -> None:
    while not over.wait(RENEW):
        waiting.tend()


@contextmanager
def _follow(api: InCluster, resource: str) -> Iterator[tuple[Ledger, list[Follower]]]:
    stop, ledger = threading.Event(), Ledger(resource)
    followers = [Follower(api, kind, stop) for kind in kinds(ledger)]
    for follower in followers:
        follower.start()
    try:
        yield ledger, followers
    finally:
        stop.set()


def trust(folder: Path) -> ssl.SSLContext:
    """TLS with tls.crt and tls.key, for clients with a certificate of ca.crt. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT, 1 if a file or a port cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m gpunode.share", description=__doc__)
    parser.add_argument("--resource", default=GPU_MEM, help="that stands for memory (default: %(default)s)")
    parser.add_argument("--policy", default="packed", choices=("packed", "distributed"))
    parser.add_argument("--port", type=int, default=9443, help="for the scheduler (default: %(default)s)")
    parser.add_argument("--probe-port", type=int, default=9444, help="for the kubelet (default: %(default)s)")
    parser.add_argument("--tls", type=Path, required=True, help="folder with ca.crt, tls.crt and tls.key")
    options = parser.parse_args()
    log_to_stderr()
    log.setLevel(logging.INFO)
    api = InCluster(os.environ, ACCOUNT)
    quick = InCluster(os.environ, ACCOUNT, ANSWER)
    lease = Lease(quick, os.environ["POD_NAMESPACE"], LEASE, os.environ["POD_NAME"])
    try:
        replica = Replica(options, trust(options.tls), api, quick, os.environ["NODE_NAME"])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: replica.stop.set())
        with Probes(("", options.probe_port), lambda: replica.why_not) as probes:
            threading.Thread(target=probes.serve_forever, name="probes", daemon=True).start()
            replica.run(lease)
    except OSError as error:
        log.critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
