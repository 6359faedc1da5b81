"""A simulated cluster with the real plugin on its hosts."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster.api import Api, connect
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.capacity import link as capacity
from gpunode.links.capacity import overview
from gpunode.links.node import labels
from gpunode.links.plugin import Spec, published
from gpunode.links.pod import vectoradd
from gpunode.links.pod.requests import Target
from gpunode.links.pod.run_pod import PodRun
from gpunode.links.pod.vectoradd import NodeResult
from gpunode.model import Cluster as Access
from gpunode.model import PluginConfig, PluginImage
from gpunode.sim import controllers
from gpunode.sim.cluster import Cluster
from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from gpunode.sim.host.state import State
from gpunode.sim.node import pods
from gpunode.sim.process import demos_folder

from .clusters import IMAGE, ready, until

NS = "gpunode"
OLD, NEW = kinds.old_host("old"), kinds.new_host("new", count=2)
CLASS = {"gpunode.dev/gpu": "true", "gpunode.dev/runtime": "class"}


class Fleet:
    """A cluster with the plugin on its hosts, and the ways to look at it."""

    def __init__(self, demo: Path, *machines: Machine) -> None:
        self.demo = demo
        self.states = {machine.name: ready(demo, machine) for machine in machines}
        self.cluster: Cluster = Cluster(demo, list(machines))
        self.api: Api = connect(Access(kubeconfig=str(self.cluster.kubeconfig)))

    def deploy(self, config: PluginConfig | None = None) -> plugin.Rollout:
        count = len(self.states)
        until(lambda: sum(node.ready for node in nodes.fetch(self.api)) == count)
        for node in nodes.fetch(self.api):
            wish = CLASS if node.name == NEW.name else {"gpunode.dev/gpu": "true"}
            labels.write(self.api, node, wish)
        return plugin.deploy(
            self.api, Spec(NS, PluginImage(IMAGE), config), seconds=60, notify=lambda _: None
        )

    def wait(self, machine: Machine, offered: capacity.Expected) -> nodes.Node:
        return capacity.wait_allocatable(
            self.api, machine.name, offered, namespace=NS, seconds=60, notify=lambda _: None
        )

    def run(
        self,
        *machines: Machine,
        image: str = IMAGE,
        seconds: float = 120,
        config: PluginConfig | None = None,
    ) -> tuple[NodeResult, ...]:
        targets = [Target(machine.name, tuple(gpu.uuid for gpu in machine.gpus)) for machine in machines]
        return vectoradd.run(self.api, targets, PodRun(NS, PluginImage(image), seconds, config=config))

    def row(self, machine: Machine) -> overview.Row:
        return next(row for row in overview.status(self.api, NS) if row.node == machine.name)

    def node(self, machine: Machine) -> nodes.Node:
        return next(node for node in nodes.fetch(self.api) if node.name == machine.name)

    def log(self, machine: Machine, *, previous: bool = False) -> str:
        row = self.row(machine)
        return self.api.log(NS, row.pod, published.CONTAINER, previous=previous)

    def address(self, machine: Machine) -> str:
        pod = self.api.get("Pod", self.row(machine).pod, NS) or {}
        return str(pod["status"]["podIP"])

    def restart(self, machine: Machine, unit: str, **changes: Any) -> State:
        """As systemd does it: the unit has a new beginning."""
        state = self.states[machine.name]
        with state.change() as now:
            now.units[unit].since = time.time()
            for name, value in changes.items():
                setattr(now, name, value)
        return state


@contextlib.contextmanager
def fleet(*machines: Machine) -> Iterator[Fleet]:
    """It, with less patience than a real one."""
    demo = Path(tempfile.mkdtemp(prefix="gpunode-test-", dir=demos_folder()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controllers, "GRACE", 1.5)
        patch.setattr(pods, "BACK_OFF", 1.0)
        made = Fleet(demo, *machines)
        yield made
        made.api.close()
        made.cluster.close()
    shutil.rmtree(demo)
