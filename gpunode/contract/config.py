"""The plugin's configuration as values, and the options that set them. Pure.

The options' names are those of NVIDIA's device plugin: as a flag, in the environment, in the file.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")

GPU = "nvidia.com/gpu"
GPU_MEM = "aliyun.com/gpu-mem"  # gpushare's names
GPU_COUNT = "aliyun.com/gpu-count"
# NVIDIA's node label: which of several configurations the node uses
LABEL = "nvidia.com/device-plugin.config"
CDI = frozenset({"cdi-annotations", "cdi-cri"})  # the device list strategies that use it
DEFAULT = "default"  # the one for nodes without the label


LONGEST = 600  # characters of a mistake: a value of thousands is not repeated whole


class BadConfig(Exception):
    """An invalid configuration; each mistake names the place and what was expected."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(
            mistake if len(mistake) <= LONGEST else f"{mistake[: LONGEST // 2]} … {mistake[-LONGEST // 2 :]}"
            for mistake in mistakes
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
class Option:
    """How a field of Config is set: its type, the help, its names and choices."""

    field: str
    kind: Any
    help: str
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # besides the field's name
    env: tuple[str, ...] = ()  # besides the field's name in capitals
    key: str = ""  # in the file; "": not in the file

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")


def _option(default: T, help: str, **more: str | tuple[str, ...]) -> T:
    """A field of Config that flags, environment or file set; `more`: fields of its Option."""
    setting: T = field(default=default, metadata={"help": help, **more})
    return setting


