"""The lab as a whole: `up` brings it to where it should be from wherever it is, `down` takes all of it away."""

import contextlib
import itertools
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import (
    aptserver,
    builds,
    cache,
    cluster,
    docker,
    images,
    machine,
    nodes,
    openssh,
    pki,
    plugin,
    process,
    slot,
)
from .builds import CHECKOUT
from .hosts import CONTROL_PLANE, GPU_HOSTS, HOSTS, LEGACY, MODERN, Host
from .progress import CannotRun, LabError, say, step, wait
from .slot import Slot

PROGRAMS = (
    builds.KUBERNETES,
    builds.KUBERNETES_LEGACY,
    builds.CONTAINERD,
    builds.TOOLKIT,
    builds.NVIDIA_PLUGIN,
)


def up(labs: int = 1) -> None:
    """Bring so many labs of this checkout up, or as many as there is room for; what is as it should be is left alone."""
    os.umask(0o022)
    try:
        openssh.ensure()
    except (CannotRun, LabError) as error:
        say(f"tests that compare with OpenSSH's server are skipped: {error}")
    machine.check()
    with slot.lock(slot.folder(CHECKOUT) / "up.lock"):  # what another one brings up needs no room any more
        _all_up(labs)


def _prepared(labs: int) -> list[Path]:
    """The folders of the labs that there is room for, once the machine has all that they need."""
    cold = is_cold()
    if cold:
        machine.check_go()
    outs = fitting([slot.folder(CHECKOUT, number) for number in range(1, labs + 1)], cold=cold)
    machine.install()
    machine.raise_limits()
    return outs


def _all_up(labs: int) -> None:
    outs = _prepared(labs)
    for gone in slot.abandoned():
        say(f"clearing the lab {gone.out}, whose checkout is gone")
        _down(gone)
    with contextlib.ExitStack() as locks:
        mine = [slot.claim(out) for out in outs]
        for each in mine:
            locks.enter_context(slot.lock(slot.STATE / f"{each.number}.lock"))
        for part in PROGRAMS:
            builds.go(part)
        with ThreadPoolExecutor(len(mine)) as side_by_side:
            list(side_by_side.map(_up, mine))


def count() -> int:
    """How many labs of this checkout run: the first, the second, and so on."""
    numbers = itertools.count(1)
    return sum(
        1
        for _ in itertools.takewhile(lambda number: _runs(slot.find(slot.folder(CHECKOUT, number))), numbers)
    )


def down() -> None:
    """Stop the labs of this checkout, and remove what they made; the cache stays."""
    labs = slot.of(CHECKOUT)
    if not labs:
        say("nothing is up for this checkout")
    for mine in labs:
        with slot.lock(slot.STATE / f"{mine.number}.lock"), step(f"down {mine.out.name}"):
            _down(mine)
        if left := docker.leftovers(mine):
            raise LabError(f"left behind: {', '.join(left)}")


def status() -> int:
    """Print what runs; 0 if all labs of this checkout are up."""
    labs = slot.of(CHECKOUT)
    if not labs:
        print("down")
    return 0 if all(_status(mine) for mine in labs) and labs else 1


def _status(mine: Slot) -> bool:
    parts = {
        name: process.running(mine.state, name) for name in ("dockerd", "http-nvidia", "http-distribution")
    }
    parts |= {"kube-apiserver": cluster.ready(mine)}
    parts |= {f"sshd of {each.name}": nodes.answers_ssh(mine, each) for each in HOSTS}
    for name, good in parts.items():
        print(f"{'up  ' if good else 'DOWN'}  {name}")
    for each in HOSTS:
        ready = "Ready" if cluster.node_ready(mine, each.name) else "not Ready"
        print(f"      {each.name}: {nodes.address(mine, each)}, {ready}")
    print(f"      {mine.out.name}, slot {mine.number}: state {mine.state}, docker {mine.docker_host}")
    return all(parts.values())


def _runs(mine: Slot | None) -> bool:
    return mine is not None and process.running(mine.state, "dockerd")


def fitting(outs: list[Path], *, cold: bool) -> list[Path]:
    """The labs without the last ones that there is no room for; CannotRun if there is none for the first."""
    missing = [out for out in outs if not _runs(slot.find(out))]
    try:
        if missing:
            machine.check_room(len(missing), cold=cold)
    except CannotRun as reason:
        if len(outs) == 1:
            raise
        say(f"{reason} One less, then.")
        return fitting(outs[:-1], cold=cold)
    return outs


