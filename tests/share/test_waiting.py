"""Whole schedules by chance: what the API server admits by quota, what the scheduler asks, what pods' annotations say in the end."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from gpunode.contract.promises import ALLOCATION
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from tests.share.objects import MEM, SCHEDULES, Object, Pods, node, pod

QUOTAS = {"tight": 12, "wide": 40}  # units by namespace; others have none


class Scene:
    """Some nodes, an API server with quotas, and a scheduler that asks the extender; all by one random number generator."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sizes = {
            f"n{number}": [chance.choice([4, 8, 8, 16]) for _ in range(chance.randint(1, 3))]
            for number in range(chance.randint(1, 3))
        }
        self.quotas = dict(QUOTAS)
        self.api, self.wishes, self.made = Pods(), list[Object](), 0
        nodes = [node(name, *sizes, published=True) for name, sizes in self.sizes.items()]
        self.ledger = Ledger.of(MEM, nodes, [])
        self.extender = Extender(self.ledger, self.api, packed=chance.random() < 0.5)
        self.late = list[str]()  # pods whose events the ledger has not seen
        self.api.fail, self.api.late = self._fail, self._lose

    def _fail(self, method: str, _path: str) -> None:
        if method == "POST" and self.chance.random() < 0.05:
            raise ApiError(self.chance.choice([0, 403, 409, 500]), "by chance")

    def _lose(self) -> None:
        if self.chance.random() < 0.05:
            raise ApiError(0, "lost")

    def step(self) -> None:
        """Somebody wishes for a pod, one ends or is deleted, or a quota changes."""
        act, there = self.chance.random(), list(self.api.pods.values())
        if there and act < 0.3:
            self._end(self.chance.choice(there))
        elif act < 0.35:
            self.quotas["tight"] = self.chance.randint(0, 30)
        else:
            self.made += 1
            asks = [self.chance.randint(1, 6) for _ in range(self.chance.choice([1, 1, 1, 2, 3]))]
            gpus = self.chance.choice([0, 0, 0, 2])
            item = pod(f"p{self.made}", *(ask * max(gpus, 1) for ask in asks), gpus=gpus)
            item["metadata"]["namespace"] = self.chance.choice(["tight", "wide", "free", "other"])
            self.wishes.append(item)

    def _end(self, item: Object) -> None:
        if self.chance.random() < 0.5 and item["spec"].get("nodeName"):
            item["status"]["phase"] = "Succeeded"
            self.late.append(item["metadata"]["name"])
        else:
            del self.api.pods[item["metadata"]["name"]]
            self.late.append(item["metadata"]["uid"])

    def settle(self) -> None:
        """Controllers and scheduler try again until nothing changes any more; events come late, and in the end all."""
        busy = True
        while busy:
            seen, self.late = self.late, []
            for name in seen:
                self._event(name)
            busy = bool(seen)
            for item in [each for each in self.wishes if self.admits(each)]:
                self.wishes.remove(item)
                self.api.pods[item["metadata"]["name"]] = item
            for item in self.waiting():
                busy |= self._schedule(item)

    def _event(self, name: str) -> None:
        if name in self.api.pods:
            self.ledger.put_pod(self.api.pods[name])
        else:
            self.ledger.drop_pod(name)

    def _schedule(self, item: Object) -> bool:
        """As kube-scheduler does: filter, prioritize, bind. Whether something may have changed by it."""
        body = {"Pod": item, "NodeNames": list(self.sizes)}
        fit = self.extender.filter(body)["NodeNames"]
        if not fit:
            return False
        scores = self.extender.prioritize(body | {"NodeNames": fit})
        best = max(scores, key=lambda each: int(each["Score"]))["Host"]
        meta = item["metadata"]
        ask = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        self.extender.bind(ask | {"Node": best})
        self.late.append(meta["name"])
        return True

    def living(self) -> Iterator[Object]:
        return (item for item in self.api.pods.values() if item["status"]["phase"] != "Succeeded")

    def waiting(self) -> list[Object]:
        return [item for item in self.living() if not item["spec"].get("nodeName")]

    def admits(self, wish: Object) -> bool:
        """Whether ResourceQuota lets the API server create it: pods that have not ended count, those that wait too."""
        namespace = wish["metadata"]["namespace"]
        used = sum(sum(asks(item)) for item in self.living() if item["metadata"]["namespace"] == namespace)
        limit = self.quotas.get(namespace)
        return limit is None or used + sum(asks(wish)) <= limit

    def free(self) -> dict[str, list[int]]:
        """What is left of each GPU, by the annotations of the pods alone."""
        left = {name: list(sizes) for name, sizes in self.sizes.items()}
        for item in self.living():
            if on := item["spec"].get("nodeName"):
                placed: dict[str, dict[str, int]] = json.loads(item["metadata"]["annotations"][ALLOCATION])
                assert sum(sum(gpus.values()) for gpus in placed.values()) == sum(asks(item))
                for index, units in (pair for gpus in placed.values() for pair in gpus.items()):
                    left[on][int(index)] -= units
        return left


def asks(item: Object) -> list[int]:
    return [int(box["resources"]["limits"][MEM]) for box in item["spec"]["containers"]]


def fits(item: Object, free: list[int]) -> bool:
    """By trying every choice of GPUs."""
    gpus = int(item["metadata"].get("labels", {}).get("aliyun.com/gpu-count", 1))
    sets = list(itertools.combinations(range(len(free)), gpus))
    for choice in itertools.product(sets, repeat=len(asks(item))):
        left = list(free)
        for units, chosen in zip(asks(item), choice, strict=True):
            for position in chosen:
                left[position] -= units // gpus
        if min(left) >= 0:
            return True
    return False


def test_no_pod_waits_while_a_gpu_has_room_and_its_quota_allows():
    """No GPU is promised twice at any time, whatever answers are refused or lost."""
    chance = random.Random(15)
    waited = beyond = 0
    for _ in range(SCHEDULES):
        scene = Scene(chance)
        for _ in range(3):
            for _ in range(chance.randint(1, 8)):
                scene.step()
            scene.settle()
            free: Any = scene.free()
            assert min(min(left) for left in free.values()) >= 0, free
            for item in scene.waiting():
                assert not any(fits(item, left) for left in free.values()), (item, free)
                waited += 1
            for item in scene.wishes:
                assert not scene.admits(item), item
                beyond += 1
    assert waited > SCHEDULES // 2  # else it shows nothing
    assert beyond > SCHEDULES // 2
