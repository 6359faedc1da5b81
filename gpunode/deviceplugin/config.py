"""The plugin's configuration: flags, over environment, over file, over defaults.

The names are those of NVIDIA's device plugin, in all three places.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


class BadConfig(Exception):
    """A configuration that cannot be used; names the place and what was expected."""


@dataclass(frozen=True, slots=True)
class Share:
    """Every device of a resource is handed out `replicas` times over (time-slicing)."""

    resource: str
    replicas: int
    rename: str  # the resource that the shares are offered as
    devices: tuple[str, ...] = ()  # indexes or UUIDs; () means all


@dataclass(frozen=True, slots=True)
class Config:
    """What the plugin was asked to do."""

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
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    health_interval: float = 10.0
    recovery_seconds: float = 60.0
    metrics_address: str = ""
    log_level: str = "info"
    shares: tuple[Share, ...] = ()
    fail_requests_greater_than_one: bool = False

    @property
    def dev_root(self) -> str:
        """Where the host's device nodes are, without a slash at the end."""
        return (self.nvidia_dev_root or self.nvidia_driver_root).rstrip("/")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its field in Config, the names it goes by, and how its text is read."""

    field: str
    help: str
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # besides the field's name
    env: tuple[str, ...] = ()  # besides the field's name in capitals
    key: str = ""  # in the file; "" where NVIDIA's file has no such key and neither has ours

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
        "exit when NVML cannot be used; false: say why, wait, try again",
        key="flags.failOnInitError",
    ),
    Option(
        "device_list_strategy",
        "how a container is told its devices; a list",
        STRATEGIES,
        key="flags.plugin.deviceListStrategy",
    ),
    Option(
        "device_id_strategy",
        "by what a container is told its devices",
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
    Option("gdrcopy_enabled", "set NVIDIA_GDRCOPY=enabled in containers", key="flags.gdrcopyEnabled"),
    Option("gds_enabled", "set NVIDIA_GDS=enabled in containers", key="flags.gdsEnabled"),
    Option("mofed_enabled", "set NVIDIA_MOFED=enabled in containers", key="flags.mofedEnabled"),
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
    Option("kubelet_socket", "the kubelet's registration socket"),
    Option("config_file", "a YAML file with NVIDIA's keys; read again on SIGHUP and when it changes"),
    Option("health_interval", "seconds between two looks at a GPU"),
    Option("recovery_seconds", "seconds without trouble before an Unhealthy GPU is Healthy again"),
    Option("metrics_address", "[host]:port for /metrics, /healthz and /readyz (default: none)"),
    Option("log_level", "what is logged", ("debug", "info", "warning", "error")),
)


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration. Raises BadConfig; `--help` and unknown flags end the process as argparse does."""
    flags = vars(_parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text, place = flags[option.field], option.flag
        if text is None:
            names = (option.field.upper(), *option.env)
            place = next((name for name in names if environ.get(name)), "")
            text = environ[place] if place else None
        if text is not None:
            values[option.field] = parse(option, place, text)
    if path := values.get("config_file"):
        from . import configfile  # PyYAML only where there is a file

        values = {**configfile.read(Path(path)), **values}
    return Config(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpunode.deviceplugin",
        description="Offers this node's NVIDIA GPUs to the kubelet. Each option can be set in the environment too, "
        "in capitals with underscores, and in --config-file; a flag wins over the environment, that over the file.",
        epilog="example: python -m gpunode.deviceplugin --mig-strategy=mixed --fail-on-init-error=false",
    )
    for option in OPTIONS:
        names = (option.flag, *(f"--{flag}" for flag in option.flags))
        if option.kind == "bool":
            parser.add_argument(
                *names, dest=option.field, nargs="?", const="true", metavar="BOOL", help=option.help
            )
        else:
            metavar = "{" + ",".join(option.choices) + "}" if option.choices else None
            parser.add_argument(*names, dest=option.field, metavar=metavar, help=option.help)
    return parser


def parse(option: Option, place: str, text: str) -> Any:
    """The value that `text`, found at `place`, means for `option`. Raises BadConfig."""
    if option.kind == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise BadConfig(f"{place}: {text!r} is neither true nor false")
        return text.lower() in ("true", "1")
    if option.kind == "float":
        try:
            number = float(text)
        except ValueError:
            number = -1
        if not 0 < number < 1e9:
            raise BadConfig(f"{place}: {text!r} is not a number of seconds")
        return number
    several = option.kind.startswith("tuple")
    words = [word.strip() for word in text.split(",")] if several else [text]
    for word in words:
        if option.choices and word not in option.choices:
            raise BadConfig(f"{place}: {word!r} is not one of {', '.join(option.choices)}")
    return tuple(dict.fromkeys(words)) if several else text
