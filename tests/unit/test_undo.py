"""The plan of an undo: a journal and facts as changes, and what is left as it is."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest

from gpunode.engine import forget, impact, undo
from gpunode.engine.member import Member
from gpunode.links.driver import modules
from gpunode.model import (
    Change,
    Entry,
    Facts,
    File,
    Gpu,
    GpuLayout,
    GpuUser,
    InstalledRun,
    KernelModule,
    Layout,
    Left,
    MigDevice,
    MigLayout,
    Module,
    Os,
    Package,
    PackageChange,
    Packages,
    PackageSpec,
    Reboot,
    RemoveFile,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    Unit,
    WriteFile,
)
from tests import cases

DOCKER = "docker.service"


def sha(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def file(path: str, was: str | None, wrote: str | None, run: str = "r1", **more: Any) -> Entry:
    return Entry("a", run, path=path, was=sha(was), wrote=sha(wrote), content=was, **more)


def facts(files: dict[str, str | None], **more: Any) -> Facts:
    seen = {
        path: File(path, exists=text is not None, sha256=sha(text), content=text)
        for path, text in files.items()
    }
    units = {DOCKER: Unit(DOCKER, "loaded", "active", "running", "enabled", active_since=1.0)}
    return Facts(1.0, "h", Os("debian", "12", "", "amd64"), "6.1", "b", files=seen, units=units, **more)


def write(path: str, content: str, before: str | None) -> WriteFile:
    return WriteFile(path, content, "as before run r1", before, owner=(0, 0))


def remove(path: str, before: str, *, folder: bool = False) -> RemoveFile:
    return RemoveFile(path, before, "run r1 made it", folder=folder)


def restart(*guards: str) -> Service:
    why = "it reads its configuration at its start"
    return Service(DOCKER, why, restart=True, guards=guards, ends=(), drops="nvidia")


unchanged, irreversible = partial(Left, "kept"), partial(Left, "irreversible")
SINCE, BETWEEN = "changed since the run", "changed between two writes of run r1"
FILES: list[tuple[list[Entry], dict[str, str | None], list[Change], list[Left]]] = [
    ([file("/a", "1", "2")], {"/a": "2"}, [write("/a", "1", "2")], []),
    ([file("/a", None, "2")], {"/a": "2"}, [remove("/a", "2")], []),
    ([file("/d/a", None, "2", new_folder=True)], {"/d/a": "2"}, [remove("/d/a", "2", folder=True)], []),
    ([file("/a", "1", None)], {"/a": None}, [write("/a", "1", None)], []),
    # As before the run: killed before its change, or undone already.
    ([file("/a", "1", "2")], {"/a": "1"}, [], []),
    ([file("/a", None, "2")], {"/a": None}, [], []),
    # Twice in a run: as before the first; in reverse order.
    ([file("/a", "1", "2"), file("/a", "2", "3")], {"/a": "3"}, [write("/a", "1", "3")], []),
    ([file("/a", "1", "2"), file("/a", "2", "3")], {"/a": "2"}, [write("/a", "1", "2")], []),
    # Once without effect: killed before its change, or restored after a failure.
    ([file("/a", "1", "2"), file("/a", "1", "3")], {"/a": "3"}, [write("/a", "1", "3")], []),
    # Changed between.
    ([file("/a", "1", "2"), file("/a", "u", "3")], {"/a": "3"}, [], [unchanged("/a", BETWEEN)]),
    ([file("/a", "1", "2"), file("/a", "u", "3")], {"/a": "2"}, [write("/a", "1", "2")], []),
    (
        [file("/a", "1", "2"), file("/a", "2", "3", run="r2"), file("/a", "3", "4")],
        {"/a": "4"},
        [],
        [unchanged("/a", BETWEEN)],
    ),
    (
        [file("/a", None, "2"), file("/b", None, "3")],
        {"/a": "2", "/b": "3"},
        [remove("/b", "3"), remove("/a", "2")],
        [],
    ),
    # Of other runs nothing is taken back.
    ([file("/a", "1", "2", run="r0"), file("/b", None, "3", run="")], {"/a": "2", "/b": "3"}, [], []),
    # Changed since.
    ([file("/a", "1", "2")], {"/a": "9"}, [], [unchanged("/a", SINCE)]),
    ([file("/a", "1", "2")], {"/a": None}, [], [unchanged("/a", SINCE)]),
    (
        [file("/a", "1", "2"), file("/a", "2", "3", run="r2")],
        {"/a": "3"},
        [],
        [unchanged("/a", f"{SINCE} by run r2: undo that first")],
    ),
    # What nothing restores.
    (
        [Entry("a", "r1", path="/a", was="-> /x", wrote=sha("2"), link="/x")],
        {"/a": "2"},
        [],
        [irreversible("/a", "it was a link to /x")],
    ),
    (
        [Entry("a", "r1", path="/a", was=sha("1"), wrote=sha("2"), error="not UTF-8")],
        {"/a": "2"},
        [],
        [irreversible("/a", "its original cannot be read: not UTF-8")],
    ),
    # A unit is restarted once, right after its files; not for one that stays, nor while it is stopped.
    (
        [file("/a", "1", "2", unit=DOCKER), file("/b", None, "3"), file("/c", None, "4", unit=DOCKER)],
        {"/a": "2", "/b": "3", "/c": "4"},
        [remove("/b", "3"), remove("/c", "4"), write("/a", "1", "2"), restart("/c", "/a")],
        [],
    ),
    ([file("/a", "1", "2", unit=DOCKER)], {"/a": "9"}, [], [unchanged("/a", SINCE)]),
    ([file("/a", "1", "2", unit="x.service")], {"/a": "2"}, [write("/a", "1", "2")], []),
]


@pytest.mark.parametrize(("entries", "seen", "changes", "left"), FILES)
def test_files(entries: list[Entry], seen: dict[str, str | None], changes: list[Change], left: list[Left]):
    assert undo.plan(entries, "r1", facts(seen)) == (tuple(changes), tuple(left))


def test_the_oldest_entry_of_a_file_is_its_original():
    entries = [file("/a", "1", "2", run=""), file("/a", "2", "3"), file("/b", None, "1")]
    assert undo.originals(entries) == {"/a": entries[0], "/b": entries[2]}


def changed(kind: str = "packages", run: str = "r1", modules: tuple[str, ...] = (), **more: Any) -> Entry:
    packages = {name: PackageChange(name, *change) for name, change in more.pop("packages", {}).items()}
    return Entry("a", run, kind=kind, modules=modules, packages=packages, **more)


def package(name: str, *change: Any, **more: Any) -> Entry:
    """Its versions before and after; whether it was held, and is."""
    return changed(packages={name: change}, **more)


def there(loaded: tuple[str, ...] = (), users: tuple[GpuUser, ...] = (), **packages: str | None) -> Facts:
    held = {name.replace("_", "-"): version for name, version in packages.items() if version}
    seen = {name: Package(name, version.rstrip("!"), version.endswith("!")) for name, version in held.items()}
    modules = {name: Module("580.1", 0) for name in loaded}
    return replace(facts({}), packages=seen, modules=modules, gpu_users=users)


WHY = "as before run r1"
UNLOAD = KernelModule("not loaded before run r1; no process uses the GPUs", unload=("nvidia",))
RELOADED = KernelModule("of another version before run r1; no process uses the GPUs", unload=("nvidia",))
NVIDIA = there(("nvidia",)).modules
LOAD = KernelModule(WHY, load=("nvidia", "nvidia_uvm", "nvidia_modeset"))
DRIVER, TOOLKIT = "libnvidia-ml1", "nvidia-container-toolkit"
STUCK = "they cannot be stopped before the next reboot, because the runtime is removed"


def older(name: str) -> Packages:
    """Version 1 instead of a newer one, or of none."""
    return Packages(WHY, (PackageSpec(name, "1", downgrade=True),), refresh=True)


def removed(name: str) -> Packages:
    return Packages(WHY, remove=(name,), purge=True)


USER = GpuUser(7, "python")
HOLDERS = modules.holders(there(("nvidia",), (USER,)))
HELD = Reboot(f"the modules were not loaded before run r1; {HOLDERS}", ("7",), bare=True)
COMPUTE = "its devices were 1c.3g.40gb; an undo makes no compute instances of their own"
PCI = "0000:3b:00.0"


def cut(before: Layout, after: Layout) -> Entry:
    return Entry("a", "r1", kind="mig_layout", layouts={PCI: (before, after)})


def there_is(layout: Layout) -> Facts:
    devices = tuple(MigDevice(n, f"MIG-{n}", profile) for n, profile in enumerate(layout or ()))
    return replace(facts({}), gpus=(Gpu(0, "GPU-1", "A100", PCI, 81920, devices, layout is not None),))


def back(before: Layout, now: Layout) -> MigLayout:
    return MigLayout((GpuLayout(PCI, before, now),), WHY)


RUNTIME = [
    file("/etc/containerd/config.toml", None, "2", unit="containerd.service"),
    changed(packages={TOOLKIT: (None, "2")}),
]
FABRIC = "nvidia-fabricmanager.service"
PERSISTENCED = "nvidia-persistenced.service"
STARTED = KernelModule("a killed apply has stopped them", services=(FABRIC,), fault="")
STOPPED = Entry("a", "r1", kind="service", unit=FABRIC, enabled="enabled", active="active", state="disable")


def unit_is(
    enabled: str, load: str = "loaded", users: tuple[GpuUser, ...] = (), active: str = "active"
) -> Facts:
    return replace(there(users=users), units={FABRIC: Unit(FABRIC, load, active, "running", enabled)})


def case(
    entries: Entry | list[Entry],
    seen: Facts,
    changes: Change | Sequence[Change] = (),
    left: Left | Sequence[Left] = (),
) -> tuple[object, ...]:
    """A host's entries, its facts, the changes of its undo, and what that leaves."""
    return tuple(
        each if isinstance(each, Facts | Sequence) else (each,) for each in (entries, seen, changes, left)
    )


