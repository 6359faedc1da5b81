"""A fleet that carries jobs is changed by an operator whose process is killed again and again, and watched from outside."""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpunode.engine import history
from gpunode.sim import faults
from gpunode.sim.host import kinds
from gpunode.sim.host.state import DOWN
from gpunode.sim.process import Demo

from . import operators
from .clusters import Client, until

JOBS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"


@dataclass(frozen=True)
class Figures:
    """What became of a storm. `disturbed`: the most nodes at once that were cordoned, not Ready, or rebooting."""

    seed: int
    hosts: int
    kills: int
    resumes: int
    bound: int
    disturbed: int
    jobs: int
    lost: tuple[str, ...]  # jobs of which a container was killed
    rebooted: int
    seconds: float


def storm(
    hosts: int,
    kills: int,
    bound: int,
    seed: int,
    *,
    seconds: tuple[int, int] = (2, 10),
    notify: Callable[[str], None] = lambda _: None,
) -> Figures:
    """Two of three hosts have three jobs, one after the other, of so many seconds each, and need a restart of docker; the
    others have one job and need a reboot. Raises AssertionError where a run does not end as it should."""
    dice, begun = random.Random(seed), time.monotonic()
    made = [
        (kinds.new_host if number % 3 == 0 else kinds.old_host)(f"gpu-{number:03}", count=1)
        for number in range(1, hosts + 1)
    ]
    with Demo(made) as demo:
        assert operators.run(demo, "provision", "inventory.yaml", "--yes", "--no-run")[0] == 0, (
            operators.last_words(demo)
        )
        notify("the hosts are nodes")
        api = Client(demo.folder / "kubeconfig")
        names = [
            _job(api, each.name, turn, dice.randint(*seconds))
            for each in made
            for turn in range(3 if each.runtime == "docker" else 1)
        ]
        until(lambda: all(_phase(api, f"job-0-{host}") != "Pending" for host in demo.states), 120)
        notify("every host has a job")
        boots = {host: state.now().boot_id for host, state in demo.states.items()}
        for entry, state in zip(made, demo.states.values(), strict=True):
            if entry.runtime == "docker":
                (state.root / "etc/docker/daemon.json").write_text('{"log-driver": "journald"}\n')
                continue
            until(
                lambda name=f"job-0-{entry.name}": _phase(api, name) == "Succeeded", 60
            )  # else the fault ends it
            with state.change() as now:
                faults.ACTS["nouveau"].cause(state, entry, now)
        with Watch(demo, api) as watch:
            done, resumes = _killed(demo, kills, bound, seed, dice, notify)
        until(lambda: all(_phase(api, name) == "Succeeded" for name in names), 300)
        lost = [name for name in names if _restarts(api, name)]
        rebooted = sum(state.now().boot_id != boots[host] for host, state in demo.states.items())
        assert operators.run(demo, "plan", "inventory.yaml", "--exit-code")[0] == 0
    took = time.monotonic() - begun
    return Figures(
        seed, hosts, done, resumes, bound, watch.most, len(names), tuple(lost), rebooted, round(took, 1)
    )


def _killed(
    demo: Demo, kills: int, bound: int, seed: int, dice: random.Random, notify: Callable[[str], None]
) -> tuple[int, int]:
    """The run, killed so often and resumed to its end: how often each was."""
    words, done, resumes = ["provision", "inventory.yaml", "--yes", "--batch", str(bound)], 0, 0
    while True:
        settings = {"after": ["start" if dice.random() < 0.1 else "record", dice.randint(1, 80)]}
        code, _ = operators.run(demo, *words, **(settings if done < kills else {}))
        notify(f"{words[0]}: {code}")
        if code == 0:
            return done, resumes
        assert code == -9, f"seed {seed}, exit code {code}: {operators.last_words(demo)}"
        done += 1
        last = history.last_run(demo.inventory)
        if last and not last.ended:  # else it was killed before it had a record
            words = ["resume", "inventory.yaml", "--yes"]
        resumes += words[0] == "resume"


class Watch:
    """Counts the nodes that are disturbed, after every change of a node. `most`: at once, so far."""

    def __init__(self, demo: Demo, api: Client) -> None:
        self.most = 0
        self._demo, self._api = demo, api
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._look()
        except BaseException as error:  # noqa: BLE001 (raised at the end)
            self._error = error

    def _look(self) -> None:
        answer = self._api.ask("GET", NODES)[1]
        nodes = {item["metadata"]["name"]: item for item in answer["items"]}
        self._count(nodes)
        version = answer["metadata"]["resourceVersion"]
        with self._api.begin(
            "GET", NODES, watch="true", resourceVersion=version, timeoutSeconds="2"
        ) as events:
            for line in events:
                item = json.loads(line)["object"]
                nodes[item["metadata"]["name"]] = item
                self._count(nodes)

    def _count(self, nodes: dict[str, Any]) -> None:
        off = {name for name, state in self._demo.states.items() if (state.folder / DOWN).exists()}
        self.most = max(self.most, len(off | {name for name, item in nodes.items() if _disturbed(item)}))


def _disturbed(node: dict[str, Any]) -> bool:
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
    return bool(node["spec"].get("unschedulable")) or not ready


def _job(api: Client, host: str, turn: int, seconds: int) -> str:
    """A pod for the host's GPU that ends by itself. A container that is killed would be started again."""
    name = f"job-{turn}-{host}"
    container = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", str(seconds)]}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": host},
        "restartPolicy": "OnFailure",
        "containers": [{**container, "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
    code, answer = api.ask("POST", JOBS, {"kind": "Pod", "metadata": {"name": name}, "spec": spec})
    assert code == 201, answer
    return name


def _phase(api: Client, name: str) -> str:
    return str(api.ask("GET", f"{JOBS}/{name}")[1]["status"].get("phase"))


def _restarts(api: Client, name: str) -> int:
    status = api.ask("GET", f"{JOBS}/{name}")[1]["status"]
    return sum(each["restartCount"] for each in status.get("containerStatuses") or [])
