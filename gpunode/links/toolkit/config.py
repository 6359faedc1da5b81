"""The toolkit's own configuration: whose devices a container gets, and the runtime that NVIDIA's starts.

github.com/NVIDIA/nvidia-container-toolkit, "accept-nvidia-visible-devices-*": a variable of the image or the pod then counts
only in privileged containers, and devices come by mounts that the kubelet adds, or by CDI.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.driver import archives
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.crio import USUAL, low_level
from gpunode.model import Change, Desired, Facts, Watch
from gpunode.planning import files, toml
from gpunode.planning.versions import branch_of, is_installed

FILE = nvidia.TOOLKIT_CONFIG
PRICE = (
    "isolation: an unprivileged container gets the GPUs that the device plugin allocated to it and no others; the price: "
    "NVIDIA_VISIBLE_DEVICES alone, `docker run --gpus` and plugins that set only that variable give it none"
)
TABLE = ("nvidia-container-runtime", "runtimes")
MODE = ("nvidia-container-runtime", "mode")

STRICT = {
    "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
    "accept-nvidia-visible-devices-as-volume-mounts": True,
}
KINDS: toml.Kinds = {
    **{(key,): "switch" for key in STRICT},
    MODE[:1]: "table",
    MODE: "string",
    TABLE: "strings",
}

WATCH = Watch(files=(FILE,))


def read(facts: Facts) -> dict[str, Any]:
    """The host's file; {} where there is none. Raises CannotPlan where it is not TOML or a value has another type."""
    return toml.read(files.text(facts, FILE) or "", FILE, KINDS, "NVIDIA's toolkit")


def mode(facts: Facts) -> str:
    """How NVIDIA's runtime gives containers their devices."""
    return str(toml.lookup(read(facts), MODE[:1]).get(MODE[1], "auto"))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Edit it where the wish or the runtime below needs that. It comes with the toolkit, so there may be none yet."""
    before = files.text(facts, FILE)
    if before is None and any(not is_installed(facts.packages, spec) for spec in desired.toolkit):
        return ()
    if before is None and desired.isolation and not desired.toolkit:
        raise CannotPlan(
            f"`isolation: true` needs {FILE}, which comes with the toolkit",
            hint="Let gpunode install the toolkit (`toolkit: auto`), or install it by hand.",
        )
    data, text, reasons = read(facts), before or "", []
    for key, value in STRICT.items() if desired.isolation else ():
        if data.get(key) is not value:
            text = with_key(text, key, value)
            reasons.append(PRICE)
    packages = {*facts.packages, *(spec.name for spec in (desired.driver.packages if desired.driver else ()))}
    scattered = sorted(name for name in packages if _scatters(facts, name))
    if scattered and mode(facts) == "auto":
        text = toml.put(text, MODE, "legacy")
        reasons.append(
            f"the libraries of {scattered[0]} do not lie beside libcuda; mode legacy asks the linker's cache for each"
        )
    if desired.runtime == "crio" and desired.runtime_mode != "none":
        below, named = low_level(facts), list(toml.lookup(data, TABLE[:1]).get(TABLE[1]) or USUAL)
        if below not in named:
            text = toml.put(text, TABLE, [below, *named])
            reasons.append(f"NVIDIA's runtime starts the one below it, {below}, only where it is named here")
    if not reasons:
        return ()
    why = "; ".join(dict.fromkeys(reasons))
    return files.write(facts, FILE, text, why, wrong="does not have what is wished")


def _scatters(facts: Facts, name: str) -> bool:
    """Later releases keep the names as empty packages of a newer branch."""
    package = facts.packages.get(name)
    same = package is None or branch_of(package.version) == archives.named_branch(name)
    return archives.scatters(name) and same


def with_key(text: str, key: str, value: bool) -> str:
    """The text with this key of no table: changed, or added below the line that has it as a comment, else at the top."""
    line = f"{key} = {json.dumps(value)}"
    head = re.search(r"^[ \t]*\[", text, re.MULTILINE)
    top, rest = (text[: head.start()], text[head.start() :]) if head else (text, "")
    new, count = re.subn(
        rf"^[ \t]*{key}[ \t]*=[^\n#]*?(?=[ \t]*(#|$))", line, top, count=1, flags=re.MULTILINE
    )
    if not count:
        new, count = re.subn(
            rf"^[ \t]*#[ \t]*{key}[ \t]*=.*$", lambda m: f"{m[0]}\n{line}", top, count=1, flags=re.MULTILINE
        )
    return (new if count else f"{line}\n{top}") + rest