SOFTWARE = [
    # Packages: brought ones go, others are as before; holds, too.
    case(package("a", None, "1"), there(a="1"), removed("a")),
    case(package("a", "1", "2"), there(a="2"), older("a")),
    case(package("a", "1", None), there(), older("a")),
    case(package("a", "1", "1", False, True), there(a="1!"), Packages(WHY, release=("a",))),
    case(package("a", "1", "1", True, False), there(a="1"), Packages(WHY, hold=("a",))),
    case(package("a", "1", "2"), there(a="1")),
    # A hold that somebody has set or released since stays so; what is held does not change.
    case(package("a", None, "2"), there(a="2!"), left=unchanged("a", f"{SINCE}: it is held")),
    case(package("a", "1", "2", True), there(a="2!"), left=unchanged("a", f"{SINCE}: it is held")),
    case(package("a", "1", "2"), there(a="1!")),
    case(package("a", "1", "1", True, True), there(a="1")),
    case(
        package("a", None, "2", False, True),
        there(a="2!"),
        Packages(WHY, remove=("a",), release=("a",), purge=True),
    ),
    case(
        [package("a", "1", "2"), changed(packages={"a": ("2", "3"), "b": (None, "1")})],
        there(a="3", b="1"),
        Packages(WHY, (PackageSpec("a", "1", downgrade=True),), ("b",), refresh=True, purge=True),
    ),
    case(
        changed(packages={"a": (None, "1"), "b": (None, "1")}),
        there(a="2", b="1"),
        removed("b"),
        unchanged("a", "changed since the run: now 2, after the run 1"),
    ),
    case(
        [package("a", "1", None), package("a", None, "2", run="r2")],
        there(a="2"),
        left=unchanged("a", f"{SINCE}: the run removed it; run r2 installed 2"),
    ),
    case(
        package("a", "1", None),
        there(a="2"),
        left=unchanged("a", f"{SINCE}: the run removed it; 2 is installed now"),
    ),
    # It was taken back since, and made again.
    case(
        [
            package(DRIVER, None, "2"),
            changed("kernel_module"),
            package(DRIVER, "2", None, run="u"),
            package(DRIVER, None, "2", run="r2"),
        ],
        there(("nvidia",), libnvidia_ml1="2"),
        left=unchanged(DRIVER, f"{SINCE} by run r2: undo that first"),
    ),
    # While a version of before cannot be had, no package and no module changes.
    case(
        [
            changed(packages={"a": ("1", None), "b": (None, "1")}, unavailable=("a",)),
            changed("kernel_module"),
        ],
        there(("nvidia",), b="1"),
        left=irreversible(
            "a", f"no repository has 1, so no package and no module is changed. {undo.EARLIER}"
        ),
    ),
    case(
        changed(packages={"linux-image-6.1.0-1": (None, "1"), "linux-headers-6.1.0-1": (None, "1")}),
        replace(
            there(linux_image_6="1"),
            kernel="6.1.0-1",
            packages={name: Package(name, "1") for name in ("linux-image-6.1.0-1", "linux-headers-6.1.0-1")},
        ),
        removed("linux-headers-6.1.0-1"),
        irreversible("linux-image-6.1.0-1", "it is of the running kernel"),
    ),
    case(
        changed(error="the packages could not be read"),
        there(),
        left=irreversible("packages", "the packages could not be read before or after a change"),
    ),
    case(
        package("gpg-pubkey", None, "1"),
        there(gpg_pubkey="1"),
        left=irreversible("gpg-pubkey", "an undo removes no key from rpm's database"),
    ),
    case(
        package("a", "1", None, state="purge"),
        there(),
        older("a"),
        irreversible(
            "configuration", "the purged configuration of a is lost; the package returns with its defaults"
        ),
    ),
    # Modules: unloaded before their packages go; loaded again in another version.
    case(
        [package(DRIVER, None, "2"), changed("kernel_module")],
        there(("nvidia",), libnvidia_ml1="2"),
        [UNLOAD, removed(DRIVER)],
    ),
    case(
        package(DRIVER, "1", "2", modules=("nvidia",)),
        there(("nvidia",), libnvidia_ml1="2"),
        [RELOADED, older(DRIVER), LOAD],
    ),
    # An undo was killed between the packages and their modules, or between unload and load.
    case(
        package(DRIVER, "1", "2", modules=("nvidia",)),
        replace(there(libnvidia_ml1="1"), library_version="1"),
        LOAD,
    ),
    # A daemon that it had stopped is started, before the load or after.
    case(
        changed("kernel_module", modules=("nvidia",)),
        replace(unit_is("enabled", active="inactive"), stopped=(FABRIC,)),
        replace(LOAD, services=(FABRIC,)),
    ),
    case(
        changed("kernel_module", modules=("nvidia",)),
        replace(unit_is("enabled", active="inactive"), modules=NVIDIA, stopped=(FABRIC,)),
        STARTED,
    ),
    # So is one that made way for MIG layouts, but none that the run had enabled.
    case(
        cut(None, ()),
        replace(unit_is("enabled", active="inactive"), modules=NVIDIA, stopped=(FABRIC,)),
        STARTED,
    ),
    case(
        Entry("a", "r1", kind="service", unit=FABRIC, enabled="disabled", active="inactive"),
        replace(unit_is("enabled", active="inactive"), modules=NVIDIA, stopped=(FABRIC,)),
        Service(FABRIC, WHY, disable=True, ends=()),
    ),
    case(
        package(DRIVER, "1", "2", modules=("nvidia",)),
        replace(
            there(("nvidia",), (GpuUser(8, "nvidia-persistenced"),), libnvidia_ml1="2"),
            units={
                FABRIC: Unit(FABRIC, "loaded", "inactive", "dead", "enabled"),
                PERSISTENCED: Unit(PERSISTENCED, "loaded", "active", "running", "enabled"),
            },
            stopped=(FABRIC,),
        ),
        [
            KernelModule(
                "of another version before run r1; no process uses the GPUs but the driver's own daemons, which are stopped meanwhile",
                unload=("nvidia",),
                services=(PERSISTENCED,),
            ),
            older(DRIVER),
            replace(LOAD, services=(PERSISTENCED, FABRIC)),
        ],
    ),
    case(
        package(DRIVER, "1", "2", modules=("nvidia",)),
        replace(there(("nvidia",), libnvidia_ml1="1"), library_version="1"),
        [RELOADED, LOAD],
    ),
    case(
        package(TOOLKIT, "1", "2", modules=("nvidia",)),
        replace(there(("nvidia",), nvidia_container_toolkit="1"), library_version="1"),
    ),
    case(
        package(TOOLKIT, None, "2", modules=("nvidia",)),
        there(("nvidia",), nvidia_container_toolkit="2"),
        removed(TOOLKIT),
    ),
    # Containers that a shim holds.
    case(
        RUNTIME,
        there(nvidia_container_toolkit="2"),
        removed(TOOLKIT),
        irreversible("containers of NVIDIA's runtime", STUCK),
    ),
    case(
        [file("/etc/docker/daemon.json", None, "2", unit=DOCKER), package(TOOLKIT, None, "2")],
        there(nvidia_container_toolkit="2"),
        removed(TOOLKIT),
    ),
    case(
        [package(DRIVER, None, "2"), changed("kernel_module")],
        there(("nvidia",), (USER,), libnvidia_ml1="2"),
        [removed(DRIVER), HELD],
    ),
    case(changed("kernel_module", modules=("nvidia",)), there(), LOAD),
    case(
        changed("kernel_module", modules=("nouveau",)),
        there(("nvidia",)),
        UNLOAD,
        irreversible("nouveau", "it was loaded before the run; the next boot loads it again"),
    ),
    # NVIDIA's installer.
    case(
        changed("install_driver", name="580.1"),
        replace(there(("nvidia",)), installed_run=InstalledRun("580.1", built=True)),
        [UNLOAD, UninstallDriver("580.1", "run r1 installed it")],
    ),
    case(
        [
            package(DRIVER, "1", None, modules=("nvidia",)),
            changed("install_driver", name="580.1", modules=("nvidia",)),
        ],
        replace(there(("nvidia",)), installed_run=InstalledRun("580.1", built=True)),
        [RELOADED, UninstallDriver("580.1", "run r1 installed it"), older(DRIVER), LOAD],
    ),
    case(
        changed("uninstall_driver", name="570.1", state="570.1"),
        there(),
        left=irreversible("driver 570.1", "an undo has no copy of NVIDIA's installer"),
    ),
    # MIG.
    case(cut(None, ("1g.10gb",)), there_is(("1g.10gb",)), back(None, ("1g.10gb",))),
    case(
        [cut(("7g.80gb",), None), cut(None, ("1g.10gb",))],
        there_is(("1g.10gb",)),
        back(("7g.80gb",), ("1g.10gb",)),
    ),
    case(cut(("7g.80gb",), ("1g.10gb",)), there_is(("7g.80gb",))),
    case(cut(None, ("1g.10gb",)), there_is(()), left=unchanged(f"MIG of {PCI}", "changed since the run")),
    case(
        cut(("1c.3g.40gb",), ("1g.10gb",)),
        there_is(("1g.10gb",)),
        left=irreversible(f"MIG of {PCI}", COMPUTE),
    ),
    case(cut(("1c.3g.40gb",), ("1g.10gb",)), there_is(("1c.3g.40gb",))),
    # Units, booleans, images, reboots.
    case(
        Entry("a", "r1", kind="service", unit=DOCKER, enabled="disabled", active="inactive"),
        facts({}),
        Service(DOCKER, WHY, disable=True, ends=()),
    ),
    case(
        Entry("a", "r1", kind="service", unit=DOCKER, enabled="disabled", active="active"),
        facts({}),
        left=irreversible(DOCKER, "it ran before the run, so it stays enabled: disabling it would stop it"),
    ),
    case(
        Entry("a", "r1", kind="service", unit=FABRIC, enabled="disabled", active="inactive"),
        unit_is("enabled", users=(USER,)),
        Service(FABRIC, WHY, disable=True, ends=("7",)),
    ),
    # An undo of an undo.
    case(STOPPED, unit_is("disabled"), Service(FABRIC, WHY, enable=True)),
    case(STOPPED, unit_is("enabled")),
    case(
        STOPPED,
        unit_is("", load="not-found"),
        left=irreversible(FABRIC, "it no longer exists, or is masked"),
    ),
    case(
        [STOPPED, package("a", "1", None)],
        unit_is("", load="not-found"),
        [older("a"), Service(FABRIC, WHY, enable=True)],
    ),
    case(replace(STOPPED, state=""), unit_is("disabled")),
    case(Entry("a", "r1", kind="selinux_boolean", name="b", state="on"), facts({}), SelinuxBoolean("b", WHY)),
    case(Entry("a", "r1", kind="service", unit=DOCKER, enabled="enabled", active="active"), facts({})),
    case(
        Entry("a", "r1", kind="selinux_boolean", name="b", state="off"),
        facts({}),
        SelinuxBoolean("b", WHY, on=False),
    ),
    case(
        [Entry("a", "r1", kind="load_image", name="i:1"), Entry("a", "r1", kind="reboot", name="6.1")],
        facts({}),
        left=[
            irreversible("reboot", "the host was rebooted; before, it ran kernel 6.1"),
            irreversible("i:1", "an undo does not remove images from container runtimes"),
        ],
    ),
]