@dataclass(frozen=True, slots=True)
class Config:
    """The plugin's configuration."""

    mig_strategy: str = _option(
        "none", "how MIG devices are offered", choices=("none", "single", "mixed"), key="flags.migStrategy"
    )
    fail_on_init_error: bool = _option(
        True, "exit when NVML cannot be used; false: log the reason, wait, retry", key="flags.failOnInitError"
    )
    device_list_strategy: tuple[str, ...] = _option(
        ("envvar",),
        "how a container gets its devices; a list",
        choices=("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
        key="flags.plugin.deviceListStrategy",
    )
    device_id_strategy: str = _option(
        "uuid",
        "how a container's devices are named",
        choices=("uuid", "index"),
        key="flags.plugin.deviceIDStrategy",
    )
    pass_device_specs: bool = _option(
        False, "also hand the device nodes to the kubelet", key="flags.plugin.passDeviceSpecs"
    )
    nvidia_driver_root: str = _option(
        "/",
        "where the driver is on the host",
        flags=("driver-root",),
        env=("DRIVER_ROOT",),
        key="flags.nvidiaDriverRoot",
    )
    nvidia_dev_root: str = _option(
        "",
        "where the driver's /dev is on the host (default: the driver root)",
        flags=("dev-root",),
        env=("DEV_ROOT",),
        key="flags.nvidiaDevRoot",
    )
    gdrcopy_enabled: bool = _option(False, "give containers GDRCopy", key="flags.gdrcopyEnabled")
    gds_enabled: bool = _option(False, "give containers GPUDirect Storage", key="flags.gdsEnabled")
    mofed_enabled: bool = _option(
        False, "give containers the Mellanox OFED devices", key="flags.mofedEnabled"
    )
    shared_devices_allocation_policy: str = _option(
        "distributed",
        "which shared devices to prefer",
        choices=("distributed", "packed"),
        key="flags.plugin.sharedDevicesAllocationPolicy",
    )
    cdi_annotation_prefix: str = _option(
        "cdi.k8s.io/", "of the annotations of cdi-annotations", key="flags.plugin.cdiAnnotationPrefix"
    )
    cdi_directory: str = _option(
        "/var/run/cdi",
        "where the toolkit's CDI specification is, and the plugin's goes",
        key="flags.plugin.cdiDirectory",
    )
    mps_root: str = _option(
        "/run/nvidia/mps",
        "where the MPS control daemons have their files, on the host and in containers",
        key="flags.mpsRoot",
    )
    kubelet_socket: str = _option(
        "/var/lib/kubelet/device-plugins/kubelet.sock",
        "the kubelet's registration socket",
        key="flags.plugin.kubeletSocket",
    )
    config_file: str = _option("", "a YAML file with NVIDIA's keys; reloaded on SIGHUP and when it changes")
    config_dir: str = _option(
        "",
        "a directory with several; the node's label nvidia.com/device-plugin.config selects one; needs the right to watch nodes",
        env=("CONFIG_FILE_SRCDIR",),
        flags=("config-file-srcdir",),
    )
    default_config: str = _option("", "the one of --config-dir for nodes without the label")
    health_interval: float = _option(
        10.0, "seconds between two probes of a GPU", key="flags.plugin.healthInterval"
    )
    recovery_seconds: float = _option(
        60.0,
        "seconds without a problem before an Unhealthy GPU is Healthy again",
        key="flags.plugin.recoverySeconds",
    )
    metrics_address: str = _option(
        "",
        "[host]:port for /metrics, /healthz and /readyz (default: none)",
        key="flags.plugin.metricsAddress",
    )
    probe_address: str = _option(
        "", "[host]:port for /healthz, /readyz and /gpus, which `gpunode status` reads (default: none)"
    )
    pod_resources_socket: str = _option(
        "",
        "the kubelet's pod-resources socket: to reserve what pods use by an earlier configuration, and for /metrics "
        "(default: none)",
    )
    node_name: str = _option("", "this node's name in Kubernetes (in a pod: the field spec.nodeName)")
    node_events: bool = _option(
        False, "publish GPU events about the node; needs the right to create and patch events in `default`"
    )
    node_annotation: bool = _option(
        False, "publish the status in an annotation of the node; needs the right to patch nodes"
    )
    node_condition: bool = _option(
        False, "write the node's condition GpuReady; needs the right to patch the status of nodes"
    )
    follow_promises: bool = _option(
        False,
        "for the scheduler extender: publish each GPU's memory in an annotation of the node, and allocate the GPU that a pod "
        "was promised; needs the right to patch nodes, and to list and watch pods",
    )
    service_account_directory: str = _option(
        "/var/run/secrets/kubernetes.io/serviceaccount", "where the token and the CA for the API server are"
    )
    log_level: str = _option(
        "info", "what is logged", choices=("debug", "info", "warning", "error"), key="flags.plugin.logLevel"
    )
    shares: tuple[Share, ...] = ()
    fail_requests_greater_than_one: bool = False
    memory: MemorySharing | None = None

    def __post_init__(self) -> None:
        """Raises Contradiction if settings exclude each other."""
        if self.mps and self.mig_strategy == "mixed":
            raise Contradiction(
                "sharing.mps", "MPS is for whole GPUs: it does not work with the MIG strategy mixed"
            )
        if self.mps and not self.mps_root.startswith("/"):
            raise Contradiction("flags.mpsRoot", f"expected a path from / on, found {self.mps_root!r}")
        ports = [each.rpartition(":")[2] for each in (self.metrics_address, self.probe_address) if each]
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
        """True if any GPU is shared by MPS."""
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


def file_name(resource: str) -> str:
    """A resource's unique name for files and annotations: without the domain nvidia.com, as in NVIDIA's plugin."""
    domain, _, name = resource.partition("/")
    return name if domain == "nvidia.com" else f"{domain}_{name}"


def choose_name(names: Collection[str], label: str, default: str = "") -> str:
    """The name of a node's configuration, by its label; "" for none. `names` need not contain it.

    As in NVIDIA's config-manager: the label's name; without a label the name in `default`, else the configuration
    called `default`, else the only one, else none.
    """
    if label or default:
        return label or default
    return DEFAULT if DEFAULT in names else next(iter(names)) if len(names) == 1 else ""


# Flags of NVIDIA's plugin that have no meaning here; `config_file.IGNORED_KEYS` are the keys.
IGNORED_FLAGS = (
    "--device-discovery-strategy",
    "--driver-root-ctr-path",
    "--container-driver-root",
    "--nvidia-cdi-hook-path",
    "--nvidia-ctk-path",
    "--cdi-feature-flags",
    "--cdi-disable-hooks",
    "--use-node-feature-api",
    "--imex-required",  # only with channels, which are refused
)
LEAST = 0.1  # seconds; a shorter interval keeps a core busy


OPTIONS = tuple(
    Option(setting.name, setting.type, **setting.metadata) for setting in fields(Config) if setting.metadata
)


def meant(name: str, known: Sequence[str]) -> str:
    """`; is packed meant?` for the nearest of the known names; "" where none is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"; is {near[0]} meant?" if near else ""


def parse_option(option: Option, text: str) -> Any:
    """The value of `text` for `option`. Raises ValueError with the problem."""
    if option.kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in ("true", "1")
    if option.kind is float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < 1e9:
            raise ValueError(f"{text!r} is not a number of seconds")
        if number < LEAST:
            raise ValueError(f"expected at least {LEAST} seconds, found {text}")
        return number
    port = text.rpartition(":")[2]
    if (
        option.field.endswith("_address")
        and text
        and not (re.fullmatch("[0-9]{1,5}", port) and int(port) < 65536)
    ):
        raise ValueError(f"expected [host]:port, found {text!r}")
    several = option.kind == tuple[str, ...]
    values = [word.strip() for word in text.split(",")] if several else [text]
    for value in values:
        if option.choices and value not in option.choices:
            near = meant(value.lower(), option.choices)
            raise ValueError(f"{value!r} is not one of {', '.join(option.choices)}{near}")
    return tuple(dict.fromkeys(values)) if several else text
