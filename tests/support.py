"""docs/support.md out of gpunode's tables: `python -m tests.support` writes it, tests/unit/test_support.py compares it.

A row says what gpunode plans for a bare host, so it is a case itself. What ran on more than tables stands in RAN.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from gpunode.cluster.api.kinds import APPLY
from gpunode.engine import chain
from gpunode.errors import Refused
from gpunode.links.driver import branches as branch_tables
from gpunode.links.driver import origin as archive_tables
from gpunode.links.kubelet import upgrade
from gpunode.links.kubelet.minors import GATES, fails_on_cgroup_v1, has_dockershim
from gpunode.links.machine import pci
from gpunode.links.toolkit.plan import default_version
from gpunode.model import Os
from gpunode.packages.names import PackageNames
from gpunode.packages.releases import distribution, sections
from gpunode.planning.tables import table as read
from tests import cases
from tests.lab import matrix
from tests.unit.test_dnf_systems import SYSTEMS

PATH = Path(__file__).parents[1] / "docs/support.md"
LAB = "tests/lab/test_provision.py::test_provision_takes_both_hosts_from_bare_to_verified"
SIM = "tests/sim/test_hosts.py::test_a_bare_host_becomes_right"
RPM = "tests/lab/test_rpm.py::test_provision_takes_it_from_bare_to_verified"
ARCHIVE = "tests/lab/test_distribution.py::test_from_bare_to_every_gpu"
MIDDLE = "tests/lab/test_middle_kubelet.py::test_a_bare_host_becomes_a_verified_node"
WHOLE = "tests/lab/test_kubernetes_116.py::test_a_bare_host_becomes_a_verified_node"
REAL, SIMULATED, TABLE = "real part", "simulation", "table only"
# What was run: of a system, a GPU generation, a minor of Kubernetes; all else is table only.
RAN: Mapping[str, tuple[str, str]] = {
    "debian 12 amd64": (REAL, LAB),
    "ubuntu 22.04 amd64": (SIMULATED, SIM),
    "rocky 9 amd64": (f"{REAL} (dnf and rpm; Debian below)", RPM),
    "archive of debian 12": (f"{REAL} (its packages, where they need no GPU)", ARCHIVE),
    "Pascal": (REAL, LAB),
    "Hopper": (REAL, LAB),
    "Ampere": (SIMULATED, SIM),
    "1.16": (f"{REAL}, with its control plane", WHOLE),
    "1.23": (REAL, LAB),
    "1.30": (REAL, MIDDLE),
    "1.36": (REAL, LAB),
}
SUSE = {
    4: "5.14.21-150400.24.187-default",
    5: "5.14.21-150500.55.121-default",
    6: "6.4.0-150600.23.65-default",
    7: "6.4.0-150700.53.19-default",
}
# release -> one of it, and its `uname -r`
KERNELS = {
    "debian 11": ("11", "5.10.0-36-amd64"),
    "debian 12": ("12", "6.1.0-40-amd64"),
    "debian 13": ("13", "6.12.48+deb13-amd64"),
    "ubuntu 16.04": ("16.04", "4.4.0-210-generic"),
    "ubuntu 20.04": ("20.04", "5.4.0-216-generic"),
    "ubuntu 22.04": ("22.04", "5.15.0-161-generic"),
    "ubuntu 24.04": ("24.04", "6.8.0-87-generic"),
    "ubuntu 26.04": ("26.04", "7.0.0-14-generic"),
    "rhel 7": ("7.9", "3.10.0-1160.el7.x86_64"),
    "centos 7": ("7", "3.10.0-1160.el7.x86_64"),
    "fedora 42": ("42", "6.17.4-200.fc42.x86_64"),
    "fedora 43": ("43", "6.17.4-300.fc43.x86_64"),
    "fedora 44": ("44", "6.19.8-300.fc44.x86_64"),
    **{f"sles 15.{sp}": (f"15.{sp}", kernel) for sp, kernel in SUSE.items()},
    **{
        f"{name} {v}": (v, "6.12.0-160000.9-default")
        for name, v in (("sles", "16.0"), ("sles", "16.1"), ("opensuse-leap", "16.0"))
    },
    "opensuse-leap 15.6": ("15.6", SUSE[6]),
    **{f"{name} {point.partition('.')[0]}": (point, row[0]) for (name, point), row in SYSTEMS.items()},
}
MACHINES = [case["name"] for case in cases.read("driver/machines.yaml")]
BASES: Mapping[str, str] = {"apt": "modern", "dnf": "rocky", "yum": "centos", "zypper": "suse"}


def table(*rows: Iterable[object]) -> str:
    """The first row is the head."""
    head, *rest = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))


def proof(*keys: str) -> str:
    """How it was proven, and by which test."""
    ran = [RAN[key] for key in keys if key in RAN]
    return "; ".join(f"{how}: `{test}`" for how, test in dict.fromkeys(ran)) or TABLE


def driver(facts: Mapping[str, Any], device: str, base: str) -> str:
    """The branch and modules that a bare host of these facts gets for a GPU; else why none."""
    host = cases.host(
        base, {"system_repository": "http://mirror.example/system"} if base == "centos" else None
    )
    seen = cases.facts(base, {**facts, "pci": [{"address": "0000:19:00.0", "device": device}]})
    try:
        wish = chain.decide(host, seen, None).driver
    except Refused as refused:
        return f"refused: {refused.message.splitlines()[0]}"
    assert wish is not None
    return f"{wish.branch} {wish.flavour}"


def systems() -> Iterator[tuple[str, ...]]:
    """Each release and architecture, with what a P100 and an H100 or GH200 get there."""
    yield "system", "architecture", "NVIDIA's repository", "headers", "P100", "H100, GH200", "proof"
    for family in sections():
        section = sections()[family]
        for name, releases in section["systems"].items():
            for version, row in releases.items():
                archs = row.get("architectures", section["architectures"])
                for arch, folder in section["architectures"].items():
                    if arch not in archs:
                        continue
                    yield system(family, f"{name} {version}", f"{row['directory']}/{folder}", arch)


def system(family: str, release: str, directory: str, arch: str) -> tuple[str, ...]:
    """A release's row."""
    name, version = release.split()
    point, kernel = KERNELS[release]
    if arch == "arm64":
        kernel = kernel.replace("amd64", "arm64").replace("x86_64", "aarch64")
    facts = {"os": {"id": name, "version": point, "pretty": release, "arch": arch}, "kernel": kernel}
    specs = PackageNames(family).headers(kernel)
    headers = ", ".join(f"`{re.sub(r'-[0-9].*', '-…', spec.name)}`" for spec in specs)
    headers = "none: the modules are built" if PackageNames(family).prebuilt else headers
    base = BASES[family]
    gpus = (driver(facts, "15f8", base), driver(facts, "2330", base))
    if arch == "arm64":
        gpus = ("–", driver(facts, "2342", base))
    return f"{distribution(name)} {version}", arch, directory, headers, *gpus, proof(f"{release} {arch}")


