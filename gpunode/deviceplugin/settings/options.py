"""The plugin's options: the field of Config that each one sets, its names, and how its text is parsed. Pure.

The names are those of NVIDIA's device plugin: as a flag, in the environment, in the file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from .config import Config

# Flags of NVIDIA's plugin that have no meaning here; `configfile.IGNORED` has the keys.
PASSED_OVER = (
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
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its field in Config, its names, and its choices."""

    field: str
    help: str
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # besides the field's name
    env: tuple[str, ...] = ()  # besides the field's name in capitals
    key: str = ""  # in the file; "": not in the file

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def kind(self) -> str:
        return next(str(f.type) for f in fields(Config) if f.name == self.field)


OPTIONS = (
    Option(
        "mig_strategy", "how MIG devices are offered", ("none", "single", "mixed"), key="flags.migStrategy"
    ),
    Option(
        "fail_on_init_error",
        "exit when NVML cannot be used; false: log the reason, wait, retry",
        key="flags.failOnInitError",
    ),
    Option(
        "device_list_strategy",
        "how a container gets its devices; a list",
        STRATEGIES,
        key="flags.plugin.deviceListStrategy",
    ),
    Option(
        "device_id_strategy",
        "how a container's devices are named",
        ("uuid", "index"),
        key="flags.plugin.deviceIDStrategy",
    ),
    Option(
        "pass_device_specs", "also hand the device nodes to the kubelet", key="flags.plugin.passDeviceSpecs"
    ),
    Option(
        "nvidia_driver_root",
        "where the driver is on the host",
        flags=("driver-root",),
        env=("DRIVER_ROOT",),
        key="flags.nvidiaDriverRoot",
    ),
    Option(
        "nvidia_dev_root",
        "where the driver's /dev is on the host (default: the driver root)",
        flags=("dev-root",),
        env=("DEV_ROOT",),
        key="flags.nvidiaDevRoot",
    ),
    Option("gdrcopy_enabled", "give containers GDRCopy", key="flags.gdrcopyEnabled"),
    Option("gds_enabled", "give containers GPUDirect Storage", key="flags.gdsEnabled"),
    Option("mofed_enabled", "give containers the Mellanox OFED devices", key="flags.mofedEnabled"),
    Option(
        "shared_devices_allocation_policy",
        "which shared devices to prefer",
        ("distributed", "packed"),
        key="flags.plugin.sharedDevicesAllocationPolicy",
    ),
    Option(
        "cdi_annotation_prefix",
        "of the annotations of cdi-annotations",
        key="flags.plugin.cdiAnnotationPrefix",
    ),
    Option(
        "cdi_directory",
        "where the toolkit's CDI specification is, and the plugin's goes",
        key="flags.plugin.cdiDirectory",
    ),
    Option(
        "mps_root",
        "where the MPS control daemons have their files, on the host and in containers",
        key="flags.mpsRoot",
    ),
    Option("kubelet_socket", "the kubelet's registration socket", key="flags.plugin.kubeletSocket"),
    Option("config_file", "a YAML file with NVIDIA's keys; reloaded on SIGHUP and when it changes"),
    Option(
        "config_dir",
        "a directory with several of them, of which the node's label nvidia.com/device-plugin.config names one; "
        "needs the right to watch nodes",
        env=("CONFIG_FILE_SRCDIR",),
        flags=("config-file-srcdir",),
    ),
    Option("default_config", "the one of --config-dir for nodes without the label"),
    Option("health_interval", "seconds between two probes of a GPU", key="flags.plugin.healthInterval"),
    Option(
        "recovery_seconds",
        "seconds without a problem before an Unhealthy GPU is Healthy again",
        key="flags.plugin.recoverySeconds",
    ),
    Option(
        "metrics_address",
        "[host]:port for /metrics, /healthz and /readyz (default: none)",
        key="flags.plugin.metricsAddress",
    ),
    Option(
        "probe_address",
        "[host]:port for /healthz, /readyz and /gpus, which `gpunode status` reads (default: none)",
    ),
    Option(
        "pod_resources_socket",
        "the kubelet's pod-resources socket: to reserve what pods use by an earlier configuration, and for /metrics "
        "(default: none)",
    ),
    Option("node_name", "this node's name in Kubernetes (in a pod: the field spec.nodeName)"),
    Option(
        "node_events",
        "publish GPU events about the node; needs the right to create and patch events in `default`",
    ),
    Option(
        "node_annotation", "publish the status in an annotation of the node; needs the right to patch nodes"
    ),
    Option(
        "follow_promises",
        "for the scheduler extender: publish each GPU's memory in an annotation of the node, and allocate the GPU that a pod "
        "was promised; needs the right to patch nodes, and to list and watch pods",
    ),
    Option("service_account_directory", "where the token and the CA for the API server are"),
    Option("log_level", "what is logged", ("debug", "info", "warning", "error"), key="flags.plugin.logLevel"),
)


def parse(option: Option, text: str) -> Any:
    """The value of `text` for `option`. Raises ValueError with the problem."""
    if option.kind == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in ("true", "1")
    if option.kind == "float":
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
    several = option.kind.startswith("tuple")
    words = [word.strip() for word in text.split(",")] if several else [text]
    for word in words:
        if option.choices and word not in option.choices:
            near = get_close_matches(word.lower(), option.choices, 1)
            meant = f"; is {near[0]} meant?" if near else ""
            raise ValueError(f"{word!r} is not one of {', '.join(option.choices)}{meant}")
    return tuple(dict.fromkeys(words)) if several else text
