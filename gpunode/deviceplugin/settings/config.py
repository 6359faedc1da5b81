"""The plugin's configuration as values. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

GPU = "nvidia.com/gpu"
GPU_MEM = "aliyun.com/gpu-mem"  # gpushare's names
GPU_COUNT = "aliyun.com/gpu-count"
LABEL = (
    "nvidia.com/device-plugin.config"  # NVIDIA's node label: which of several configurations the node uses
)
CDI = frozenset({"cdi-annotations", "cdi-cri"})  # the device list strategies that use it
DEFAULT = "default"  # the one for nodes without the label


LONGEST = 600  # characters of a mistake: a value of thousands is not repeated whole


class BadConfig(Exception):
    """An invalid configuration; each mistake names the place and what was expected."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(
            one if len(one) <= LONGEST else f"{one[: LONGEST // 2]} … {one[-LONGEST // 2 :]}"
            for one in mistakes
        )
        super().__init__("; ".join(self.mistakes))


class Contradiction(BadConfig):
    """Settings that exclude each other. `key` is the file's key of the setting to check first."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key}: {what}")
        self.key, self.what = key, what


@dataclass(frozen=True, slots=True)
class Share:
    """Every device of a resource is offered `replicas` times: by time-slicing, or by MPS with limits."""

    resource: str
    replicas: int
    rename: str  # the resource that the shares are offered as
    devices: tuple[str, ...] = ()  # indexes or UUIDs; () means all
    mps: bool = False
    memory: int | None = None  # MiB that one MPS client may have; None: an equal part
    threads: int | None = None  # percent of the GPU's threads that it may have; None: an equal part


@dataclass(frozen=True, slots=True)
class MemorySharing:
    """GPUs are offered in pieces of their memory."""

    resource: str = GPU_MEM  # that the pieces are offered as
    chunk: int = 1024  # MiB that a unit stands for
    devices: tuple[str, ...] = ()  # indexes or UUIDs; () means all
    packed: bool = True  # fill one GPU before the next; else spread


@dataclass(frozen=True, slots=True)
class Config:
    """The plugin's configuration."""

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    device_list_strategy: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = False
    nvidia_driver_root: str = "/"
    nvidia_dev_root: str = ""  # "": the driver root
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    shared_devices_allocation_policy: str = "distributed"
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    config_file: str = ""
    config_dir: str = ""
    default_config: str = ""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_directory: str = "/var/run/cdi"
    mps_root: str = "/run/nvidia/mps"
    health_interval: float = 10.0
    recovery_seconds: float = 60.0
    metrics_address: str = ""
    probe_address: str = ""
    pod_resources_socket: str = ""
    node_name: str = ""
    node_events: bool = False
    node_annotation: bool = False
    follow_promises: bool = False
    service_account_directory: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    log_level: str = "info"
    shares: tuple[Share, ...] = ()
    fail_requests_greater_than_one: bool = False
    memory: MemorySharing | None = None

    def __post_init__(self) -> None:
        """Raises Contradiction if settings exclude each other."""
        if self.mps and self.mig_strategy == "mixed":
            raise Contradiction(
                "sharing.mps", "MPS is for whole GPUs; it cannot be had with the MIG strategy mixed"
            )
        if self.mps and not self.mps_root.startswith("/"):
            raise Contradiction("flags.mpsRoot", f"expected a path from / on, found {self.mps_root!r}")
        ports = [one.rpartition(":")[2] for one in (self.metrics_address, self.probe_address) if one]
        if len(ports) == 2 and ports[0] == ports[1]:
            raise Contradiction(
                "flags.plugin.metricsAddress",
                f"port {ports[0]} cannot be had twice; --probe-address (PROBE_ADDRESS) has it",
            )

    def packs(self, resource: str) -> bool:
        """True if shares of one GPU are allocated before those of the next GPU."""
        if self.memory is not None and resource == self.memory.resource:
            return self.memory.packed
        return self.shared_devices_allocation_policy == "packed"

    @property
    def dev_root(self) -> str:
        """Where the host's device nodes are, without a slash at the end."""
        return (self.nvidia_dev_root or self.nvidia_driver_root).rstrip("/")

    @property
    def mps(self) -> bool:
        """Whether any GPU is shared by MPS."""
        return any(share.mps for share in self.shares)

    @property
    def cdi(self) -> bool:
        """True if containers get their devices by CDI."""
        return bool(CDI & set(self.device_list_strategy))

    @property
    def features(self) -> tuple[str, ...]:
        """The enabled optional features, by the NVIDIA Container Toolkit's names."""
        enabled = {"gdrcopy": self.gdrcopy_enabled, "gds": self.gds_enabled, "mofed": self.mofed_enabled}
        return tuple(name for name, wanted in enabled.items() if wanted)


def file_word(resource: str) -> str:
    """A resource's unique name for files and annotations: without the domain nvidia.com, as in NVIDIA's plugin."""
    domain, _, name = resource.partition("/")
    return name if domain == "nvidia.com" else f"{domain}_{name}"


def choice(names: Collection[str], label: str, default: str = "") -> str:
    """The name of a node's configuration, by its label; "" for none. `names` need not contain it.

    As in NVIDIA's config-manager: the label's name; without a label the name in `default`, else the configuration
    called `default`, else the only one, else none.
    """
    if label or default:
        return label or default
    return DEFAULT if DEFAULT in names else next(iter(names)) if len(names) == 1 else ""