def archives() -> Iterator[tuple[str, ...]]:
    """Each release whose own archive has a driver, with what a P100 and an H100 get there."""
    yield "system", "branches", "components, or repository", "P100", "H100", "proof"
    for name in ("debian", "ubuntu"):
        for version in read("gpunode.links.driver", "archives.yaml")[name]["releases"]:
            point, kernel = KERNELS[f"{name} {version}"]
            archive = archive_tables.archive(Os(name, point, ""))
            parts = tuple(
                dict.fromkeys(part for branch in archive.branches for part in archive.components(branch))
            )
            sources = f"deb http://deb.example/ {archive.suite} main {' '.join(parts)}\n"
            facts = {
                "os": {"id": name, "version": point, "pretty": f"{archive.name} {version}", "arch": "amd64"},
                "kernel": kernel,
                "files": {"/etc/apt/sources.list": sources},
            }
            gpus = (archived(facts, "15f8"), archived(facts, "2330"))
            branches, how = ", ".join(map(str, archive.branches)), proof(f"archive of {name} {version}")
            yield f"{archive.name} {version}", branches, " ".join(parts), *gpus, how


def mirrors() -> Iterator[tuple[str, ...]]:
    """Those whose distribution keeps a repository of NVIDIA's packages, in the same columns."""
    for release, row in sections()["dnf"]["mirrors"].items():
        name, version = release.split()
        point, kernel = KERNELS[release]
        facts = {"os": {"id": name, "version": point, "pretty": release}, "kernel": kernel}
        gpus = (archived(facts, "15f8", "rocky"), archived(facts, "2330", "rocky"))
        brings = f"{row['repository']}, by `{row['package']}`; {', '.join(row['architectures'])}"
        yield (
            f"{distribution(name)} {version}",
            "production and long-term ones",
            brings,
            *gpus,
            proof(f"own {release}"),
        )


