"""What pods ask for, and which GPUs they get."""

import itertools
import random
from typing import Any

import pytest

from gpunode.contract.promises import Ask, Demand, Malformed, demand_of, parse_quantity
from gpunode.share.fit import TooHard, choose
from tests.share.objects import COUNT, MEM, pod


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), (4, 4), ("1k", 1000), ("81559", 81559), ("2Ki", 2048), ("1e3", 1000), ("0", 0), ("4.0", 4), ("4000000m", None)]
    + [("9223372036854775807", 2**63 - 1), ("9223372036854775808", None), ("9E", 9 * 10**18), ("-4", None), ("-0", 0)]
    + [(text, None) for text in ("", "four", "4.5", "1e99", "1e999999999", "NaN", "inf", "4 ", "٤", "9" * 5000)]
    + [(other, None) for other in (True, 4.0, None, [4], {"4": 4})],
)  # fmt: skip
def test_quantities_are_read_as_the_api_server_writes_them(text: Any, number: int | None):
    """Whole numbers in any notation; everything else is refused."""
    if number is not None:
        assert parse_quantity(text) == number
    else:
        with pytest.raises(ValueError, match="expected"):
            parse_quantity(text)


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        (pod("p", 4), Demand((Ask("c0", 0, 4),))),
        (pod("p", 0), Demand()),
        (pod("p", 0, 4, 6), Demand((Ask("c1", 1, 4), Ask("c2", 2, 6)))),
        (pod("p", 8, gpus=2), Demand((Ask("c0", 0, 4, 2),))),
        (pod("p", 4, init=[6, 2]), Demand((Ask("c0", 0, 4),), 6)),
        (pod("p", 4, sidecars=[2]), Demand((Ask("s0", -1, 2), Ask("c0", 0, 4)))),
    ],
)
def test_a_pods_demand_is_its_containers_limits(asking: Any, expected: Demand):
    """The label of ACK divides each container's units among GPUs."""
    assert demand_of(asking, MEM) == expected


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        (pod("p", -4), "aliyun.com/gpu-mem of container c0: expected a number from 0 to"),
        (pod("p", 10**30), "expected a quantity"),
        (pod("p", "4.5"), "expected a whole number"),
        (pod("p", 9, gpus=2), "9 aliyun.com/gpu-mem of container c0 by 2 GPUs is no whole number"),
        (pod("p", *[1] * 101), "101 containers ask"),
        ({"metadata": {"labels": {COUNT: "0"}}} | {"spec": pod("p", 4)["spec"]}, "by 0 GPUs"),
        (
            {"metadata": {"labels": {COUNT: "many"}}} | {"spec": pod("p", 4)["spec"]},
            "label aliyun.com/gpu-count: expected",
        ),
        ({}, "cannot be read"),
        ({"spec": {"containers": [None]}}, "cannot be read"),
        ({"spec": {"containers": [{"resources": {"limits": [4]}}]}}, "cannot be read"),
        ({"spec": "none"}, "cannot be read"),
    ],
)
def test_a_pod_that_asks_for_nonsense_is_malformed(asking: Any, words: str):
    """With the container and what was found."""
    with pytest.raises(Malformed, match=words):
        demand_of(asking, MEM)


@pytest.mark.parametrize(
    ("free", "asks", "packed", "distributed"),
    [
        # designs.md of gpushare: of four GPUs the one with the least that is enough
        ([12207, 8138, 4069, 16276], [(8138, 1)], ((1,),), ((3,),)),
        ([4, 4], [(6, 1)], None, None),
        ([6, 4], [(4, 1), (6, 1)], ((1,), (0,)), ((1,), (0,))),
        ([10, 10], [(4, 1), (4, 1)], ((0,), (0,)), ((0,), (1,))),
        ([9, 5, 7], [(4, 2)], ((1, 2),), ((0, 2),)),
        ([9, 5, 3], [(4, 3)], None, None),
        ([9], [(1, 10**18)], None, None),
        # the best place of the largest leaves no room for the next: it is taken back
        ([5, 6, 6], [(5, 2), (5, 1)], ((0, 1), (2,)), ((1, 2), (0,))),
        ([8, 4], [(4, 2), (4, 1)], ((1, 0), (0,)), ((0, 1), (0,))),
        ([], [(1, 1)], None, None),
        ([3], [], (), ()),
    ],
)
def test_gpus_are_chosen_by_room(free: list[int], asks: list[tuple[int, int]], packed: Any, distributed: Any):
    """The least that is enough, or the most."""
    wanted = [Ask(f"c{number}", number, each, gpus) for number, (each, gpus) in enumerate(asks)]

    assert choose(free, wanted, packed=True) == packed
    assert choose(free, wanted, packed=False) == distributed


def test_no_pod_is_refused_while_a_choice_has_room():
    """Compared with all choices there are, on 1,000 nodes and pods by chance; none takes more than is free."""
    chance = random.Random(15)
    for _ in range(1000):
        free = [chance.randint(0, 8) for _ in range(chance.randint(1, 4))]
        asks = [
            Ask(f"c{n}", n, chance.randint(1, 5), chance.randint(1, 2)) for n in range(chance.randint(1, 3))
        ]
        every = itertools.product(*(itertools.combinations(range(len(free)), ask.gpus) for ask in asks))

        def left(choice: Any, free: list[int] = free, asks: list[Ask] = asks) -> int:
            rest = list(free)
            for ask, gpus in zip(asks, choice, strict=True):
                for gpu in gpus:
                    rest[gpu] -= ask.each
            return min(rest)

        possible = any(left(choice) >= 0 for choice in every)
        for packed in (True, False):
            chosen = choose(free, asks, packed=packed)
            assert (chosen is not None) == possible, (free, asks)
            assert chosen is None or left(chosen) >= 0


def test_a_choice_that_is_too_hard_is_given_up():
    """In bounded time, however many containers and GPUs."""
    asks = [Ask(f"c{number}", number, 7 + number % 3) for number in range(40)]

    with pytest.raises(TooHard):
        choose([20 + number % 5 for number in range(16)], asks, packed=True)
