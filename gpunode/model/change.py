"""Changes of a host, a closed set; and its journal of them. `why` is for the user who accepts the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Flavour: TypeAlias = Literal["open", "proprietary"]  # of the driver's kernel modules
# The last four bring a containerd
Runtime: TypeAlias = Literal["docker", "containerd", "crio", "k3s", "rke2", "k0s", "microk8s"]
Checker: TypeAlias = Literal["docker", "containerd", "systemd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Every change, for verify. `fault`: what the change fixes; None: the same as its `why`; "": nothing, as it follows from the change
    before it."""

    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a container runtime must read in a changed file: this runtime added, this default (None: as before), those that
    `moved` here from another file, and no other difference."""

    runtime: str
    default: str | None = None
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteFile(Explained):
    """Write `content` to `path`. Refused if the file changed since the plan: `before` is its text at that time, None for
    a file that must not exist. `check` names the program that must accept the new text first and read `expected` in it. `mode`, `owner`
    (uid, gid; None: root's) and `label` (SELinux's; None: the policy's) are a new file's: another keeps its own."""

    path: str
    content: str
    why: str
    before: str | None = None
    mode: int = 0o644
    owner: tuple[int, int] | None = None
    label: str | None = None
    check: Checker | None = None
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class RemoveFile(Explained):
    """Remove `path` if its text is `before`; with `folder` also its folder, if that is empty then."""

    path: str
    before: str
    why: str
    folder: bool = False


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A package to install. `version` is exact (1.20.1-1) or a pattern (580.*), in its package system's notation;
    "" takes any."""

    name: str
    version: str = ""
    origin: Literal["nvidia", "distribution"] = "distribution"  # whose repository has it, or a mirror of that
    downgrade: bool = False  # installed even in place of a newer one

    def __str__(self) -> str:
        """For people: `nvidia-open-580 580.*`."""
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class Packages(Explained):
    """Install, remove, hold; `hold` comes after the installation, `release` of holds before it. `refresh` first updates the lists of
    packages. `purge` also removes the configuration of removed packages."""

    why: str
    install: tuple[PackageSpec, ...] = ()
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    refresh: bool = False
    purge: bool = False


@dataclass(frozen=True, slots=True)
class Service(Explained):
    """Enable and (re)start a unit; or, with `disable` alone, stop it and disable it. Then the unit, and the node's other units that worked before, must work for some seconds.
    Otherwise the files that this run changed for it (`guards`) are restored, and it is restarted if it worked before.

    `ends`: the users of the GPUs, as in Reboot, whose work the plan expects to end; a newer user (of docker: a newer container)
    prevents the restart. None: it ends no work, or any that there is. `drops`: container runtimes whose names begin so may be gone
    after it."""

    unit: str
    why: str
    enable: bool = False
    restart: bool = False
    start: bool = True  # False: it is enabled only; the next boot starts it
    guards: tuple[str, ...] = ()
    note: str = ""  # what else the restart affects: containers, GPU users
    ends: tuple[str, ...] | None = None
    drops: str = ""
    disable: bool = False
    loses: bool = False  # systemd is reloaded for it, and takes the GPUs from running containers


@dataclass(frozen=True, slots=True)
class KernelModule(Explained):
    """Unload, then load, modules by name in the order given. `services`: units of the driver's own daemons. An unload stops them; a
    load, or a change with neither, starts those of them that an unload has stopped."""

    why: str
    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SelinuxBoolean(Explained):
    """Switch a boolean of SELinux's policy on (or off), now and after every boot."""

    name: str
    why: str
    on: bool = True


Layout: TypeAlias = tuple[str, ...] | None
"""The profiles of a GPU's MIG devices; (): MIG is on without devices; None: MIG is off."""


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """One GPU's MIG layout before and after. `seen`: the driver answered at the time of the plan, so `before` is true."""

    pci: str
    after: Layout
    before: Layout = None
    seen: bool = True


@dataclass(frozen=True, slots=True)
class MigLayout(Explained):
    """Cut GPUs into MIG devices, in the order of their profiles. No process may use a GPU then; `services`: units of the driver's
    own daemons, which are stopped meanwhile. On a failure the GPU gets its layout of before again."""

    gpus: tuple[GpuLayout, ...]
    why: str
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadImage(Explained):
    """Load an image archive of this machine into the node's container runtime."""

    reference: str
    image_id: str
    archive: str
    runtime: Runtime
    why: str


@dataclass(frozen=True, slots=True)
class RemoveImage(Explained):
    """Remove an image from the node's container runtime. One that is in use, or gone, is no failure."""

    reference: str
    runtime: Runtime
    why: str


@dataclass(frozen=True, slots=True)
class ForgetHost(Explained):
    """Remove all of gpunode's own records from the host: the last change of all. `offers`: the node stops offering its GPUs."""

    why: str
    offers: bool = True


@dataclass(frozen=True, slots=True)
class InstallDriver(Explained):
    """Install a driver by NVIDIA's own installer, whose file has this SHA-256. `beside`: while another driver holds the GPUs;
    nothing is loaded, and a reboot follows."""

    version: str
    sha256: str
    flavour: Flavour
    why: str
    archive: str | None = None  # of this machine
    url: str | None = None  # that the host fetches
    beside: bool = False


@dataclass(frozen=True, slots=True)
class UninstallDriver(Explained):
    """Remove the driver that NVIDIA's own installer brought."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class Reboot(Explained):
    """Restart the machine; the run continues when its boot id has changed. `ends`: the users of the GPUs (pids, and UIDs of
    pods) at the time of the plan; a newer user prevents the reboot. None: it ends any user's work. `bare`: the plan removes the driver,
    so the next kernel need not have its module."""

    why: str
    ends: tuple[str, ...] | None = None
    bare: bool = False


Change: TypeAlias = (
    WriteFile
    | RemoveFile
    | Packages
    | Service
    | KernelModule
    | MigLayout
    | LoadImage
    | RemoveImage
    | ForgetHost
    | InstallDriver
    | UninstallDriver
    | SelinuxBoolean
    | Reboot
)


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package that a change of packages changed: its version before and after (None: not installed), and whether it was held."""

    name: str
    was: str | None
    now: str | None
    held: bool = False
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an apply, in the journal that gpunode keeps on a host. `run`: of the operator's record, "" where it had none or an older gpunode wrote this; `undoes`: the run that
    it undoes, "" of all others, of `forget` and of undos by older gpunodes; `by`: user@machine;
    `ended`: when it was made or had failed, or an apply after its kill noted so; else 0. Of the rest each kind has its own, of before the change."""

    apply: str
    run: str = ""
    undoes: str = ""
    by: str = ""
    time: float = 0.0  # seconds since the epoch
    kind: str = ""
    why: str = ""
    ended: float = 0.0
    failed: str = ""  # a code
    # Of a file: its state before and after (SHA-256; `-> TARGET` of a link; None: absent), and its original.
    path: str = ""
    was: str | None = None
    wrote: str | None = None
    link: str | None = None
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    label: str | None = None  # SELinux's
    content: str | None = None
    error: str = ""  # why there is no content
    new_folder: bool = False
    unit: str = ""  # that was to read the file; of a service its own
    enabled: str = ""  # of a service, as systemctl shows it
    active: str = ""
    modules: tuple[str, ...] | None = None  # loaded ones of GPUs; of packages, modules and drivers
    packages: Mapping[str, PackageChange] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()  # packages whose version of before is in no repository
    layouts: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)  # PCI address → MIG before, after
    name: str = ""  # of an image, a boolean, a version of a driver, the kernel before a reboot
    state: str = ""  # of a boolean `on` or `off`; the version of an installed driver; `purge` of packages; `disable` of a service
