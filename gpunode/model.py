"""The vocabulary: Host, Facts, Desired, Change, Plan, Outcome, Event.

Frozen values, built once at the edge and passed by hand. Imports nothing of gpunode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# --- Host: one machine, as the inventory describes it ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ssh:
    """How to reach a host; None leaves it to ~/.ssh/config. `jump` is `[user@]host[:port]`, or `none` to overrule
    that file's; `key` and `known_hosts` are paths of this machine."""

    address: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    known_hosts: str | None = None
    jump: str | None = None
    host_key_check: Literal["strict", "accept-new", "off"] = "accept-new"
    timeout: float = 15.0


@dataclass(frozen=True, slots=True)
class Repository:
    """The user's own package repository (mirror, air gap). `key` is the armoured public key's text."""

    uri: str
    key: str


@dataclass(frozen=True, slots=True)
class RunFile:
    """NVIDIA's own installer of one driver version, as `driver: {from: run}` names it. `archive` is a file of this machine;
    else the host fetches `url`. `flavour`: of the kernel module; None: the one that fits the GPUs."""

    version: str
    sha256: str
    archive: str | None = None
    url: str | None = None
    flavour: Literal["open", "proprietary"] | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One machine and its desired settings. `node` is its Kubernetes name where it differs from the host's own."""

    name: str
    ssh: Ssh
    groups: tuple[str, ...] = ()
    connection: Literal["ssh", "openssh", "local"] = "ssh"
    sudo: bool = True
    python: str = ""  # the agent's, as an absolute path; empty: looked for
    node: str | None = None
    driver: str = "auto"  # auto | none | a branch (580) | a full version (580.178.04)
    driver_run: RunFile | None = None  # what installs that version; None: packages
    driver_from: Literal["", "nvidia", "distribution"] = (
        ""  # whose packages, in place of others'; "": NVIDIA's, in place of none
    )
    toolkit: str = "auto"  # auto | none | a version (1.20.1)
    runtime: Literal["default", "class", "none"] = "default"
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    driver_repository: Repository | None = None
    toolkit_repository: Repository | None = None
    work: Literal["wait", "drain", "kill"] = (
        "wait"  # what becomes of pods and processes that a change would end
    )
    work_timeout: float = 1800.0  # seconds until a host is skipped whose work has not ended
    control_plane: bool = False  # may be disturbed though it is of the control plane


@dataclass(frozen=True, slots=True)
class PluginImage:
    """The device plugin's image. `archive` is a `docker save` file to load onto the nodes; None: they pull it."""

    reference: str
    archive: str | None = None
    image_id: str | None = None  # sha256:… of the image's config, read from the archive

    @property
    def pull(self) -> str:
        """A pod's imagePullPolicy: a loaded image is never pulled, as a registry may have another of its name."""
        return "IfNotPresent" if self.archive is None else "Never"


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """The device plugin's configuration, as it was written: one file, or several, of which each node's label
    `nvidia.com/device-plugin.config` names one."""

    text: str = ""
    cdi_directory: str = ""  # the host's, for the plugin to write into; "" unless a CDI strategy is chosen
    mps_root: str = ""  # the host's, for the MPS control daemons; "" unless GPUs are shared by MPS
    files: Mapping[str, str] = field(default_factory=dict)  # the several, by name; {}: the one is `text`


@dataclass(frozen=True, slots=True)
class PluginPublish:
    """What the device plugin publishes. Each option needs additional RBAC rules or a port of the host."""

    events: bool = True  # about its node: a Role in the namespace `default`
    annotation: bool = False  # of its node: it may then change all nodes
    metrics: bool = False  # on port 9400, with the pods that have GPUs


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the Kubernetes API is, and the plugin's image and configuration there."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "gpunode"
    plugin: PluginImage | None = None
    plugin_config: PluginConfig | None = None
    plugin_publish: PluginPublish = PluginPublish()


@dataclass(frozen=True, slots=True)
class GateCommand:
    """A shell command of the operator's machine that must succeed before each batch, within `timeout` seconds."""

    command: str
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Inventory:
    """A validated inventory file: hosts and gates in the order they were written."""

    path: str
    hosts: tuple[Host, ...]
    cluster: Cluster
    gates: tuple[GateCommand, ...] = ()