@pytest.mark.parametrize(("entries", "seen", "changes", "left"), SOFTWARE)
def test_packages_modules_and_units(
    entries: Sequence[Entry], seen: Facts, changes: Sequence[Change], left: Sequence[Left]
):
    assert undo.plan(entries, "r1", seen) == (tuple(changes), tuple(left))


AGAIN = f"{SINCE} by run %s: undo that first"
# The changes of a package since run r1 brought its version 2: run, the run that it undoes, versions; and why version 2 is kept.
SINCE_R1: list[tuple[list[tuple[str, str, str | None, str | None]], str]] = [
    ([("r2", "", "2", "3"), ("u", "r2", "3", "2")], ""),
    ([("r2", "", "2", None), ("u", "r2", None, "2")], ""),
    ([("u", "r1", "2", None)], SINCE),
    ([("u", "r1", "2", None), ("r2", "", None, "2")], AGAIN % "r2"),
    # Removed before it came in another version; so did the undo, which was killed between the two.
    ([("r2", "", "2", None), ("r2", "", None, "3"), ("u", "r2", "3", None), ("u2", "r2", None, "2")], ""),
    # Undone by an older gpunode, which did not note what it undid.
    ([("r2", "", "2", None), ("u", "", None, "2")], AGAIN % "u"),
]


