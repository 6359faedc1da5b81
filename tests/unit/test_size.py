"""How large the project may be: bench/size.yaml. A figure there goes down; one that goes up has its reason beside it."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BUDGET: dict[str, int] = yaml.safe_load((ROOT / "bench/size.yaml").read_text())


def lines(*folders: str) -> tuple[int, int]:
    """Lines and files of Python, without generated messages."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    return sum(path.read_text().count("\n") for path in paths), len(paths)


def test_the_product_and_its_tests_stay_within_their_budgets():
    product, files = lines("gpunode")
    links = {path.name: lines(f"gpunode/links/{path.name}")[0] for path in (ROOT / "gpunode/links").iterdir()}
    contracts = (ROOT / "pyproject.toml").read_text().split('name = "Floors"')[1].split("exhaustive")[0]
    seen = {
        "product lines": product,
        "product files": files,
        "lines of the largest link": max(links.values()),
        "floors": len(re.findall(r'^    "', contracts, re.MULTILINE)),
        "test lines": lines("tests")[0],
    }
    assert {name: size for name, size in seen.items() if size > BUDGET[name]} == {}
    assert seen.keys() == BUDGET.keys()