# --- Watch: what a probe reads ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """Files (globs allowed), systemd units, package name patterns and image references a probe reports on."""

    files: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


# --- Facts: what a probe found on a host, nothing derived ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Os:
    """From /etc/os-release: id `debian`, version `12`, codename `bookworm`, arch `amd64`."""

    id: str
    version: str
    pretty: str
    codename: str = ""
    arch: str = ""
    id_like: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PciDevice:
    """An NVIDIA function on the PCI bus, from /sys/bus/pci/devices. Numbers in hex without 0x."""

    address: str  # 0000:3b:00.0
    vendor: str  # 10de
    device: str  # 15f8
    cls: str  # 030200
    driver: str | None = None  # the kernel driver bound to it: nvidia, nouveau, vfio-pci
    numa_node: int = -1


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded kernel module, from /sys/module."""

    version: str | None
    refcnt: int


@dataclass(frozen=True, slots=True)
class InstalledRun:
    """A driver that NVIDIA's own installer brought. `built`: its module is there for the running kernel."""

    version: str
    built: bool


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A part of a GPU as `nvidia-smi -L` lists it. Drivers before branch 470 write its UUID `MIG-GPU-…/<gi>/<ci>`."""

    number: int  # on its GPU
    uuid: str
    profile: str  # e.g. 1g.10gb


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi reports it, and the MIG devices that it is cut into. `mig_pending`: whether MIG will be on
    after the GPU's next reset."""

    index: int
    uuid: str
    name: str
    pci: str
    memory_mib: int
    mig: tuple[MigDevice, ...] | None = ()  # None: not known, though MIG is on
    mig_on: bool = False
    mig_pending: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file of the host. `content` is None when it is absent, larger than 256 KiB or not UTF-8."""

    path: str
    exists: bool
    sha256: str | None = None
    mode: int | None = None
    mtime: float | None = None  # seconds since the epoch
    content: str | None = None
    error: str | None = None  # why it could not be read


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit. `active_since` in seconds since the epoch, None when it is not active."""

    name: str
    load: str  # loaded | not-found | masked
    active: str  # active | inactive | failed | activating
    sub: str
    enabled: str  # enabled | disabled | static | masked | …
    active_since: float | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package. `held` keeps it from being upgraded by others."""

    name: str
    version: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that has a GPU's device file or driver library open. `pod` is a pod's uid, `container` an id. `name`: the
    pod's namespace/name, else the container's. `gpus`: PCI addresses of those that it has open, as far as known."""

    pid: int
    command: str
    container: str | None = None
    pod: str | None = None
    name: str | None = None
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people: `python3 (pid 4242, pod ml/train)`."""
        where = ""
        if self.pod:
            where = f", pod {self.name or self.pod}"
        elif self.container:
            where = f", container {self.name or self.container[:12]}"
        return f"{self.command} (pid {self.pid}{where})"


@dataclass(frozen=True, slots=True)
class Docker:
    """The running dockerd, as `docker info` reports it."""

    version: str
    runtimes: tuple[str, ...]
    default_runtime: str
    cgroup_driver: str
    containers_running: int
    live_restore: bool = False  # containers outlive the daemon
    v1_containers: tuple[str, ...] = ()  # which have a volume of nvidia-docker 1, by name


@dataclass(frozen=True, slots=True)
class Containerd:
    """containerd. `dump` is `containerd config dump` of the files as they are now."""

    version: str
    dump: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet. `arguments` of the running process, () when none runs; `unit_text` is `systemctl cat kubelet`."""

    version: str
    arguments: tuple[str, ...]
    unit_text: str
    journal: tuple[str, ...] = ()  # its last lines, when it is not running