@pytest.mark.parametrize(("since", "kept"), SINCE_R1)
def test_a_package_that_later_runs_changed_and_their_undos_restored_is_the_runs(
    since: list[tuple[str, str, str | None, str | None]], kept: str
):
    later = [changed(run=run, undoes=undoes, packages={"a": (was, now)}) for run, undoes, was, now in since]
    planned = undo.plan([changed(packages={"a": (None, "2")}), *later], "r1", there(a="2"))
    taken = removed("a")
    assert planned == (((), (unchanged("a", kept),)) if kept else ((taken,), ()))


@pytest.mark.parametrize(
    ("unit", "ends"),
    [(FABRIC, True), (DOCKER, True), ("gpunode-cdi.service", False), ("gpunode-mig.service", False)],
)
def test_a_unit_that_is_stopped_interrupts_as_one_that_is_restarted(unit: str, *, ends: bool):
    stops = impact.disturbance_of([Service(unit, WHY, disable=True)])
    assert (stops.restarts, stops.ends_gpu_work) == (((unit,), True) if ends else ((), False))


def test_the_plugin_leaves_before_the_toolkit_is_removed():
    """As before a change of the driver: work is waited for, too."""
    outcome = undo.plan_host(
        cases.host("gpu-1"),
        [changed(packages={TOOLKIT: (None, "2")})],
        "r1",
        there(nvidia_container_toolkit="2"),
    )
    what = impact.disturbance(Member(cases.host("gpu-1"), outcome))
    assert (what.packages, what.ends_gpu_work) == ((TOOLKIT,), True)


