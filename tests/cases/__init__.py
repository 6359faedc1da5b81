"""Tables of hosts and what is planned for them, and a pretended host that changes are made on.

A case is facts merged over a base host, a few wishes, and what must come out. Its folder names the component.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpunode import packages
from gpunode.agent.record import STATE
from gpunode.engine import chain
from gpunode.links.kubelet.places import read as read_start
from gpunode.links.machine import pci
from gpunode.links.runtime import k0s, microk8s
from gpunode.links.toolkit import cdi
from gpunode.links.toolkit import plan as toolkit_config
from gpunode.links.toolkit.plan import refreshes
from gpunode.model import (
    Change,
    Containerd,
    Docker,
    Facts,
    File,
    ForgetHost,
    Gpu,
    GpuUser,
    Host,
    InstallDriver,
    InstalledRun,
    KernelModule,
    Kubelet,
    LoadImage,
    MigDevice,
    MigLayout,
    MigRule,
    Module,
    Os,
    Package,
    Packages,
    PciDevice,
    PluginImage,
    Reboot,
    RemoveFile,
    RemoveImage,
    Repository,
    RunFile,
    SelinuxBoolean,
    Service,
    Ssh,
    UninstallDriver,
    Unit,
    WriteFile,
)
from gpunode.planning.versions import numbers, upstream
from tests.cases import rancher

FOLDER = Path(__file__).parent
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQENBF\n-----END PGP PUBLIC KEY BLOCK-----\n"
DRIVERS = {
    384: "384.130",
    460: "460.106.00",
    470: "470.256.02",
    510: "510.108.03",
    535: "535.261.03",
    550: "550.163.01",
    580: "580.178.04",
    595: "595.91.07",
    615: "615.71.09",
    620: "620.10.01",
}
# Of RHEL and AlmaLinux: what their repositories have now.
SIGNED = {"kmod-nvidia-open": 580, "nvidia-open-kmod": 615}
NOW = 1_800_000_000.0
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast; the wheels have it
SPEC = "/run/cdi/nvidia.yaml"
NEVER_LINKED = ("/dev/nvidia-nvswitch", "/dev/nvidia-nvlink", "/dev/nvidia-fs")  # by nvidia-ctk


def read(name: str) -> Any:
    """A file of cases, or of what they are made of."""
    return yaml.load((FOLDER / name).read_text(encoding="utf-8"), LOADER)


def cases(component: str) -> Iterator[dict[str, Any]]:
    """The cases of a component's folder."""
    for path in sorted((FOLDER / component).glob("*.yaml")):
        yield from read(f"{component}/{path.name}")


def ids(case: Mapping[str, Any]) -> str:
    """A case's name as pytest shows it."""
    return str(case["name"]).replace(" ", "-")


def host(name: str, wishes: Mapping[str, Any] | None = None) -> Host:
    """A host that has both repositories unless the wishes say otherwise."""
    wishes = dict(wishes or {})
    for purpose in ("driver", "toolkit", "system"):
        usual = None if purpose == "system" else f"http://mirror.example/{purpose}"
        uri = wishes.pop(f"{purpose}_repository", usual)
        wishes[f"{purpose}_repository"] = Repository(uri, KEY) if uri else None
    if rules := wishes.pop("mig", None):
        wishes["mig"] = tuple(MigRule(m, tuple(p) if isinstance(p, list) else None) for m, p in rules.items())
    if run := wishes.pop("run", None):
        wishes |= {"driver": run["version"], "driver_run": RunFile(**{"sha256": "feed", **run})}
    return Host(name, Ssh(f"{name}.example"), **wishes)


