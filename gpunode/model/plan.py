"""The desired state of a host, how its kubelet starts, and the plan: changes in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpunode.model.change import Change, Flavour, Layout, PackageSpec, Runtime
from gpunode.model.host import ExpectedGpus, PluginImage, RunFile


@dataclass(frozen=True, slots=True)
class Place:
    """Where one kind of kubelet has its unit, its arguments and its configuration."""

    unit: str
    config: str  # its configuration file where its command names none
    variable: str  # takes arguments of the user's own
    variable_files: tuple[str, ...]  # where the packages expect that variable, the preferred one first
    files: tuple[str, ...]  # other environment files
    drop_in: str  # is written where no file can set the variable
    brings: Runtime | None = None  # the runtime that it always uses, mostly one of its own


@dataclass(frozen=True, slots=True)
class UnitSetting:
    """One setting of [Service]. `start` and `stop`: offsets of its value's text, continued lines included."""

    key: str
    value: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KubeletStart:
    """What systemd would start now. `argv`: the program and its arguments, () if it can start none."""

    place: Place
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    setters: Mapping[str, str]  # the file that each variable's value comes from
    command: tuple[str, UnitSetting] | None  # the ExecStart= that counts, and its file
    units: tuple[str, ...]  # files of unit and drop-ins, in the order of reading; so are the two below
    environment_files: tuple[str, ...]
    config_files: tuple[str, ...]
    config_path: str  # the main one, there or not
    config: Mapping[str, Any]
    config_gates: Mapping[str, bool]
    gates: Mapping[str, bool]  # of configuration and arguments together
    problem: str | None  # a mistake in one of the files, as `file:line: cause`


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """The driver that fits this host's GPUs."""

    branch: int
    flavour: Flavour
    version: str  # in full (580.178.04) where the inventory names it; "": any of the branch
    pin: tuple[PackageSpec, ...]  # installed first: what keeps the package system on this branch
    headers: tuple[PackageSpec, ...]  # of the kernel: only building a module needs them
    packages: tuple[PackageSpec, ...]  # the driver's own
    why: str
    ahead: str = ""  # the kernel of the next boot, where it has no nvidia module
    ahead_headers: tuple[PackageSpec, ...] = ()  # which dkms builds one with
    ahead_why: str = ""  # why none of the plan's changes gives it one
    fabric: tuple[PackageSpec, ...] = ()  # parts of exactly the driver's version: fabric manager, IMEX …
    subnet: tuple[PackageSpec, ...] = ()  # what the fabric manager needs for NVSwitches of NVLink 5
    switches: bool = False  # has NVSwitches, whose fabric manager must run
    run: RunFile | None = None  # installs it in place of packages
    archive: bool = False  # the packages are the distribution's own
    # Its signed ones: of the running kernel, then what brings the newest.
    modules: tuple[PackageSpec, ...] = ()
    replaces: tuple[str, ...] = ()  # packages of another driver, which make way first
    brings: str = ""  # the package with the repository of `modules`
    locks: tuple[str, ...] = ()  # packages that must not come

    @property
    def specs(self) -> tuple[PackageSpec, ...]:
        """All that is to be installed, in order."""
        built = (*self.pin, *self.headers, *self.ahead_headers, *self.modules)
        return (*built, *self.packages, *self.fabric, *self.subnet)


@dataclass(frozen=True, slots=True)
class Source:
    """A package repository for the host to use, with the key that signs it."""

    name: str  # of its files below sources.list.d or yum.repos.d, without ending
    uri: str
    key: str
    fingerprint: str = ""  # of the key, in full, if the user gave it


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of one host, decided from its settings, its facts and the tables."""

    runtime: Runtime
    runtime_mode: Literal["default", "class", "none"]
    gates: Mapping[str, bool | None]  # None: must not be set
    gate_reasons: Mapping[str, str]
    driver: DriverSpec | None = None
    toolkit: tuple[PackageSpec, ...] = ()
    sources: tuple[Source, ...] = ()
    image: PluginImage | None = None
    notes: tuple[str, ...] = ()
    isolation: bool = False
    gpus: ExpectedGpus | None = None
    toolkit_version: tuple[int, ...] = ()  # that the host will have; () where it is not known
    links: str = ""  # why NVIDIA's device files need links in /dev/char; "" where they need none
    cdi: str = ""  # why the toolkit's CDI specification must be current; "" where nothing reads it
    # How running containers can lose their GPUs, and what prevents it.
    device_loss: tuple[str, str] | None = None
    registers_tainted: bool = False  # its kubelet, with the taint of nodes that are not proven
    mig: Mapping[str, Layout] = field(default_factory=dict)  # PCI address of a GPU -> its MIG layout
    kubelet: KubeletStart | None = None  # how it would be started now: what the gates were decided on
    node: str = ""  # its name in the cluster, where the inventory has one


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of the decision: what was chosen, and the setting or fact that decided it."""

    code: Literal[
        "system", "gpu", "repository", "branch", "modules", "headers", "fabric", "toolkit", "runtime", "kubelet", "gate"
    ]  # fmt: skip
    chosen: str
    why: str


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One link's changes in a plan, in order; () if nothing needs a change."""

    step: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of one host, in order."""

    host: str
    steps: tuple[StepPlan, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for step in self.steps for change in step.changes)

    def __bool__(self) -> bool:
        return any(step.changes for step in self.steps)
