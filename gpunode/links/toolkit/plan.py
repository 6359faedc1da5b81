"""NVIDIA's container toolkit: its sources, its four packages at one version and none of its predecessors, its configuration."""

import json
import re
from collections.abc import Iterable
from typing import Any

from gpunode import packages
from gpunode.errors import CannotPlan
from gpunode.links.driver import origin
from gpunode.links.driver import plan as driver_plan
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.crio import USUAL, low_level
from gpunode.model import Change, Desired, Facts, Host, Packages, PackageSpec, Watch
from gpunode.packages.names import PackageSystem
from gpunode.planning import files, toml, versions
from gpunode.planning.tables import table
from gpunode.planning.versions import branch_of, is_installed, numbers, upstream
from gpunode.wording import few


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Remove predecessors; install and hold the four packages."""
    system = packages.system_of_host(facts)
    if system is None or not desired.toolkit:
        return ()
    changes: list[Change] = []
    names = [spec.name for spec in desired.toolkit]
    retired = tuple(name for name in system.names.retired if name in facts.packages and name not in names)
    if retired:
        _no_containers(facts)
        changes.append(
            versions.change_packages(
                facts,
                "the container toolkit replaces it; daemon.json is kept and merged into",
                remove=retired,
            )
        )
    install = missing(facts, desired)
    # apt may forget a hold when it installs, so all are held again then
    hold = tuple(n for n in names if install or n not in facts.packages or not facts.packages[n].held)
    if install:
        changes.append(
            versions.change_packages(
                facts,
                "brings the runtime that gives containers their GPUs; all its packages must have the same version",
                install=install,
                hold=hold,
            )
        )
    elif hold:
        changes.append(
            versions.change_packages(
                facts, "its packages work only at one version together: none may be upgraded alone", hold=hold
            )
        )
    return tuple(changes)


def _no_containers(facts: Facts) -> None:
    """Version 1 of nvidia-docker serves volumes with the driver's files: a container that has one does not start without."""
    if facts.docker and facts.docker.v1_containers:
        raise CannotPlan(
            f"nvidia-docker 1 has to go, but containers still use its volumes: {few(facts.docker.v1_containers, 5)}",
            hint="Remove these containers (`docker rm -f NAME`), start them again with the new runtime afterwards.",
        )


def missing(facts: Facts, desired: Desired) -> tuple[PackageSpec, ...]:
    """All four packages when one is missing or of another version."""
    right = all(is_installed(facts.packages, spec) for spec in desired.toolkit)
    return () if right else desired.toolkit


def refreshes(version: tuple[int, ...], modules: Iterable[str]) -> bool:
    """Whether this version's unit writes the CDI specification on a kernel with these files of the driver's module; of an unknown
    version (()) as the newest does. One before 1.18 has no such unit."""
    rows = [
        row
        for row in table(__package__, "toolkit.yaml")["refresh"]
        if not version or tuple(row["since"]) <= version
    ]
    return bool(rows) and any(re.search(rows[-1]["pattern"], f"/{file}:") for file in modules)


def default_version() -> str:
    """The version of the toolkit where the inventory names none."""
    return str(table(__package__, "toolkit.yaml")["version"])


def decide_packages(host: Host, facts: Facts, system: PackageSystem) -> tuple[PackageSpec, ...]:
    """The toolkit's packages at one version: the inventory's, the installed one if it is newer, or the table's. With
    nvidia-docker2 where that is wished."""
    version = host.toolkit
    wrapped = version == "nvidia-docker2"
    if version == "auto" or wrapped:
        version = default_version()
        names = [spec.name for spec in system.names.toolkit(version)]
        installed = {facts.packages[name].version for name in names if name in facts.packages}
        if len(installed) == 1:
            version = max(version, upstream(installed.pop()), key=numbers)
    return (*system.names.toolkit(version), *((system.names.wrapper,) if wrapped else ()))


# --- Package sources ----------------------------------------------------------------------------------------

SOURCES_WATCH = Watch(
    files=tuple(path for system in packages.SYSTEMS.values() for path in system.watch.files),
    packages=tuple(pattern for system in packages.SYSTEMS.values() for pattern in system.watch.packages),
)