@pytest.mark.parametrize(("work", "ends"), [("wait", ("7",)), ("drain", ("7",)), ("kill", None)])
def test_a_reboot_ends_no_newer_work_unless_work_is_to_be_killed(work: Any, ends: Any):
    journal = [changed(packages={DRIVER: (None, "2")}), changed("kernel_module")]
    seen = there(("nvidia",), (USER,), libnvidia_ml1="2")
    host = replace(cases.host("gpu-1"), work=work)
    for outcome in (
        undo.plan_host(host, journal, "r1", seen),
        forget.plan_host(host, forget.Aim(journal), seen),
    ):
        assert [change.ends for change in outcome.plan.changes if isinstance(change, Reboot)] == [ends]


def test_a_file_goes_with_the_packages_that_the_run_brought():
    """It is not taken for one that a user removed: an undo that is run again would name it."""
    entries = [changed(packages={"a": (None, "1")}), file("/etc/a.conf", "1", "2")]
    assert undo.plan(entries, "r1", facts({"/etc/a.conf": None})) == ((), ())


def test_a_version_is_not_missed_while_its_repository_is_to_come_back():
    entries = [
        changed(packages={"a": ("1", None)}, unavailable=("a",)),
        file("/etc/apt/sources.list.d/gpunode.sources", "x", None),
    ]
    changes, left = undo.plan(entries, "r1", facts({}))
    assert [type(change) for change in changes] == [WriteFile, Packages]
    assert left == ()