def merged(base: Any, over: Any) -> Any:
    """Mappings merged key by key; null takes a key away; anything else replaces."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    result = {
        key: value for key, value in base.items() if over.get(key, value) is not None or key not in over
    }
    for key, value in over.items():
        if value is not None:
            result[key] = merged(base.get(key), value)
    return result


def facts(base: str, over: Mapping[str, Any] | None = None) -> Facts:
    """The facts of a base host with some of them changed."""
    return build(merged(_base(base), dict(over or {})))


@cache
def _base(name: str) -> dict[str, Any]:
    return dict(read(f"base/{name}.yaml"))


def build(data: Mapping[str, Any]) -> Facts:
    """Facts from their short form: a file is its text, a package its version."""
    data = dict(data)
    docker, containerd, node = data.get("docker"), data.get("containerd"), data.get("kubelet")
    return Facts(
        time=data.get("time", NOW),
        hostname=data["hostname"],
        os=Os(**data["os"]),
        kernel=data["kernel"],
        boot_id="b0075eed",
        uptime=86400.0,
        cgroup=data["cgroup"],
        secure_boot=data.get("secure_boot", False),
        pci=tuple(PciDevice(**{"vendor": "10de", "cls": "030200", **row}) for row in data["pci"]),
        modules={n: Module(**m) if isinstance(m, dict) else Module(m, 0) for n, m in data["modules"].items()},
        module_banner=data.get("module_banner"),
        library_version=data.get("library_version"),
        gpus=tuple(_gpu(**row) for row in data.get("gpus", ())),
        smi_error=data.get("smi_error"),
        half_installed=tuple(data.get("half_installed", ())),
        packages={n: _package(n, entry) for n, entry in data["packages"].items()},
        files={path: _file(path, entry) for path, entry in data["files"].items()},
        units={name: _unit(name, entry) for name, entry in data["units"].items()},
        docker=Docker(**{**docker, "runtimes": tuple(docker["runtimes"])}) if docker else None,
        containerd=_containerd(containerd, data["files"]) if containerd else None,
        kubelet=_kubelet(node) if node else None,
        containers=data.get("containers"),
        gpu_users=tuple(GpuUser(**user) for user in data.get("gpu_users", ())),
        images=data.get("images", {}),
        installed_run=InstalledRun(**run) if (run := data.get("installed_run")) else None,
        kernels=data.get("kernels", {}),
        boot_default=data.get("boot_default", ""),
        errors=data.get("errors", {}),
        module_files=tuple(
            data.get("module_files", ("updates/dkms/nvidia.ko",) if "nvidia" in data["modules"] else ())
        ),
        versions=data.get("versions", {}),
        unlinked=tuple(data.get("unlinked", ())),
        stopped=tuple(data.get("stopped", ())),
    )


def _package(name: str, entry: str | Mapping[str, Any]) -> Package:
    return Package(name, entry) if isinstance(entry, str) else Package(name, **entry)


def _file(path: str, entry: str | bool | Mapping[str, Any]) -> File:
    if isinstance(entry, dict):
        return File(path, **{"exists": True, "mtime": NOW - 5000, **entry})
    if entry is False:
        return File(path, exists=False)
    return File(path, exists=True, mode=0o644, mtime=NOW - 5000, content=str(entry))


def _unit(name: str, entry: str | Mapping[str, Any]) -> Unit:
    if isinstance(entry, dict):
        return Unit(name, **{"load": "loaded", "enabled": "enabled", "restarts": 0, **entry})
    if entry == "active":
        return Unit(name, "loaded", "active", "running", "enabled", NOW - 3600)
    if entry == "inactive":
        return Unit(name, "loaded", "inactive", "dead", "enabled")
    return Unit(name, "loaded" if entry == "inactive" else entry, "inactive", "dead", "")


def _containerd(entry: Mapping[str, Any], files: Mapping[str, Any]) -> Containerd:
    text = files.get("/etc/containerd/config.toml") or ""
    return Containerd(entry["version"], entry.get("dump", text), entry.get("error"))


def _kubelet(entry: Mapping[str, Any]) -> Kubelet:
    return Kubelet(
        entry["version"],
        tuple(entry.get("arguments", "").split()),
        entry["unit_text"],
        tuple(entry.get("journal", ())),
    )


def image(data: Mapping[str, Any] | None) -> PluginImage | None:
    """The device plugin's image of a case."""
    return PluginImage(**data) if data else None


# --- A pretended host ------------------------------------------------------------------------------------


RUNC = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'


def _gpu(**row: Any) -> Gpu:
    """A GPU, with its MIG devices as profiles."""
    parts, listed = row.pop("mig", ()), tuple(row.pop("profiles", ()))
    return Gpu(
        **row, profiles=listed, mig=parts and tuple(MigDevice(n, f"MIG-{n}", p) for n, p in enumerate(parts))
    )


def _merged(seen: Facts, unit: str) -> Facts:
    """The host after a start of this unit, where it is k0s': the last drop-in beside its own runc."""
    texts = [file.content for path, file in sorted(seen.files.items()) if path.startswith(k0s.FOLDER)]
    if unit not in k0s.UNITS or not texts:
        return seen
    return replace(seen, files={**seen.files, k0s.MERGED: _file(k0s.MERGED, f"{texts[-1]}\n{RUNC}")})


