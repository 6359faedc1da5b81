"""What bad input and faults get on the real cluster: a cause, a way out, and nothing half done."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from . import faults
from .api import Lab, Node
from .conftest import GPUNODE, Ran

pytestmark = [
    pytest.mark.lab,
    # Servers that a fault stops are started again by this process, and outlive it on purpose.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def legacy(lab: Lab) -> Node:
    """The host that faults are made on: bare."""
    node = lab.node("legacy")
    node.reset()
    return node


@pytest.fixture
def inventory(lab: Lab) -> Iterator[Callable[..., Path]]:
    """Writes variants of the lab's inventory beside it, where its relative paths hold."""
    made: list[Path] = []

    def write(change: Callable[[str], str]) -> Path:
        path = lab.inventory.with_name(f"variant-{len(made)}.yaml")
        path.write_text(change(lab.inventory.read_text()))
        made.append(path)
        return path

    yield write
    for path in made:
        path.unlink()


@contextlib.contextmanager
def provisioning(lab: Lab) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """`gpunode provision` of legacy while it runs, and the lines it writes."""
    words = ["provision", "--yes", "--json", "--no-run", "--limit", "legacy", str(lab.inventory)]
    with subprocess.Popen(
        [GPUNODE, *words], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout


CONNECTING: dict[str, tuple[Callable[[Node], AbstractContextManager[None]], int, str, str]] = {
    "no sshd": (faults.sshd_stopped, 3, "unreachable", "refused the connection"),
    "no answer": (faults.address_silent, 3, "unreachable", "did not answer within"),
    "wrong key": (faults.key_not_accepted, 3, "unreachable", "authentication failed"),
    "changed host key": (faults.host_key_changed, 3, "unreachable", "its host key changed"),
    "no sudo": (faults.no_sudo, 1, "failed", "sudo"),
    "sudo wants a password": (faults.sudo_asks_password, 1, "failed", "sudo wants a password"),
    "no python3": (faults.no_python, 1, "failed", "there is no python3"),
    "python3-minimal": (faults.minimal_python, 1, "failed", "lacks the module"),
}


@pytest.mark.parametrize("case", CONNECTING)
def test_a_host_that_cannot_be_used_says_why_and_does_not_stop_the_other(
    case: str, legacy: Node, gpunode: Callable[..., Ran]
) -> None:
    """The bad host's outcome has cause and way out; the other host is planned."""
    fault, code, status, words = CONNECTING[case]
    with fault(legacy):
        ran = gpunode("plan", "--json")

    outcome = ran.of("outcome", "legacy")[0]
    assert ran.code == code, ran
    assert outcome["status"] == status
    assert words in outcome["error"]
    assert outcome["hint"]
    assert ran.of("outcome", "modern")[0]["status"] in ("planned", "right")


BROKEN = {
    "legacy": (
        "/etc/docker/daemon.json",
        '{"log-driver": "json-file",\n "log-opts": {"max-size": "100m",}\n}\n',
        ":2:",
    ),
    "modern": ("/etc/containerd/config.toml", "version = 3\n[plugins\n", ":2:"),
}


@pytest.mark.parametrize("host", BROKEN)
def test_a_config_that_does_not_parse_is_refused_and_left_as_it_is(
    host: str, lab: Lab, gpunode: Callable[..., Ran]
) -> None:
    """File, line and cause are named; not a byte is written."""
    path, text, line = BROKEN[host]
    node = lab.node(host)
    before = node.read(path)
    node.write(path, text)
    try:
        ran = gpunode("provision", "--yes", "--json", "--limit", host)
        left = node.read(path)
    finally:
        node.write(path, before)

    outcome = ran.of("outcome", host)[-1]
    assert ran.code == 4, ran
    assert f"{path}{line}" in outcome["error"]
    assert left == text


def test_an_inventory_with_mistakes_contacts_nothing(
    lab: Lab, inventory: Callable[..., Path], legacy: Node
) -> None:
    """Every mistake at once, with its place; exit code 2."""
    path = inventory(lambda text: text.replace("ssh: {user", "shs: {user").replace("address:", "adress:"))
    done = subprocess.run([GPUNODE, "plan", path], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "did you mean `ssh`?" in done.stderr
    assert done.stderr.count("did you mean `address`?") == 2
    assert "nothing was contacted" in done.stderr


def test_a_host_without_a_gpu_is_refused(legacy: Node, gpunode: Callable[..., Ran]) -> None:
    """Nothing NVIDIA on the PCI bus: said so, not installed anyway."""
    devices = "/sys/bus/pci/devices"
    legacy.exec(["mount", "-t", "tmpfs", "none", devices])
    try:
        ran = gpunode("plan", "--json", "--limit", "legacy")
    finally:
        legacy.exec(["umount", devices])

    assert ran.code == 4, ran
    assert "no NVIDIA GPU" in ran.of("outcome", "legacy")[0]["error"]


def test_a_driver_that_cannot_drive_the_gpu_is_refused(
    legacy: Node, gpunode: Callable[..., Ran], inventory: Callable[..., Path]
) -> None:
    """A P100 and branch 595: the last branch that drives it is named."""
    wish = inventory(lambda text: text.replace("{name: legacy,", "{name: legacy, driver: 595,"))
    ran = gpunode("plan", "--json", "--limit", "legacy", inventory=wish)

    assert ran.code == 4, ran
    assert "580" in ran.of("outcome", "legacy")[0]["error"] + ran.of("outcome", "legacy")[0]["hint"]


def test_a_locked_apt_is_waited_for_and_its_holder_named(lab: Lab) -> None:
    """The run says who holds the lock, waits, and goes on when it is free."""
    lab.node("legacy").reset()
    with provisioning(lab) as (process, lines):
        with faults.apt_locked(lab.node("legacy")):
            waiting = next((line for line in lines if "waiting for apt" in line), "")
        rest = "".join(lines)

    assert "python3 (pid" in waiting
    assert process.returncode == 0, rest[-3000:]


def test_an_unreachable_repository_is_named(lab: Lab, gpunode: Callable[..., Ran]) -> None:
    """The URI and the cause; the runtime's config is untouched."""
    lab.node("legacy").reset()
    before = lab.node("legacy").read("/etc/docker/daemon.json")
    with faults.repository_down(lab):
        ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")

    outcome = ran.of("outcome", "legacy")[-1]
    assert ran.code == 1, ran
    assert lab.table["apt"]["uri"] in outcome["error"]
    assert "repositories" in outcome["hint"]
    assert lab.node("legacy").read("/etc/docker/daemon.json") == before


def test_a_package_that_is_not_there_is_named(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path]
) -> None:
    """A toolkit version nobody has."""
    wish = inventory(lambda text: text.replace("{name: legacy,", '{name: legacy, toolkit: "1.99.0",'))
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", inventory=wish)

    assert ran.code == 1, ran
    assert "1.99.0" in ran.of("outcome", "legacy")[-1]["error"]


def test_a_full_disk_is_said_before_the_packages_are_half_there(
    lab: Lab, gpunode: Callable[..., Ran]
) -> None:
    """apt's download folder is full."""
    node = lab.node("legacy")
    node.reset()
    with faults.disk_full(node, "/var/cache/apt"):
        ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")

    outcome = ran.of("outcome", "legacy")[-1]
    assert ran.code == 1, ran
    assert "space" in outcome["error"] or "full" in outcome["error"]
    assert node.exec(["dpkg", "--audit"]).stdout == ""


def test_a_cut_connection_loses_nothing(lab: Lab) -> None:
    """The work goes on on the host; the same run finds its way back and ends well."""
    node = lab.node("legacy")
    node.reset()
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        faults.cut_ssh(node)
        rest = "".join(lines)

    assert process.returncode == 0, rest[-3000:]
    assert "connection lost" in rest


def test_a_host_that_goes_silent_is_noticed_and_found_again(lab: Lab) -> None:
    """No packet comes any more, not even a reset: the run notices, and follows the work when the host is back."""
    node = lab.node("legacy")
    node.reset()
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        with faults.address_silent(node):
            noticed = next((line for line in lines if "connection lost" in line), "")
        rest = "".join(lines)

    assert noticed
    assert process.returncode == 0, rest[-3000:]


def test_a_run_that_dies_is_followed_by_the_next(lab: Lab, gpunode: Callable[..., Ran]) -> None:
    """gpunode killed in the middle of an apply: the next run follows that apply and converges."""
    node = lab.node("legacy")
    node.reset()
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        process.kill()
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")

    assert ran.code == 0, ran
    assert any("follow" in line["message"] for line in ran.of("stage", "legacy"))
    assert gpunode("plan", "--json", "--exit-code", "--limit", "legacy").code == 0


def test_a_kubelet_that_does_not_come_back_shows_its_reason_and_is_put_back(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path]
) -> None:
    """A gate this kubelet does not know: its journal's words are shown and its arguments are as before."""
    gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")
    node = lab.node("legacy")
    node.wait_ready()
    before = node.read("/etc/default/kubelet")
    wish = inventory(
        lambda text: text.replace(
            "{name: legacy,", "{name: legacy, kubelet: {feature_gates: {NoSuchGate: true}},"
        )
    )
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", inventory=wish)

    outcome = ran.of("outcome", "legacy")[-1]
    assert ran.code == 1, ran
    assert "NoSuchGate" in outcome["error"]
    assert "/etc/default/kubelet" in outcome["error"]
    assert node.read("/etc/default/kubelet") == before
    node.wait_until("its kubelet to run", ["systemctl", "is-active", "kubelet"])