def plan_sources(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The sources' own changes, then a refresh by the package system, and what it needs to go on."""
    system = packages.system_of_host(facts)
    if system is None:
        return ()
    changes, tools = system.plan_sources(facts, desired), system.plan_tools(facts, desired)
    if changes or tools or driver_plan.missing(facts, desired) or missing(facts, desired):
        why = "a source changes" if changes else f"{system.name}'s lists may name versions that are gone"
        return (
            *changes,
            Packages(why, refresh=True, fault=""),
            *tools,
        )
    return ()


# --- Configuration: whose devices a container gets, and the runtime that NVIDIA's starts ---------------------
#
# github.com/NVIDIA/nvidia-container-toolkit, "accept-nvidia-visible-devices-*": a variable of the image or the pod then counts only in
# privileged containers, and devices come by mounts that the kubelet adds, or by CDI.

CONFIG = nvidia.TOOLKIT_CONFIG
PRICE = "isolation: an unprivileged container gets only its allocated GPUs; NVIDIA_VISIBLE_DEVICES alone, `docker run --gpus` and plugins that rely on that variable give it none"
TABLE = ("nvidia-container-runtime", "runtimes")
MODE = ("nvidia-container-runtime", "mode")

STRICT = {
    "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
    "accept-nvidia-visible-devices-as-volume-mounts": True,
}
KINDS: toml.Kinds = {
    **{(key,): "switch" for key in STRICT},
    MODE[:1]: "table",
    MODE: "string",
    TABLE: "strings",
}

CONFIG_WATCH = Watch(files=(CONFIG,))


def read_config(facts: Facts) -> dict[str, Any]:
    """The host's file; {} where there is none. Raises CannotPlan where it is not TOML or a value has another type."""
    return toml.read(files.text(facts, CONFIG) or "", CONFIG, KINDS, "NVIDIA's toolkit")


def runtime_mode(facts: Facts) -> str:
    """How NVIDIA's runtime gives containers their devices."""
    return str(toml.lookup(read_config(facts), MODE[:1]).get(MODE[1], "auto"))


def plan_config(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Edit it where the wish or the runtime below needs that. It comes with the toolkit, so there may be none yet."""
    before = files.text(facts, CONFIG)
    if before is None and any(not is_installed(facts.packages, spec) for spec in desired.toolkit):
        return ()
    if before is None and desired.isolation and not desired.toolkit:
        raise CannotPlan(
            f"`isolation: true` needs {CONFIG}, which comes with the toolkit",
            hint="Let gpunode install the toolkit (`toolkit: auto`), or install it by hand.",
        )
    data, text, reasons = read_config(facts), before or "", []
    for key, value in STRICT.items() if desired.isolation else ():
        if data.get(key) is not value:
            text = with_key(text, key, value)
            reasons.append(PRICE)
    packages = {*facts.packages, *(spec.name for spec in (desired.driver.packages if desired.driver else ()))}
    scattered = sorted(name for name in packages if _scatters(facts, name))
    if scattered and runtime_mode(facts) == "auto":
        text = toml.put(text, MODE, "legacy")
        reasons.append(
            f"the libraries of {scattered[0]} do not lie beside libcuda; mode legacy asks the linker's cache for each"
        )
    if desired.runtime == "crio" and desired.runtime_mode != "none":
        below, named = low_level(facts), list(toml.lookup(data, TABLE[:1]).get(TABLE[1]) or USUAL)
        if below not in named:
            text = toml.put(text, TABLE, [below, *named])
            reasons.append(f"NVIDIA's runtime starts the one below it, {below}, only if it is named here")
    if not reasons:
        return ()
    why = "; ".join(dict.fromkeys(reasons))
    return files.write(facts, CONFIG, text, why, wrong="lacks planned settings")


def _scatters(facts: Facts, name: str) -> bool:
    """Later releases keep the names as empty packages of a newer branch."""
    package = facts.packages.get(name)
    same = package is None or branch_of(package.version) == origin.named_branch(name)
    return origin.scatters(name) and same


def with_key(text: str, key: str, value: bool) -> str:
    """The text with this key of no table: changed, or added below the line that has it as a comment, else at the top."""
    line = f"{key} = {json.dumps(value)}"
    head = re.search(r"^[ \t]*\[", text, re.MULTILINE)
    top, rest = (text[: head.start()], text[head.start() :]) if head else (text, "")
    new, count = re.subn(
        rf"^[ \t]*{key}[ \t]*=[^\n#]*?(?=[ \t]*(#|$))", line, top, count=1, flags=re.MULTILINE
    )
    if not count:
        new, count = re.subn(
            rf"^[ \t]*#[ \t]*{key}[ \t]*=.*$", lambda m: f"{m[0]}\n{line}", top, count=1, flags=re.MULTILINE
        )
    return (new if count else f"{line}\n{top}") + rest