def is_cold() -> bool:
    """Whether nothing was ever built for the lab here."""
    return not list(cache.root().glob(f"{builds.KUBERNETES.name}-*"))


def _up(mine: Slot) -> None:
    name = mine.out.name
    with step(f"{name}: docker"):
        docker.up(mine)
    loaded = images.ensure(mine)
    with step(f"{name}: apt repositories"):
        apt = aptserver.up(mine)
    with step(f"{name}: hosts"):
        nodes.keys(mine)
        if not nodes.ensure(mine, CONTROL_PLANE, loaded):
            cluster.wait_ready(mine)  # it knows hosts, and is to forget those that are made again
        for each in GPU_HOSTS:
            nodes.ensure(mine, each, loaded)
    with step(f"{name}: control plane"):
        cluster.up(mine)
    with step(f"{name}: device plugin's image"):
        archive = plugin.archive(mine, loaded.python)
    _describe(mine, loaded, apt, archive)
    with step(f"{name}: legacy is Ready"):
        _ready(mine, LEGACY)


def _ready(mine: Slot, each: Host) -> None:
    """Wait until a host's kubelet is there; one that a test left broken is made anew."""
    try:
        wait(f"{each.name} to be Ready", lambda: cluster.node_ready(mine, each.name), 60)
    except LabError as error:
        say(f"{error}; making it anew")
        nodes.reset(mine, each)
        wait(f"{each.name} to be Ready", lambda: cluster.node_ready(mine, each.name), 90)


def _describe(mine: Slot, loaded: images.Images, apt: Path, archive: Path) -> None:
    """Write what tests and people need to reach the lab."""
    out = mine.out
    for name, user in (("kubeconfig", "admin"), ("kubeconfig-nobody", "nobody")):
        (out / name).write_text(pki.kubeconfig(mine, user))
        (out / name).chmod(0o600)
    uri = f"http://{mine.gateway}:{aptserver.NVIDIA}"
    shutil.copy(apt / "key.asc", out / "apt-key.asc")
    shutil.copy(archive, out / "plugin.tar")
    table = {
        "kubeconfig": f"{out}/kubeconfig",
        "kubeconfig_nobody": f"{out}/kubeconfig-nobody",
        "inventory": f"{out}/inventory.yaml",
        "inventory_all": f"{out}/inventory-all.yaml",
        "server": mine.server,
        "apt": {"uri": uri, "key": f"{out}/apt-key.asc"},
        "nodes": {
            each.name: {
                "address": nodes.address(mine, each),
                "port": 22,
                "user": nodes.USER,
                "key": f"{out}/id_ed25519",
                "known_hosts": f"{out}/known_hosts",
                "container": each.name,
            }
            for each in HOSTS
        },
        "images": {
            "base": loaded.python,
            "pause": images.PAUSE,
            "busybox": images.BUSYBOX,
            "plugin_archive": f"{out}/plugin.tar",
        },
        "docker_host": mine.docker_host,
    }
    inventory = f"""cluster:
  kubeconfig: kubeconfig            # relative to this file
  plugin: {{archive: plugin.tar}}
defaults:
  ssh: {{user: {nodes.USER}, key: id_ed25519, known_hosts: known_hosts}}
  repositories:
    driver: {{uri: "{uri}/cuda", key: apt-key.asc}}
    toolkit: {{uri: "{uri}/toolkit/stable/deb/amd64", key: apt-key.asc}}
groups:
  p100: {_group(mine, LEGACY)}
  h100: {_group(mine, MODERN)}
"""
    (out / "inventory.yaml").write_text(inventory)
    # for those who ask: a host without a GPU is refused, and a run over all hosts with it
    (out / "inventory-all.yaml").write_text(f"{inventory}  control-plane: {_group(mine, CONTROL_PLANE)}\n")
    (out / "lab.json").write_text(json.dumps(table, indent=2) + "\n")


def _group(mine: Slot, each: Host) -> str:
    return f"{{hosts: [{{name: {each.name}, address: {nodes.address(mine, each)}}}]}}"


def _down(mine: Slot) -> None:
    for name in ("http-nvidia", "http-distribution"):
        process.stop(mine.state, name)
    docker.down(mine)
    shutil.rmtree(mine.state, ignore_errors=True)
    shutil.rmtree(mine.out, ignore_errors=True)
    slot.release(mine)