@pytest.mark.parametrize(
    ("more", "now", "kept"),
    [
        ((), "by hand", True),
        ((), "1", False),  # as before the run already
        ((), "2", False),  # it is restored
        ((Entry("b", "r2", path="/etc/b", undoes="r0"),), "by hand", True),  # the undo of another run
        ((Entry("b", "r2", path="/etc/b", undoes="r1"),), "by hand", False),  # an undo that is run again
    ],
)
def test_a_host_of_which_an_undo_can_put_nothing_back_is_named(more: tuple[Entry, ...], now: str, kept: bool):
    outcome = undo.plan_host(
        cases.host("gpu-1"), [file("/etc/a", "1", "2"), *more], "r1", facts({"/etc/a": now})
    )
    assert outcome.kept == kept


def test_packages_that_gpunode_brought_are_those_that_no_run_has_seen_before():
    first = changed(run="", packages={"a": (None, "1"), "b": ("1", "2"), "c": (None, "1")})
    entries = [first, changed(packages={"a": ("1", "3"), "c": ("1", None)})]
    assert undo.brought(entries) == {"a": "3"}


@pytest.mark.parametrize(("mode", "reload"), [("wait", True), ("kill", False)])
def test_a_reboot_of_an_undo_only_for_users_that_make_way_is_shown_as_a_reload(
    mode: Literal["wait", "kill"], reload: bool
):
    """Of a forget, too: both have planners of their own, and no desired state."""
    host, journal = replace(cases.host("gpu-1"), work=mode), [changed(packages={DRIVER: (None, "580")})]
    seen = there(("nvidia",), (USER,), libnvidia_ml1="580")
    aim = forget.Aim(journal)
    for planner in (partial(undo.plan_host, host, journal, "r1"), partial(forget.plan_host, host, aim)):
        outcome = planner(seen)
        assert any(isinstance(change, Reboot) for change in outcome.plan.changes)
        (member,) = impact.find_impact(
            None, "", [Member(host, outcome)], [], strict=True, planners={host.name: planner}
        )
        assert member.disturbs.reload == reload
