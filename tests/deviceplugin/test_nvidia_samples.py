"""The configuration files that NVIDIA's plugin documents (nvidia-samples/) mean here what they mean there."""

from pathlib import Path

import pytest

from gpunode.contract.config import Config, Share
from gpunode.deviceplugin.settings import read

SAMPLES = Path(__file__).with_name("nvidia-samples")
GPU = "nvidia.com/gpu"


def loaded(name: str) -> Config:
    return read([f"--config-file={SAMPLES / name}"], {})


def shares(**replicas: int) -> tuple[Share, ...]:
    return tuple(Share(f"nvidia.com/{name}", count, f"nvidia.com/{name}") for name, count in replicas.items())


MIG_SHARES = {"gpu": 10, "mig-1g.10gb": 2, "mig-2g.20gb": 2, "mig-3g.40gb": 3, "mig-7g.80gb": 7}
MEANING: dict[str, dict[str, object]] = {
    "flags.yaml": {},
    "mig-mixed.yaml": {"mig_strategy": "mixed"},
    "time-slicing.yaml": {"shares": shares(gpu=10)},
    "time-slicing-renamed.yaml": {"shares": (Share(GPU, 10, f"{GPU}.shared"),)},
    "time-slicing-mig.yaml": {
        "mig_strategy": "mixed",
        "shares": shares(**MIG_SHARES),
        "fail_requests_greater_than_one": True,
    },
}
MPS = ("mps.yaml", "mps-renamed.yaml")


@pytest.mark.parametrize("name", MEANING)
def test_a_documented_file_loads_unchanged(name):
    """All else is at its default, which is NVIDIA's."""
    assert loaded(name) == Config(config_file=str(SAMPLES / name), **MEANING[name])


@pytest.mark.parametrize("name", MPS)
def test_a_documented_file_for_mps_loads_unchanged(name):
    """Every GPU is shared by ten; one request gets one share."""
    config = loaded(name)
    assert [share.replicas for share in config.shares] == [10]
    assert config.fail_requests_greater_than_one


def test_no_sample_is_left_out():
    """Each file but the pods is loaded above."""
    configs = {path.name for path in SAMPLES.glob("*.yaml") if "kind: Pod" not in path.read_text()}
    assert configs == {*MEANING, *MPS}