def applied(seen: Facts, changes: tuple[Change, ...]) -> Facts:
    """What a probe would find after these changes were made, as far as gpunode looks."""
    for change in changes:
        seen = replace(seen, time=seen.time + 10)
        seen = _applied(seen, change)
    return seen


def _applied(seen: Facts, change: Change) -> Facts:
    match change:
        case WriteFile():
            there = seen.files.get(change.path)
            assert (there.content if there and there.exists else None) == change.before, change.path
            file = File(change.path, exists=True, mtime=seen.time, content=change.content)
            return _read(replace(seen, files={**seen.files, change.path: file}), change)
        case RemoveFile():
            return replace(seen, files={**seen.files, change.path: File(change.path, exists=False)})
        case Packages():
            return _installed(seen, change)
        case KernelModule():
            return _loaded(seen, change)
        case Service():
            return _restarted(seen, change.unit) if change.start else _enabled(seen, change.unit)
        case SelinuxBoolean():
            path = f"/sys/fs/selinux/booleans/{change.name}"
            return replace(seen, files={**seen.files, path: _file(path, "1 1")})
        case MigLayout():
            return _cut(seen, change)
        case LoadImage():
            there = {**seen.images.get(change.runtime, {}), change.reference: change.image_id}
            return replace(seen, images={**seen.images, change.runtime: there})
        case RemoveImage():
            there = {k: v for k, v in seen.images.get(change.runtime, {}).items() if k != change.reference}
            return replace(seen, images={**seen.images, change.runtime: there})
        case ForgetHost():
            return replace(seen, files={**seen.files, STATE: File(STATE, exists=False)})
        case InstallDriver():
            assert seen.installed_run is None or seen.installed_run.version == change.version
            seen = replace(seen, installed_run=InstalledRun(change.version, built=True))
            return replace(
                seen,
                library_version=change.version,
                module_banner=_banner(change.version, change.flavour == "open"),
            )
        case UninstallDriver():
            return replace(seen, installed_run=None, library_version=None)
        case Reboot():
            functions = tuple(replace(d, driver=None if d.driver in pci.FREE else d.driver) for d in seen.pci)
            gpus = tuple(replace(gpu, mig=(), mig_on=gpu.mig_pending) for gpu in seen.gpus)
            bare = replace(seen, pci=functions, modules={}, gpu_users=(), gpus=gpus)
            for unit in ("docker.service", "containerd.service", "kubelet.service"):
                if unit in bare.units and bare.units[unit].load == "loaded":
                    bare = _restarted(bare, unit)
            return _loaded(bare, KernelModule("", load=("nvidia", "nvidia_uvm", "nvidia_modeset")))


def _cut(seen: Facts, change: MigLayout) -> Facts:
    after = {gpu.pci: gpu.after for gpu in change.gpus}
    gpus = []
    for gpu in seen.gpus:
        layout = after.get(gpu.pci, tuple(device.profile for device in gpu.mig or ()) if gpu.mig_on else None)
        parts = tuple(MigDevice(n, f"MIG-{gpu.uuid}-{n}", p) for n, p in enumerate(layout or ()))
        on = layout is not None
        gpus.append(replace(gpu, mig=parts, mig_on=on, mig_pending=on))
    return replace(seen, gpus=tuple(gpus))


def _read(seen: Facts, change: WriteFile) -> Facts:
    """What programs make of the files, as a probe asks them."""
    if seen.containerd and change.path.startswith("/etc/containerd/"):
        dump = change.content  # what is dumped always has a version, the main file's where a drop-in has none
        if not re.search(r"^version", dump, re.MULTILINE):
            main = seen.files["/etc/containerd/config.toml"].content or ""
            dump = "".join(re.findall(r"^version.*\n", main, re.MULTILINE)) + dump
        return replace(seen, containerd=replace(seen.containerd, dump=dump, error=None))
    if seen.kubelet and "/systemd/system/kubelet.service" in change.path:
        text = seen.kubelet.unit_text
        before = (change.before or "").strip()
        text = text.replace(before, change.content) if before and before in text else text + change.content
        return replace(seen, kubelet=replace(seen.kubelet, unit_text=text))
    return seen


