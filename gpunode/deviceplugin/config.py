"""The plugin's configuration: flags, over environment, over defaults; names are those of NVIDIA's device plugin."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

STRATEGIES = ("envvar", "volume-mounts")


class BadConfig(Exception):
    """A configuration that cannot be used; names the place and what was expected."""


@dataclass(frozen=True, slots=True)
class Config:
    """What the plugin was asked to do."""

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    device_list_strategy: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    pass_device_specs: bool = False
    driver_root: str = "/"
    dev_root: str = ""
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    kubelet_socket: str = "/var/lib/kubelet/device-plugins/kubelet.sock"
    health_interval: float = 10.0
    recovery_seconds: float = 60.0
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its field in Config, the names it goes by, and how its text is read."""

    field: str
    help: str
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # besides the field's name
    env: tuple[str, ...] = ()  # besides the field's name in capitals


OPTIONS = (
    Option("mig_strategy", "how MIG devices are offered", choices=("none", "single", "mixed")),
    Option("fail_on_init_error", "exit when NVML cannot be used; false: say why, wait, try again"),
    Option("device_list_strategy", "how a container is told its devices; a list", choices=STRATEGIES),
    Option("device_id_strategy", "by what a container is told its devices", choices=("uuid", "index")),
    Option("pass_device_specs", "also hand the device nodes to the kubelet"),
    Option(
        "driver_root",
        "where the driver is on the host",
        flags=("nvidia-driver-root",),
        env=("NVIDIA_DRIVER_ROOT",),
    ),
    Option(
        "dev_root",
        "where the driver's /dev is on the host; default: the driver root",
        env=("NVIDIA_DEV_ROOT",),
    ),
    Option("gdrcopy_enabled", "set NVIDIA_GDRCOPY=enabled in containers"),
    Option("gds_enabled", "set NVIDIA_GDS=enabled in containers"),
    Option("mofed_enabled", "set NVIDIA_MOFED=enabled in containers"),
    Option("kubelet_socket", "the kubelet's registration socket"),
    Option("health_interval", "seconds between two looks at a GPU"),
    Option("recovery_seconds", "seconds without trouble before an Unhealthy GPU is Healthy again"),
    Option("log_level", "what is logged", choices=("debug", "info", "warning", "error")),
)


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration. Raises BadConfig; `--help` and unknown flags end the process as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m gpunode.deviceplugin",
        description="Offers this node's NVIDIA GPUs to the kubelet. Each option can be set in the environment too, "
        "in capitals with underscores; a flag wins over the environment.",
        epilog="example: python -m gpunode.deviceplugin --mig-strategy=mixed --fail-on-init-error=false",
    )
    for option in OPTIONS:
        name = option.field.replace("_", "-")
        parser.add_argument(
            f"--{name}",
            *(f"--{flag}" for flag in option.flags),
            dest=option.field,
            nargs="?" if _kind(option.field) == "bool" else None,
            const="true",
            metavar="|".join(option.choices).upper() or None,
            help=option.help,
        )
    flags = vars(parser.parse_args(arguments))
    values: dict[str, Any] = {}
    for option in OPTIONS:
        for name, text in (
            (f"--{option.field.replace('_', '-')}", flags[option.field]),
            *((env, environ.get(env)) for env in (option.field.upper(), *option.env)),
        ):
            if text is not None and (text or name.startswith("--")):
                values[option.field] = _parse(option, name, text)
                break
    values["dev_root"] = values.get("dev_root") or values.get("driver_root", "/")
    return Config(**values)


def _kind(field: str) -> str:
    return next(str(f.type) for f in fields(Config) if f.name == field)


def _parse(option: Option, place: str, text: str) -> Any:
    kind = _kind(option.field)
    if kind == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise BadConfig(f"{place}: {text!r} is neither true nor false")
        return text.lower() in ("true", "1")
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            raise BadConfig(f"{place}: {text!r} is not a number of seconds") from None
    words = [word.strip() for word in text.split(",")] if kind.startswith("tuple") else [text]
    for word in words:
        if option.choices and word not in option.choices:
            raise BadConfig(f"{place}: {word!r} is not one of {', '.join(option.choices)}")
    return tuple(words) if kind.startswith("tuple") else text