def archived(facts: Mapping[str, Any], device: str, base: str = "modern") -> str:
    """The modules that a bare host gets for a GPU out of the archive, and the package that has them; else why none."""
    host = cases.host(base, {"driver_from": "distribution"})
    seen = cases.facts(base, {**facts, "pci": [{"address": "0000:19:00.0", "device": device}]})
    try:
        wish = chain.decide(host, seen, None).driver
    except Refused as refused:
        return f"refused: {refused.message.splitlines()[0]}"
    built = [spec for spec in wish.packages if spec.name.endswith("-dkms")]
    first = (*wish.modules[1:], *wish.modules, *built, *wish.packages)[0]
    return f"{wish.branch} {wish.flavour}: `{first.name}`"


def signed() -> Iterator[tuple[str, ...]]:
    """Each release whose distribution builds modules, with what a bare host with Secure Boot and an H100 gets."""
    yield "system", "modules", "flavour", "an H100 with Secure Boot", "proof"
    for name, releases in read("gpunode.packages", "prebuilt.yaml").items():
        for version, rows in releases.items():
            point, kernel = KERNELS[f"{name} {version}"]
            facts = {"os": {"id": name, "version": point, "pretty": f"{name} {point}"}, "kernel": kernel}
            groups = rows[0].get("repositories", ())
            repos = "\n".join(f"[{group[0].format(arch='x86_64')}]\nenabled=1" for group in groups)
            facts |= {"secure_boot": True, "files": {"/etc/yum.repos.d/redhat.repo": repos}}
            base = "suse" if rows[0].get("generation") else "rocky"
            modules = ", ".join(f"`{row['module'].format(flavour='…')}`" for row in rows)
            flavours = ", ".join(
                row["flavour"] + " (not trusted by its kernel)" * (not row["trusted"]) for row in rows
            )
            yield f"{distribution(name)} {version}", modules, flavours, driver(facts, "2330", base), TABLE


def machines() -> Iterator[tuple[str, str]]:
    """Odd machines, and what is planned for them or why nothing is."""
    yield "machine", "planned, or refused as"
    for case in cases.cases("driver"):
        if case["name"] not in MACHINES:
            continue
        wished = case.get("desired", {})
        words = [f"{wished[key]}" for key in ("branch", "flavour") if key in wished]
        words += [f"`{spec}`" for key in ("modules", "headers", "fabric") for spec in wished.get(key, ())]
        others = [*case.get("notes", ()), *(["nothing changes"] if case.get("after") == "right" else [])]
        told = case.get("refused") or " ".join([*words, *others]) or "the driver is left alone"
        yield case["name"], f"refused: {told}" if "refused" in case else told