def _installed(seen: Facts, change: Packages) -> Facts:
    there = {name: p for name, p in seen.packages.items() if name not in change.remove}
    for spec in change.install:
        epoch, colon, version = spec.version.rpartition(":")
        branch = int(version[:3]) if re.match(r"\d{3}\.", version) else 0
        exact = f"{DRIVERS[branch]}-1" if version == f"{branch}.*" else version.replace("*", "1")
        if spec.version.startswith("="):  # of that package's version
            exact = f"{upstream(there[spec.version[1:]].version).partition('_')[0]}-1"
        if "-kmp-" in spec.name:
            exact = f"{DRIVERS[595 if 'G07' in spec.name else 580]}_k6.4.0_150600.23.65-1"
        if spec.name in SIGNED:
            exact = f"{DRIVERS[SIGNED[spec.name]]}-1"
        there[spec.name] = Package(spec.name, f"{epoch}{colon}{exact}" or "1")
        if spec.name.endswith("-dkms"):  # it needs dkms
            there["dkms"] = Package("dkms", "3.3.0-1.el9")
        if spec.name.startswith("nvidia-driver-branch"):
            there["ocl-icd"] = Package("ocl-icd", "2.2.12-1.el7")
    there |= {name: replace(there[name], held=False) for name in change.release}
    for name in change.hold:
        there[name] = replace(there[name], held=True)
    seen = replace(seen, packages=there)
    return replace(_with_toolkit(seen), library_version=_driver(seen))


def _with_toolkit(seen: Facts) -> Facts:
    """With the toolkit's configuration, which its base package brings."""
    path = toolkit_config.CONFIG
    there = seen.files.get(path)
    if "nvidia-container-toolkit-base" not in seen.packages or (there and there.exists):
        return seen
    text = '[nvidia-container-runtime]\nruntimes = ["docker-runc", "runc", "crun"]\n'
    return replace(seen, files={**seen.files, path: _file(path, text)})


def _driver(seen: Facts) -> str | None:
    if seen.installed_run is not None:
        return seen.installed_run.version
    system = packages.system_of_host(seen)
    metas = system.names.metas(seen.packages) if system else ()
    theirs = [name for name in seen.packages if re.match(r"nvidia-(utils-\d|\d+$|(tesla-\d+-)?smi$)", name)]
    theirs += [name for name in seen.packages if name in SIGNED]
    return upstream(seen.packages[(*metas, *theirs)[0]].version) if metas or theirs else None


def _loaded(seen: Facts, change: KernelModule) -> Facts:
    modules = {name: module for name, module in seen.modules.items() if name not in change.unload}
    version = _driver(seen)
    modules |= {name: Module(version, 0) for name in change.load}
    stopped = tuple(unit for unit in seen.stopped if unit not in change.services)
    seen = replace(seen, module_files=_module_files(seen), stopped=stopped)
    archives = r"(linux-modules-nvidia|nvidia-headless|nvidia-dkms)-.*-open"
    open_one = any(
        name.startswith(("nvidia-open", "kmod-nvidia-open")) or re.match(archives, name)
        for name in seen.packages
    )
    if seen.installed_run is not None:
        open_one = "Open" in (seen.module_banner or "")
    return replace(seen, modules=modules, module_banner=_banner(version, open_one))


def _module_files(seen: Facts) -> tuple[str, ...]:
    """Debian's own packages give the driver's module a name of their own."""
    if not seen.packages.keys() & {"nvidia-smi"} and not any("tesla" in name for name in seen.packages):
        return ("updates/dkms/nvidia.ko",)
    tesla = next((m[0] for name in seen.packages if (m := re.match(r"nvidia-tesla-\d+", name))), None)
    other = "nvidia-current-open" if "nvidia-open-kernel-dkms" in seen.packages else "nvidia-current"
    return (f"updates/dkms/{tesla or other}.ko",)


def _banner(version: str | None, open_one: bool) -> str:
    return f"NVRM version: NVIDIA UNIX {'Open ' * open_one}Kernel Module  {version}"


def _enabled(seen: Facts, name: str) -> Facts:
    unit = seen.units.get(name) or Unit(name, "loaded", "inactive", "dead", "")
    return replace(seen, units={**seen.units, name: replace(unit, enabled="enabled")})