@dataclass(frozen=True, slots=True)
class Run:
    """An apply that is under way on the host, or that ended after its connection was lost."""

    id: str
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A restart that an earlier apply kept, though gpunode did not connect to the host after it. `code`: why it did."""

    code: Literal["api-server-answered"]
    run: str
    unit: str
    by: str
    since: float

    def __str__(self) -> str:
        """For people."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return (
            f"unconfirmed: after the restart of {self.unit} by {self.by} at {since} gpunode did not connect again; it was "
            "kept, as the API server answered"
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything one probe of one host saw, at `time` (seconds since the epoch, the host's clock)."""

    time: float
    hostname: str
    os: Os
    kernel: str
    boot_id: str
    uptime: float
    cgroup: Literal["v1", "hybrid", "v2"]
    secure_boot: bool | None
    pci: tuple[PciDevice, ...]
    modules: Mapping[str, Module]
    module_banner: str | None  # first line of /proc/driver/nvidia/version
    library_version: str | None  # suffix of the file behind libnvidia-ml.so.1
    gpus: tuple[Gpu, ...]
    smi_error: str | None  # nvidia-smi's message when it failed
    packages: Mapping[str, Package]
    files: Mapping[str, File]
    units: Mapping[str, Unit]
    docker: Docker | None
    containerd: Containerd | None
    kubelet: Kubelet | None
    gpu_users: tuple[GpuUser, ...] = ()
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # runtime -> reference -> image id
    running: Run | None = None
    unconfirmed: tuple[Unconfirmed, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)  # section (`mig` too) -> why it could not be read
    machine_id: str = ""  # of /etc/machine-id; "" where it is not known
    product_uuid: str = ""  # of the firmware
    installed_run: InstalledRun | None = None
    kernels: Mapping[str, bool] = field(default_factory=dict)  # that can be booted -> has an nvidia module


# --- Change: what can be done to a host; a closed set ------------------------------------------------
#
# `why` is for the user who accepts the plan. `fault` is what is wrong until the change is made, for verify: None: the same
# as `why`; "": nothing of its own, as the change follows from the one before it.

Runtime: TypeAlias = Literal["docker", "containerd"]
Checker: TypeAlias = Runtime | Literal["systemd"]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a container runtime must make of a changed file: this runtime added, this default one (None: as before),
    and all else as it was."""

    runtime: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Make `path` hold `content`. Refused when it is no longer what was planned on: `before` is the text it
    then had, None for a file that must not exist. `check` names the program that must accept it first, and make
    of it what is `expected`."""

    path: str
    content: str
    why: str
    before: str | None = None
    mode: int = 0o644
    check: Checker | None = None
    expected: Expected | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove `path`, whose text is `before`."""

    path: str
    before: str
    why: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A package to install. `version` is exact (1.20.1-1) or a pattern (580.*), in its package system's notation;
    "" takes any."""

    name: str
    version: str = ""
    origin: Literal["nvidia", "distribution"] = "distribution"  # whose repository has it, or a mirror of that
    downgrade: bool = False  # installed even where a newer one has to go for it

    def __str__(self) -> str:
        """For people: `nvidia-open-580 580.*`."""
        return f"{self.name} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class Packages:
    """Install, remove, hold; `hold` is done after installing. `refresh` reads what the sources hold first. `purge` removes
    the configuration of what is removed, too."""

    why: str
    install: tuple[PackageSpec, ...] = ()
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    refresh: bool = False
    purge: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """Enable and (re)start a unit; then it, and all of the node that worked before, must work for some seconds. Otherwise
    the files that this run changed for it (`guards`) are restored, and it is restarted if it had worked before."""

    unit: str
    why: str
    enable: bool = False
    restart: bool = False
    guards: tuple[str, ...] = ()
    note: str = ""  # what else the restart touches: containers, GPU users
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class KernelModule:
    """Unload, then load, modules by name in the order given. `services`: units of the driver's own daemons, which an
    unload stops and a load starts again."""

    why: str
    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class LoadImage:
    """Load an image archive of this machine into the node's container runtime."""

    reference: str
    image_id: str
    archive: str
    runtime: Runtime
    why: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class InstallDriver:
    """Install a driver by NVIDIA's own installer, whose file has this SHA-256. `beside`: while another driver holds the GPUs;
    nothing is loaded, and a reboot follows."""

    version: str
    sha256: str
    flavour: Literal["open", "proprietary"]
    why: str
    archive: str | None = None  # of this machine
    url: str | None = None  # that the host fetches
    beside: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class UninstallDriver:
    """Remove the driver that NVIDIA's own installer brought."""

    version: str
    why: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Reboot:
    """Restart the machine; the run continues when its boot id has changed. `ends`: users of the GPUs (pids, and UIDs of
    pods) that it was planned with; one that came since prevents it. None: it ends whoever is there."""

    why: str
    ends: tuple[str, ...] | None = None
    fault: str | None = None


Change: TypeAlias = (
    WriteFile
    | RemoveFile
    | Packages
    | Service
    | KernelModule
    | LoadImage
    | InstallDriver
    | UninstallDriver
    | Reboot
)

# --- The kubelet's start: how a host's files would start it ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where one kind of kubelet keeps what it is started with."""

    unit: str
    config: str  # its configuration file where its command names none
    variable: str  # takes arguments of the user's own
    variable_files: tuple[str, ...]  # where the packages expect that variable, the preferred one first
    files: tuple[str, ...]  # other environment files
    drop_in: str  # is written where no file can set the variable


@dataclass(frozen=True, slots=True)
class UnitSetting:
    """One setting of [Service]. `start` and `stop` are where its value's text begins and ends, continued lines included."""

    key: str
    value: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KubeletStart:
    """What systemd would start now. `words`: the program and its arguments, () where it can start none."""

    place: Place
    words: tuple[str, ...]
    variables: Mapping[str, str]
    setters: Mapping[str, str]  # the file that each variable's value comes from
    command: tuple[str, UnitSetting] | None  # the ExecStart= that counts, and its file
    units: tuple[
        str, ...
    ]  # files of unit and drop-ins, in the order in which they are read; so are the two below
    environment_files: tuple[str, ...]
    config_files: tuple[str, ...]
    config_path: str  # the main one, there or not
    config: Mapping[str, Any]
    config_gates: Mapping[str, bool]
    gates: Mapping[str, bool]  # of configuration and arguments together
    problem: str | None  # a mistake in one of the files, as `file:line: cause`


# --- Desired and Plan --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriverWish:
    """The driver that fits this host's GPUs."""

    branch: int
    flavour: Literal["open", "proprietary"]
    version: str  # in full (580.178.04) where the inventory names it; "": any of the branch
    pin: tuple[PackageSpec, ...]  # installed first: what keeps the package system on this branch
    headers: tuple[PackageSpec, ...]  # of the kernel: only building a module needs them
    packages: tuple[PackageSpec, ...]  # the driver's own
    why: str
    ahead: str = ""  # the kernel of the next boot, where it has no nvidia module
    ahead_headers: tuple[PackageSpec, ...] = ()  # which dkms builds one with
    fabric: tuple[PackageSpec, ...] = ()  # parts of exactly the driver's version: fabric manager, IMEX …
    switches: bool = False  # has NVSwitches, whose fabric manager must run
    run: RunFile | None = None  # installs it in place of packages
    archive: bool = False  # the packages are the distribution's own
    modules: tuple[
        PackageSpec, ...
    ] = ()  # its signed ones: of the running kernel, then what brings the newest
    replaces: tuple[str, ...] = ()  # packages of another driver, which make way first


@dataclass(frozen=True, slots=True)
class Source:
    """A package repository to be known to the host, with the key that signs it."""

    name: str  # of its files below sources.list.d or yum.repos.d, without ending
    uri: str
    key: str


@dataclass(frozen=True, slots=True)
class Desired:
    """What is right for one host, decided from its wishes, its facts and the compat tables."""

    runtime: Runtime
    runtime_mode: Literal["default", "class", "none"]
    gates: Mapping[str, bool | None]  # None: must not be set
    gate_reasons: Mapping[str, str]
    driver: DriverWish | None = None
    toolkit: tuple[PackageSpec, ...] = ()
    sources: tuple[Source, ...] = ()
    image: PluginImage | None = None
    notes: tuple[str, ...] = ()
    kubelet: KubeletStart | None = None  # how it would be started now: what the gates were decided on


@dataclass(frozen=True, slots=True)
class Choice:
    """A part of the decision: what was chosen, and the wish or the fact that decided."""

    code: Literal[
        "system",
        "gpu",
        "repository",
        "branch",
        "modules",
        "headers",
        "fabric",
        "toolkit",
        "runtime",
        "kubelet",
        "gate",
    ]
    chosen: str
    why: str


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One component's part of a plan: the changes it wants, in order; () when it is right."""

    step: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What would change on one host, in the order it would be done."""

    host: str
    steps: tuple[StepPlan, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes in order."""
        return tuple(change for step in self.steps for change in step.changes)

    def __bool__(self) -> bool:
        """True when something would change."""
        return any(step.changes for step in self.steps)


# --- What a plan disturbs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What changes interrupt on their host. `restarts`: units, in order. `modules`: kernel modules are unloaded.
    `packages`: those of the driver that change, so that programs which start meanwhile find libraries that do not fit the
    loaded module."""

    reboot: bool = False
    restarts: tuple[str, ...] = ()
    modules: bool = False
    packages: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people: `reboot, restart of docker and kubelet, reload of the modules, driver packages`."""
        units = " and ".join(unit.removesuffix(".service") for unit in self.restarts)
        found = [
            "reboot" if self.reboot else "",
            f"restart of {units}" if units else "",
            "reload of the modules" if self.modules else "",
            "driver packages" if self.packages else "",
        ]
        return ", ".join(filter(None, found))

    def __bool__(self) -> bool:
        """True if anything that runs on the host may notice."""
        return self.reboot or self.modules or bool(self.packages) or bool(self.restarts)

    @property
    def ends_gpu_work(self) -> bool:
        """True if processes that use the GPUs cannot go on through it."""
        return self.reboot or self.modules or bool(self.packages) or "docker.service" in self.restarts


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What a plan interrupts, and whose work that is. `work`: what becomes of it first, where pods are known with a cordon
    of their node; `stays`: it goes on. `timeout`: seconds that it is waited for. `pods`: those of the node but DaemonSets', and how many GPUs or shares each asks for;
    None: not known. `users`: processes that use the GPUs, but the driver's own daemons."""

    what: Disturbance
    work: Literal["wait", "drain", "kill", "stays"] = "stays"
    timeout: float = 0.0
    pods: Mapping[str, int] | None = None
    users: tuple[GpuUser, ...] = ()

    @property
    def processes(self) -> tuple[GpuUser, ...]:
        """Those outside Kubernetes; all where pods are not known."""
        return tuple(one for one in self.users if one.pod is None or self.pods is None)

    @property
    def anybody(self) -> bool:
        """Whether work is interrupted, as far as known."""
        ended = self.what.ends_gpu_work and bool(self.processes)
        return bool(self.what) and (self.pods is None or bool(self.pods) or ended)


# --- Outcome and Event -------------------------------------------------------------------------------

Status: TypeAlias = Literal["right", "planned", "changed", "failed", "refused", "unreachable", "declined"]


Layer: TypeAlias = Literal[
    "ssh",  # only where the host's answer is missing or incomplete
    "PCI",
    "module",
    "library",
    "NVML",
    "toolkit",
    "runtime",
    "kubelet",
    "node",
    "plugin",
    "capacity",
    "pod",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one host's run ended. `plan` is what is left (or would be done); `error` and `hint` when it failed.

    `layer` is the link of verify's chain that a refusal is about. `disturbs`: what the plan interrupts, where that was asked.
    `install`: the program that can give the host the Python that it does not have.
    `code` is why a host is unreachable.
    """

    host: str
    status: Status
    facts: Facts | None = None
    desired: Desired | None = None
    plan: Plan | None = None
    applied: tuple[Change, ...] = ()
    error: str | None = None
    hint: str = ""
    layer: Layer | None = None
    seconds: float = 0.0
    disturbs: Disturbed | None = None
    install: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain from the PCI bus to a pod that passed. `unknown`: it was not checked."""

    layer: Layer
    status: Literal["ok", "broken", "unknown"]
    text: str
    cause: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run, for the live view and the JSON lines. `data` is plain JSON."""

    type: str  # stage | change | progress | outcome | link | summary | …
    host: str | None = None
    message: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


OnEvent: TypeAlias = Callable[[Event], None]