def generations() -> Iterator[tuple[object, ...]]:
    """Each GPU generation by branch: o for its open modules, p for the proprietary ones."""
    yield "generation", *branch_tables.branches(), "auto on Debian 12", "proof"
    for row in read("gpunode.links.machine", "gpus.yaml")["generations"].values():
        low, high = (int(end, 16) for end in row["ranges"][0].split("-"))
        device = next(
            f"{n:04x}"
            for n in range(low, high + 1)
            if f"{n:04x}" not in read("gpunode.links.machine", "gpus.yaml")["gpus"]
        )
        model = pci.gpu(device)
        cells = (
            "".join(flavour[0] for flavour in branch_tables.flavours_of(model, branch)) or "–"
            for branch in branch_tables.branches()
        )
        yield row["name"], *cells, driver({}, device, "modern"), proof(row["name"])


def branches() -> Iterator[tuple[str, ...]]:
    """Each branch of the driver."""
    yield "branch", "class", "ends", "kernel"
    for branch in branch_tables.branches().values():
        kernel = ".".join(str(part) for part in branch.kernel)
        yield str(branch.number), branch.status, branch.ends or "–", kernel


def minors() -> Iterator[tuple[str, ...]]:
    """Kubernetes versions that are alike to gpunode."""
    yield "kubelet", "gate DevicePlugins", "docker", "cgroup v1", "gpunode's cluster part", "proof"
    for alike, group in groupby(range(8, upgrade.removals()["known"] + 1), key=kubernetes):
        versions = list(group)
        name = f"1.{versions[0]}" + (f"–1.{versions[-1]}" if len(versions) > 1 else "")
        ran = [f"1.{minor}: {proof(f'1.{minor}')}" for minor in versions if f"1.{minor}" in RAN]
        yield name, *alike, "; ".join(ran) or TABLE


def kubernetes(minor: int) -> tuple[str, ...]:
    """What is special about a minor."""
    gate = GATES["DevicePlugins"]
    state = "set" if not gate.is_default(minor) else "removed" if gate.is_gone(minor) else "on by default"
    return (
        state,
        "yes" if has_dockershim(minor) else "no",
        "refused without `failCgroupV1: false`" if fails_on_cgroup_v1(minor) else "yes",
        "yes" if minor >= APPLY else "yes, by notes",
    )


def kubelets() -> Iterator[tuple[str, ...]]:
    """Ways to start a kubelet, and where a gate goes."""
    yield "kubelet", "after", "gates are changed in", "proof"
    for case in cases.cases("kubelet-places"):
        refused = case.get("refused")
        place = (
            f"refused: {' '.join(str(refused).split())}"
            if refused
            else ", ".join(f"`{path}`" for path in case["lines"])
        )
        how = TABLE if refused else f"{REAL} (systemd)"
        yield case["name"], case["after"], place, how


def runs() -> Iterator[tuple[str, ...]]:
    """Each configuration of the lab's matrix, with how its tests ended when they were run last."""
    yield "configuration", "tests", "run", "commit", "result"
    results = matrix.results()
    for row in matrix.ROWS:
        tests = ", ".join(f"`tests/lab/{name}`" for name in row.tests) or "–"
        tests += f" ({row.only.replace('_', ' ')})" if row.only else ""
        result = results.get(row.name)
        if result is None:
            yield row.name, tests, "not run", "–", row.why or "–"
        else:
            words = ("passed: " if result.ok else "failed: ") + result.words
            yield row.name, tests, result.date, f"`{result.commit}`", words


def text() -> str:
    """The whole document."""
    refused = read("gpunode.packages", "refused.yaml").items()
    return TEMPLATE.read_text(encoding="utf-8").format(
        hardware=HARDWARE.read_text().strip(),
        systems=table(*systems()),
        archives=table(*archives(), *mirrors()),
        signed=table(*signed()),
        machines=table(*machines()),
        refused=table(("system", "why gpunode installs nothing there"), *refused),
        generations=table(*generations()),
        branches=table(*branches()),
        minors=table(*minors()),
        kubelets=table(*kubelets()),
        runs=table(*runs()),
        production=next(n for n, branch in branch_tables.branches().items() if branch.status == "production"),
        toolkit=default_version(),
    )


HARDWARE = Path(__file__).parent / "gpu/hardware.md"  # what `make gpu` printed
TEMPLATE = Path(__file__).with_suffix(".md")

if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
