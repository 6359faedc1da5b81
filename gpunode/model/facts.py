"""What a probe reads on a host, and the facts that it reports: nothing derived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpunode.wording import moment


@dataclass(frozen=True, slots=True)
class Watch:
    """Files (globs allowed), systemd units, package name patterns and image references a probe reports on. `mig`: and the profiles
    that GPUs can be cut into."""

    files: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Os:
    """From /etc/os-release: id `debian`, version `12`; arch `amd64`."""

    id: str
    version: str
    pretty: str
    arch: str = ""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function of NVIDIA's, or of a device that manages NVSwitches of NVLink 5, from /sys/bus/pci/devices. Hex without 0x."""

    address: str  # 0000:3b:00.0
    vendor: str  # 10de; 15b3
    device: str  # 15f8
    cls: str  # 030200
    driver: str | None = None  # the kernel driver bound to it: nvidia, nouveau, NovaCore, vfio-pci
    subsystem: str = ""  # device id of the card, or of a virtual machine's part of it
    width: int = 0  # PCIe lanes that its link has now; 0: not known, as in virtual machines


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
    memory_mib: int | None  # None: it shares the host's
    mig: tuple[MigDevice, ...] | None = ()  # None: not known, though MIG is on
    mig_on: bool = False
    mig_pending: bool = False
    mig_capable: bool = False
    profiles: tuple[str, ...] = ()  # of MIG, where they were asked for and the driver lists them
    fabric: str = ""  # on hosts with NVSwitches: `Completed, Success`; "": nvidia-smi does not say


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
    ctime: float | None = None  # of its last change of any kind: a package's file keeps its builder's mtime


@dataclass(frozen=True, slots=True)
class Trace:
    """What tells who wrote a file. `undone`: how often what gpunode wrote there was changed by another. `packaged`: it is as its
    package installed it."""

    path: str
    uid: int = 0
    run: str = ""  # gpunode's last one that wrote it
    wrote: str | None = None  # the SHA-256 of its text
    undone: int = 0
    package: str = ""
    packaged: bool = False


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
    pod's namespace/name, else the container's. `gpus`: PCI addresses of its open GPUs, as far as known."""

    pid: int
    command: str
    container: str | None = None
    pod: str | None = None
    name: str | None = None
    gpus: tuple[str, ...] = ()

    @property
    def is_plugin(self) -> bool:
        """True for gpunode's own device plugin, by its pod's name: it makes way, and is no work."""
        return "/gpunode-device-plugin-" in (self.name or "")

    def __str__(self) -> str:
        """For people: `python3 (pid 4242, pod ml/train)`."""
        if self.is_plugin:
            return "gpunode's device plugin"
        where = ""
        if self.pod:
            where = f", pod {self.name or self.pod}"
        elif self.container:
            where = f", container {self.name or self.container[:12]}"
        return f"{self.command} (pid {self.pid}{where})"


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A running container that was given GPUs. `devices`: its device files. `lost`: those that its device cgroup refuses; None:
    this host cannot tell."""

    container: str
    pod: str | None
    name: str | None
    devices: tuple[str, ...]
    lost: tuple[str, ...] | None


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
    """An apply that still runs on the host, or ended after its connection was lost."""

    run: str
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A restart that an earlier apply kept, though gpunode could not connect to the host after it. `code`: why it was kept."""

    code: Literal["api-server-answered"]
    run: str
    unit: str
    by: str
    since: float

    def __str__(self) -> str:
        """For people."""
        return (
            f"unconfirmed: after the restart of {self.unit} by {self.by} at {moment(self.since)} gpunode did not connect again; it was "
            "kept, as the API server answered"
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts from one probe of one host, at `time` (seconds since the epoch, the host's clock)."""

    time: float
    hostname: str
    os: Os
    kernel: str
    boot_id: str
    uptime: float = 0.0  # seconds; where it could not be read, `errors` has it
    cgroup: Literal["v1", "hybrid", "v2"] = "v1"
    secure_boot: bool | None = None
    pci: tuple[PciDevice, ...] = ()
    modules: Mapping[str, Module] = field(default_factory=dict)
    module_banner: str | None = None  # first line of /proc/driver/nvidia/version
    library_version: str | None = None  # suffix of the file behind libnvidia-ml.so.1
    gpus: tuple[Gpu, ...] = ()
    smi_error: str | None = None  # nvidia-smi's message when it failed
    packages: Mapping[str, Package] = field(default_factory=dict)
    files: Mapping[str, File] = field(default_factory=dict)
    traces: Mapping[str, Trace] = field(default_factory=dict)  # of the files that exist
    holds: Mapping[str, str] = field(default_factory=dict)  # package -> gpunode's apply that held it
    units: Mapping[str, Unit] = field(default_factory=dict)
    docker: Docker | None = None
    containerd: Containerd | None = None
    kubelet: Kubelet | None = None
    gpu_users: tuple[GpuUser, ...] = ()
    gpu_containers: tuple[GpuContainer, ...] = ()
    containers: int | None = None  # and virtual machines, that have processes; None: not known
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # runtime -> reference -> image id
    stopped: tuple[str, ...] = ()  # units that an apply has stopped since the boot, and not started again
    running: Run | None = None
    unconfirmed: tuple[Unconfirmed, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)  # section (`mig` too) -> why it could not be read
    machine_id: str = ""  # of /etc/machine-id; "" where it is not known
    product_uuid: str = ""  # of the firmware
    installed_run: InstalledRun | None = None
    half_installed: tuple[str, ...] = ()  # packages that dpkg has unpacked and not configured
    # Of systemd, nvidia-ctk, and each runc by its path.
    versions: Mapping[str, str] = field(default_factory=dict)
    unlinked: tuple[str, ...] = ()  # NVIDIA's device files that have no link in /dev/char
    kernels: Mapping[str, bool] = field(default_factory=dict)  # that can be booted -> has an nvidia module
    boot_default: str | None = ""  # the kernel that the boot loader starts; "": its newest; None: not known
    # Of the running kernel that are nvidia's: updates/dkms/nvidia-current.ko.xz.
    module_files: tuple[str, ...] = ()
