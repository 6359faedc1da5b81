"""TOML files of a host as data: containerd's with the type of each value checked that is read of them."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from gpunode.errors import CannotPlan
from gpunode.links.runtime.typed import Kinds, check

if sys.version_info >= (3, 11):
    import tomllib

HINT = "Fix the file by hand (containerd reads it too), then run again; it was not touched."
# Where the CRI plugin's settings are, by the file's `version`; a file without one is version 1.
PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}

# The tables of a runtime, and what is read of them.
RUNTIME: Kinds = {
    (): "table",
    ("runtime_type",): "string",
    ("runtime_engine",): "string",
    ("runtime_root",): "string",
    ("options",): "table",
    ("options", "binaryname"): "string",
}
CRI: Kinds = {
    (): "table",
    ("systemd_cgroup",): "switch",
    ("cni",): "table",
    ("cni", "bin_dir"): "string",
    ("cni", "bin_dirs"): "strings",
    ("containerd",): "table",
    ("containerd", "no_pivot"): "switch",
    ("containerd", "default_runtime_name"): "string",
    **{("containerd", "default_runtime", *key): kind for key, kind in RUNTIME.items()},
    ("containerd", "runtimes"): "table",
    **{("containerd", "runtimes", "*", *key): kind for key, kind in RUNTIME.items()},
}
KINDS: Kinds = {
    ("version",): "number",
    ("imports",): "strings",
    ("disabled_plugins",): "strings",
    ("required_plugins",): "strings",
    ("plugins",): "table",
    ("plugins", "*"): "table",
    **{("plugins", name, *key): kind for name in PLUGINS.values() for key, kind in CRI.items()},
}


def parse(text: str, path: str, hint: str = HINT) -> dict[str, Any]:
    """The file as data."""
    text = text.removeprefix(
        "\ufeff"
    )  # containerd 1.x ignores it; the check on the host covers other versions
    try:
        if sys.version_info >= (3, 11):  # ten times as fast, which counts for the dumps of a fleet
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(text)
        return tomlkit.parse(text).unwrap()
    except ParseError as error:
        reason = re.sub(r"\s*at line \d+ col \d+$", "", str(error))
        reason = "the file ends too early" if "\\x00" in reason else reason
        # tomlkit calls the line's end, which the string runs into, a control character
        reason = "a string is not closed" if re.search(r"use \\u000[ad] instead", reason) else reason
        where = f"{path}:{error.line}:{error.col + 1}"
        raise CannotPlan(f"{path} does not parse\n{where}: not valid TOML: {reason}", hint=hint) from None
    except (TOMLKitError, ValueError) as error:  # ValueError: a number of more than 4300 digits
        raise CannotPlan(f"{path} does not parse\nnot valid TOML: {error}", hint=hint) from None
    except RecursionError:
        raise CannotPlan(f"{path} does not parse\nit is nested too deeply", hint=hint) from None


def read(text: str, path: str) -> dict[str, Any]:
    """A file of containerd's as data: of a known version, and each value that is read of its type."""
    data = parse(text, path)
    check(data, KINDS, text, path, HINT)
    if data.get("version", 1) not in PLUGINS:
        raise CannotPlan(
            f"{path}: `version = {data['version']}` is none that gpunode knows (1 to 4)",
            hint="Set `runtime: none` for this host and add the nvidia runtime by hand.",
        )
    return data
