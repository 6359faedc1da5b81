"""One machine as the inventory describes it, the cluster, and the inventory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpunode.model.change import Flavour, Layout


@dataclass(frozen=True, slots=True)
class Ssh:
    """How to reach a host; None leaves it to ~/.ssh/config. `jump` is `[user@]host[:port]`, or `none` to ignore that file's;
    `key` and `known_hosts` are paths on this machine."""

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
    """The user's own package repository (mirror, air gap). `key` is the armoured public key's text; `fingerprint`: the trusted
    one in full, "": none is given."""

    uri: str
    key: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class RunFile:
    """NVIDIA's own installer of one driver version, as `driver: {from: run}` names it. `archive` is a file of this machine;
    else the host fetches `url`. `flavour`: of the kernel module; None: the one that fits the GPUs."""

    version: str
    sha256: str
    archive: str | None = None
    url: str | None = None
    flavour: Flavour | None = None


@dataclass(frozen=True, slots=True)
class PythonBuild:
    """A standalone build of Python for hosts without one that is new enough: a .tar.gz with python/bin/python3."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ExpectedGpus:
    """The GPUs that a host has when all of them are there. `model`: whole words of their name, such as `H100`; "": any."""

    count: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class MigRule:
    """The MIG layout of a host's GPUs of one model: whole words of their name, "" for all. `layout` may be (`all-PROFILE`,). `place`: in the
    inventory, as `file:line:column: key`."""

    model: str
    layout: Layout
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine and its desired settings. `node` is its Kubernetes name where it differs from the host's own."""

    name: str
    ssh: Ssh
    groups: tuple[str, ...] = ()
    connection: Literal["ssh", "openssh", "local"] = "ssh"
    sudo: bool = True
    python: str = ""  # the agent's, as an absolute path; empty: looked for
    python_build: PythonBuild | None = None  # unpacked where there is none
    node: str | None = None
    gpus: ExpectedGpus | None = None  # None: those that are there
    mig: tuple[
        MigRule, ...
    ] = ()  # the first that fits a GPU counts; GPUs that none fits are left as they are
    driver: str = "auto"  # auto | none | a branch (580) | a full version (580.178.04)
    driver_run: RunFile | None = None  # what installs that version; None: packages
    # Whose packages, in place of others'; "": NVIDIA's, in place of none.
    driver_from: Literal["", "nvidia", "distribution"] = ""
    toolkit: str = "auto"  # auto | none | a version (1.20.1)
    runtime: Literal["default", "class", "none"] = "default"
    # Who gives pods the GPUs: the device plugin, or a DRA driver
    allocation: Literal["plugin", "dra"] = "plugin"
    isolation: bool = False  # containers get GPUs from the device plugin alone
    cdi: bool = False  # the device plugin hands devices out by CDI, from /var/run/cdi
    device_specs: bool = False  # it names their device files to the kubelet, too
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()  # of its node, as kubectl writes them: KEY=VALUE:EFFECT
    driver_repository: Repository | None = None
    toolkit_repository: Repository | None = None
    # The distribution's own RPMs, where its repositories are gone
    system_repository: Repository | None = None
    # What becomes of pods and processes that a change would end
    work: Literal["wait", "drain", "kill"] = "wait"
    work_timeout: float = 1800.0  # seconds until a host is skipped whose work has not ended
    taint_until_verified: bool = False  # its node takes no pods before its GPUs are proven
    feature_labels: bool = False  # of its node, as of GPU feature discovery
    accept_valid: float = 30 * 86400.0  # seconds for which an acceptance counts
    accept_required: bool = False  # a host without one that counts is broken
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
    mig: bool = False  # MIG devices are offered, on some node: the plugin needs the right to see them
    device_specs: bool = False  # the plugin names device files to the kubelet, too, on every node


@dataclass(frozen=True, slots=True)
class PluginPublish:
    """What the device plugin publishes. Each option needs additional RBAC rules or a port of the host."""

    events: bool = True  # about its node: a Role in the namespace `default`
    annotation: bool = False  # of its node: it may then change all nodes
    condition: bool = False  # GpuReady of its node: it may then change the status of all nodes
    metrics: bool = False  # on port 9400, with the pods that have GPUs
    promises: bool = False  # follows the scheduler extender: may change all nodes, list and watch all pods


@dataclass(frozen=True, slots=True)
class SecondScheduler:
    """A kube-scheduler beside the cluster's own, for pods with its `name` in `schedulerName`."""

    image: str
    name: str = "gpunode"


@dataclass(frozen=True, slots=True)
class Share:
    """How the scheduler extender shares GPUs by memory. `scheduler`: the one that asks it; None: the cluster's own."""

    policy: Literal["packed", "distributed"] = "packed"
    resource: str = "aliyun.com/gpu-mem"
    scheduler: SecondScheduler | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the Kubernetes API is, and the plugin's image and configuration there."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "gpunode"
    plugin: PluginImage | None = None
    plugin_config: PluginConfig | None = None
    plugin_publish: PluginPublish = PluginPublish()
    share: Share | None = None
    max_tainted: int = 100  # percent of the GPU nodes that a run may have tainted until their proof


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
