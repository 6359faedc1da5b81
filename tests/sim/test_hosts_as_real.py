"""A simulated host is not a flattering one: provisioned, it says of itself what the lab's real host of its kind says."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode import inventory
from gpunode.engine import converge
from gpunode.engine.fleet import Visit
from gpunode.host.ssh import Dialer
from gpunode.links.kubelet import places
from gpunode.model import Facts, Outcome
from gpunode.sim.host.machine import Machine, SimGpu

from ..lab import api as lab_api
from ..lab.conftest import Ran, gpunode, lab  # noqa: F401 (fixtures)
from .fleets import serving

pytestmark = pytest.mark.lab

CONFIGURATION = (
    "/etc/docker/daemon.json",
    "/etc/containerd/config.toml",
    "/etc/default/kubelet",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/config.yaml",
)


def twin(seen: Facts) -> Machine:
    """A simulated machine that is what the real one is."""
    bus = {device.address: device for device in seen.pci}
    gpus = tuple(
        SimGpu(gpu.uuid, gpu.name, at.device, gpu.pci, gpu.memory_mib, subsystem=at.subsystem)
        for gpu in seen.gpus
        for at in [bus[gpu.pci]]
    )
    assert seen.kubelet
    kind = "docker" if seen.docker else "containerd"
    return Machine(seen.hostname, "debian-12", seen.kernel, kind, seen.kubelet.version, gpus)


@pytest.fixture(scope="module", params=["legacy", "modern"])
def both(
    request,
    lab: lab_api.Lab,  # noqa: F811
    gpunode: Callable[..., Ran],  # noqa: F811
    tmp_path_factory,
) -> Iterator[tuple[Outcome, Outcome]]:
    """What is there of a real host, and of its twin, after each was provisioned."""
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", request.param)
    assert ran.code == 0, ran
    read = inventory.load(lab.inventory)
    host = next(host for host in read.hosts if host.name == request.param)
    dialer = Dialer()
    visit = Visit(host, dialer.connect, read.cluster.plugin)
    real = converge.probe_and_plan(visit, lambda _: None)
    visit.close()
    dialer.close()
    assert real.status == "right"
    assert real.facts is not None
    with serving(tmp_path_factory.mktemp("twin"), [twin(real.facts)]) as fleet:
        for path in CONFIGURATION:
            file = real.facts.files.get(path)
            if file and file.content is not None:
                there: Path = fleet.states[host.name].root / path.lstrip("/")
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_text(file.content)
        yield real, fleet.provision()[host.name]


def said(outcome: Outcome) -> dict[str, Any]:
    """What a decision rests on and what verify shows, without what is a host's own: times, kernels, places."""
    seen = outcome.facts
    assert seen.kubelet
    return {
        "os": (seen.os.id, seen.os.version, seen.os.arch),
        "pci": seen.pci,
        "modules": {name: module.version for name, module in seen.modules.items()},
        "banner": (seen.module_banner or "").split("  ")[0],
        "library": seen.library_version,
        "gpus": (seen.gpus, seen.smi_error),
        "packages": {
            name: p.version for name, p in seen.packages.items() if "linux" not in name and name != "dkms"
        },
        "held": {name for name, p in seen.packages.items() if p.held},
        "units": {
            name: (unit.load, unit.active, unit.sub, unit.enabled) for name, unit in seen.units.items()
        },
        "docker": (seen.docker.runtimes, seen.docker.default_runtime, seen.docker.cgroup_driver)
        if seen.docker
        else None,
        "kubelet": (places.read(seen).argv[1:], seen.kubelet.journal),
        "images": len(seen.images),
        "errors": seen.errors,
    }


@pytest.mark.parametrize(
    "what",
    [
        "os",
        "pci",
        "modules",
        "banner",
        "library",
        "gpus",
        "packages",
        "held",
        "units",
        "docker",
        "kubelet",
        "images",
        "errors",
    ],
)
def test_the_twin_says_what_the_real_host_says(both: tuple[Outcome, Outcome], what: str):
    """Fact by fact."""
    real, simulated = both
    assert said(simulated)[what] == said(real)[what]


def test_the_same_is_right_for_both(both: tuple[Outcome, Outcome]):
    """The same decision, and nothing left to do."""
    real, simulated = both
    assert real.desired is not None
    assert simulated.desired is not None
    assert not simulated.plan
    for name in ("runtime", "runtime_mode", "gates", "driver", "toolkit"):
        assert getattr(simulated.desired, name) == getattr(real.desired, name), name