def test_an_apiserver_that_does_not_answer_stops_before_any_host_is_touched(
    lab: Lab, gpunode: Callable[..., Ran]
) -> None:
    """The address and the cause are named."""
    with faults.apiserver_down(lab):
        ran = gpunode("provision", "--yes", "--json")

    assert ran.code == 1, ran
    assert lab.table["server"] in ran.stderr
    assert ran.of("stage") == []


def test_an_api_that_forbids_names_what_is_missing(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path]
) -> None:
    """Verb and resource, so that somebody can grant them."""
    wish = inventory(lambda text: text.replace("kubeconfig: kubeconfig ", "kubeconfig: kubeconfig-nobody "))
    ran = gpunode("provision", "--yes", "--json", inventory=wish)

    assert ran.code == 1, ran
    assert "does not let the user `nobody`" in ran.stderr
    assert "can-i" in ran.stderr


def test_verify_names_the_first_broken_link(lab: Lab, gpunode: Callable[..., Ran]) -> None:
    """A library that no longer fits its module is found below everything that follows from it."""
    gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")
    node = lab.node("legacy")
    link = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    before = node.exec(["readlink", link]).stdout.strip()
    node.exec(
        [
            "sh",
            "-c",
            f"cp $(readlink -f {link}) {link.removesuffix('.1')}.580.999.01; ln -sf libnvidia-ml.so.580.999.01 {link}",
        ]
    )
    try:
        ran = gpunode("verify", "--json", "--limit", "legacy")
    finally:
        node.exec(["sh", "-c", f"ln -sf {before} {link}; rm {link.removesuffix('.1')}.580.999.01; ldconfig"])

    links = ran.of("link", "legacy")
    assert ran.code == 1, ran
    assert [link["layer"] for link in links if link["status"] == "broken"] == ["library"]
    assert "580.999.01" in next(link["text"] for link in links if link["status"] == "broken")
    assert all(link["fix"] for link in links if link["status"] == "broken")
