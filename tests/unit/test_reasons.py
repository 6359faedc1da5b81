"""`plan --why`: the choices of a decision, each with the wish or the fact that decided."""

from typing import Any

from gpunode.commands.plan import reasons
from gpunode.engine import chain
from gpunode.errors import Refused
from gpunode.model import Choice
from tests import cases, tables


def choices(base: str, wishes: dict[str, Any], over: dict[str, Any]) -> tuple[Choice, ...]:
    """Of a host that is decided, or refused."""
    host, facts = cases.host(base, wishes), cases.facts(base, over)
    try:
        wish = chain.decide(host, facts, None)
    except Refused:
        wish = None
    return reasons(host, facts, wish)


def test_the_chain_goes_from_the_system_to_the_gates():
    """A P100 under docker, whose kubelet needs a gate."""
    assert choices("legacy", {}, {"kubelet": {"version": "1.9.11"}}) == (
        Choice(
            "system", "apt, debian12/x86_64", "NVIDIA's packages for Debian GNU/Linux 12 (bookworm) on amd64"
        ),
        Choice("gpu", "Tesla P100-PCIE-16GB", "PCI id 10de:15f8: Pascal, driven from branch 367 to 580"),
        Choice("repository", "http://mirror.example/driver", "the inventory names it"),
        Choice("repository", "http://mirror.example/toolkit", "the inventory names it"),
        Choice(
            "branch", "580", "Pascal: 580 is the last branch that drives it, and only its proprietary module"
        ),
        Choice("modules", "proprietary", "branch 580 has no other modules for all GPUs"),
        Choice("headers", "linux-headers-6.1.0-40-amd64", "of kernel 6.1.0-40-amd64, now running"),
        Choice("toolkit", "1.20.1", "gpunode was tested with it"),
        Choice("runtime", "docker", "kubelet 1.9 has dockershim, and no other runtime is configured"),
        Choice(
            "kubelet",
            "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
            "it starts kubelet 1.9.11 with /var/lib/kubelet/config.yaml, and your arguments from /etc/default/kubelet",
        ),
        Choice(
            "gate",
            "DevicePlugins=true",
            "device plugins, which hand out the GPUs, are off by default before 1.10",
        ),
    )


def test_an_archives_signed_modules_need_no_headers():
    """Ubuntu's own driver, whose modules come built."""
    ubuntu = {
        "os": {"id": "ubuntu", "version": "24.04", "pretty": "Ubuntu 24.04 LTS"},
        "kernel": "6.8.0-87-generic",
        "files": {"/etc/apt/sources.list": "deb http://archive.example/ubuntu noble restricted multiverse\n"},
    }
    chosen = choices("modern", {"driver_from": "distribution", "driver": "580"}, ubuntu)
    assert {
        choice.code: choice.why for choice in chosen if choice.code in ("branch", "modules", "headers")
    } == {
        "branch": "the inventory asks for Ubuntu's own driver, branch 580",
        "modules": "both kinds of modules support all GPUs; gpunode prefers open; "
        "linux-modules-nvidia-580-server-open-6.8.0-87-generic has them, signed by the distribution",
        "headers": "the modules are prebuilt",
    }


@tables.rows("choices")
def test_each_choice_has_what_decided_it(
    base: str, wishes: dict[str, Any], over: dict[str, Any], code: str, chosen: str, why: str
):
    """The inventory, what is installed, or the tables."""
    (decided,) = [choice for choice in choices(base, wishes, over) if choice.code == code]
    assert (decided.chosen, decided.why) == (chosen, why)


def test_a_host_that_is_refused_has_the_choices_before_that():
    """Its repository begins after the last branch of its GPU."""
    over = {"os": {"id": "ubuntu", "version": "26.04", "pretty": "Ubuntu 26.04 LTS"}}
    assert [choice.code for choice in choices("legacy", {}, over)] == ["system", "gpu"]
