"""A simulated cluster for a folder of simulated hosts: its API, its controllers, and a kubelet for every host."""

import base64
import json
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from gpunode.sim import controllers
from gpunode.sim.apiserver import tls
from gpunode.sim.apiserver.api import ApiServer, Log
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, Store, status_error
from gpunode.sim.host.machine import Machine
from gpunode.sim.host.state import State
from gpunode.sim.node import container
from gpunode.sim.node.container import Loopback, endpoints
from gpunode.sim.node.kubelet import Kubelet
from gpunode.sim.scheduler import schedule


class Cluster:
    """A cluster of the hosts in `folder`/hosts, in threads and child processes (the pods) of this process, until it is closed.

    `pullable` are images in the registry; others must be loaded onto a host before a pod can use them. Its kubeconfig is
    `folder`/kubeconfig; beside it there is `kubeconfig-nobody`, of a user without rights.
    """

    def __init__(self, folder: Path, machines: Sequence[Machine], *, pullable: Collection[str] = ()) -> None:
        self.store = Store()
        self._lock = threading.Lock()
        for name in controllers.SYSTEM:
            Resources(self.store, "Namespace").create({"metadata": {"name": name}}, {})
        users = {secrets.token_hex(16): "admin", secrets.token_hex(16): "nobody"}
        secure, certificate = tls.server(folder / "api.pem")
        self._api = ApiServer(
            self.store, users, self._log, lambda name: self._kubelets[name].configz(), secure
        )
        self._users, self._accounts, self._certificate = users, folder / "accounts", certificate
        for token, user in users.items():
            path = folder / ("kubeconfig" if user == "admin" else f"kubeconfig-{user}")
            _kubeconfig(path, self._api.url, certificate, user, token)
        self.kubeconfig = folder / "kubeconfig"
        store, health = self.store, controllers.NodeHealth(self.store)
        self._folder, self._health, self._pullable, self._loopback = folder, health, pullable, Loopback()
        loops: tuple[tuple[Callable[[Store], None], Collection[str]], ...] = (
            (schedule, {"Pod", "Node"}),
            (controllers.run_daemonsets, {"DaemonSet", "Node", "Pod"}),
            (controllers.run_deployments, {"Deployment"}),
            (controllers.run_jobs, {"Job", "Pod"}),
            (controllers.collect_garbage, KINDS.keys() - {"Event"}),
        )
        self._loops = [
            controllers.Loop(store, run.__name__, _is_of(kinds), partial(run, store), 1.0)
            for run, kinds in loops
        ]
        self._loops.append(controllers.Loop(store, "nodes", _is_of({"Node"}), health.check, 0.5))
        self._forks = container.fork_server()
        self.metrics: dict[str, str] = {}  # host -> URL of its device plugin's metrics, if it serves any
        self._kubelets: dict[str, Kubelet] = {}
        for machine in machines:
            self.add(machine.name)
        for loop in self._loops:
            loop.start()

    def add(self, name: str) -> None:
        """Run a kubelet for one more host of the folder."""
        state = State(self._folder / "hosts" / name)
        place = endpoints(self._folder, state, len(self._kubelets), self._loopback)
        self.metrics[name] = place.metrics
        self._kubelets[name] = Kubelet(
            self.store, state, place, self._health, self._pullable, self._account, self._forks
        )

    def close(self) -> None:
        """End everything: kubelets with the processes of their pods, controllers, the API."""
        for loop in self._loops:
            loop.close()
        for kubelet in self._kubelets.values():
            kubelet.close()
        self._forks.close()
        self._api.close()

    def _account(self, namespace: str, name: str) -> dict[str, str]:
        """A service account's access to the API: its token and the API's CA in a folder, as a kubelet mounts them."""
        folder, user = self._accounts / namespace / name, f"system:serviceaccount:{namespace}:{name}"
        with self._lock:  # the pods of a DaemonSet start on all hosts at the same time
            if user not in self._users.values():
                token = secrets.token_hex(16)
                folder.mkdir(parents=True, mode=0o700)
                (folder / "ca.crt").write_text(self._certificate, encoding="utf-8")
                (folder / "token").write_text(token, encoding="utf-8")
                self._users[token] = user
        host, _, port = self._api.url.removeprefix("https://").partition(":")
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "SERVICE_ACCOUNT_DIRECTORY": str(folder),
        }

    def _log(self, pod: Object, container: str, previous: bool) -> Log:
        name = pod["spec"].get("nodeName", "")
        if name not in self._kubelets:
            raise status_error(
                400, "BadRequest", f"pod {pod['metadata']['name']} does not have a host assigned"
            )
        return self._kubelets[name].log(pod, container, previous=previous)


def _is_of(kinds: Collection[str]) -> Callable[[Object], bool]:
    return lambda item: item["kind"] in kinds


def _kubeconfig(path: Path, url: str, certificate: str, user: str, token: str) -> None:
    trust = base64.b64encode(certificate.encode()).decode()
    cluster = {"server": url, "certificate-authority-data": trust}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "simulated", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": user}}],
        "current-context": "simulated",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