def _restarted(seen: Facts, name: str) -> Facts:
    unit = Unit(name, "loaded", "active", "running", "enabled", seen.time + 1)
    seen = replace(seen, units={**seen.units, name: unit}, time=seen.time + 2)
    seen = _merged(rancher.restarted(seen, name), name)
    if name == microk8s.UNITS[0]:  # it fills in its template
        template = seen.files[microk8s.TEMPLATE].content or ""
        made = _file(microk8s.MADE, microk8s.fill(template))
        seen = replace(seen, files={**seen.files, microk8s.MADE: made})
    if name in (cdi.DEV_CHAR, cdi.OWN, cdi.UNIT):
        return _handed(seen, name)
    if name == "kubelet.service" and seen.kubelet:
        arguments = ("/usr/bin/kubelet", *read_start(seen).argv[1:])
        return replace(seen, kubelet=replace(seen.kubelet, arguments=arguments, journal=()))
    if name == "docker.service":
        file = seen.files.get("/etc/docker/daemon.json")
        config = yaml.safe_load(file.content) if file and file.content else {}
        runtimes = ("io.containerd.runc.v2", "runc", *config.get("runtimes", {}))
        default = config.get("default-runtime", "runc")
        before = seen.docker or Docker("20.10.24", (), "runc", "cgroupfs", 0)
        return replace(seen, docker=replace(before, runtimes=runtimes, default_runtime=default))
    return seen


def _handed(seen: Facts, name: str) -> Facts:
    """The host after a start of a oneshot that hands out devices; its conditions keep it from all."""
    unit = replace(seen.units[name], active="inactive", sub="dead", active_since=None)
    seen = replace(seen, units={**seen.units, name: unit})
    version = numbers(upstream(seen.packages["nvidia-container-toolkit"].version))
    theirs = name == cdi.UNIT
    if theirs and not refreshes(version, seen.module_files):
        return seen
    if not theirs and "nvidia" not in seen.modules:
        return seen
    if not theirs:  # they load it themselves
        seen = replace(seen, modules={"nvidia_uvm": seen.modules["nvidia"], **seen.modules})
    if name == cdi.DEV_CHAR:
        return replace(seen, unlinked=tuple(dev for dev in seen.unlinked if dev.startswith(NEVER_LINKED)))
    uuids = [part.uuid for gpu in seen.gpus for part in ((gpu.mig or ()) if gpu.mig_on else (gpu,))]
    devices = "".join(f"- name: {uuid}\n" for uuid in uuids)
    libraries = f"# /usr/lib/libcuda.so.{seen.library_version}\n"
    text = f"kind: nvidia.com/gpu\ndevices:\n{devices}{libraries}"
    return replace(seen, files={**seen.files, SPEC: _file(SPEC, text)})


@cache
def right(base: str = "modern") -> tuple[Host, Facts]:
    """A host that gpunode has finished with, whose GPUs answer: one, if its base is the usual one."""
    named, seen = host(base), facts(base)
    for _ in range(3):
        seen = applied(seen, chain.plan(named, seen, chain.decide(named, seen, None)).changes)
    name, memory = ("H100", 81559) if base == "modern" else ("P100", 16384)
    addresses = [device.address.upper() for device in seen.pci if device.vendor == "10de"]
    gpus = [
        {"index": n, "uuid": f"GPU-{n}", "name": name, "pci": f"0000{address}", "memory_mib": memory}
        for n, address in enumerate(addresses)
    ]
    if base == "modern":
        return named, overlaid(
            seen, {"gpus": gpus[:1], "pci": [{"address": "0000:19:00.0", "device": "2330"}]}
        )
    return named, overlaid(seen, {"gpus": gpus})


def overlaid(seen: Facts, over: Mapping[str, Any]) -> Facts:
    """Facts with some fields in their short form over them."""
    short = build({**_SHORT, **over})
    fields = {}
    for name in over:
        mine, theirs = getattr(short, name), getattr(seen, name)
        fields[name] = {**theirs, **mine} if isinstance(theirs, dict) else mine
    for name in ("packages", "modules", "files"):
        gone = [key for key, value in over.get(name, {}).items() if value == "gone"]
        if gone:
            fields[name] = {key: value for key, value in fields[name].items() if key not in gone}
    return replace(seen, **fields)


_SHORT: dict[str, Any] = {
    "hostname": "",
    "os": {"id": "", "version": "", "pretty": ""},
    "kernel": "",
    "cgroup": "v2",
    "pci": [],
    "modules": {},
    "packages": {},
    "files": {},
    "units": {},
}
