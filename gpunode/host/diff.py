"""A change as text: its headline, and a file's unified diff. Keys and secrets appear as their size."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from gpunode.agent.redaction import redact
from gpunode.model import (
    Change,
    ForgetHost,
    InstallDriver,
    KernelModule,
    LoadImage,
    MigLayout,
    Packages,
    PackageSpec,
    Reboot,
    RemoveFile,
    RemoveImage,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    WriteFile,
)
from gpunode.planning import mig
from gpunode.wording import few

NVIDIA = re.compile(r"nvidia|cuda|^libnv|^libxnv")


def headline(change: Change, *, reload: bool = False, names: int = 1000) -> str:
    """What the change does, in one line. `reload`: a reboot is the second choice, as `Disturbed.reload` has it. `names`: of packages
    that are removed, released or held, as many are named, twice as many of those installed, and of those that are removed all that are
    not NVIDIA's by name."""
    match change:
        case WriteFile():
            return f"{'write' if change.before is None else 'change'} {change.path}"
        case RemoveFile():
            return f"remove {change.path}"
        case Packages():
            return _packages(change, names)
        case Service():
            return _service(change)
        case KernelModule():
            return _modules(change)
        case MigLayout():
            after = {mig.describe(gpu.after) for gpu in change.gpus}
            into = f"MIG layout {after.pop()}" if len(after) == 1 else "MIG layouts"
            return f"{into} on GPU {', '.join(gpu.pci.removeprefix('0000:') for gpu in change.gpus)}"
        case LoadImage() | RemoveImage():
            verb, to = ("load", "into") if isinstance(change, LoadImage) else ("remove", "from")
            return f"{verb} image {change.reference} {to} {change.runtime}"
        case ForgetHost():
            return "remove gpunode's records of this host"
        case InstallDriver():
            source = change.url or f"{Path(change.archive or '').name} of this machine"
            return (
                f"install driver {change.version} ({change.flavour}) by NVIDIA's installer: {redact(source)}"
            )
        case UninstallDriver():
            return f"uninstall driver {change.version} by nvidia-uninstall"
        case SelinuxBoolean():
            return f"set the SELinux boolean {change.name} {'on' if change.on else 'off'}"
        case Reboot():
            return "reload the driver; reboot if that fails" if reload else "reboot"


def sign(change: Change) -> str:
    """`+`: something new, `~`: a file that changes, `-`: something is removed; `!`: another action."""
    if isinstance(change, WriteFile):
        return "~" if change.before is not None else "+"
    if isinstance(change, RemoveFile) or (isinstance(change, Packages) and change.remove):
        return "-"
    return "+" if isinstance(change, Packages) and change.install else "!"


def _modules(change: KernelModule) -> str:
    parts = [f"unload {', '.join(change.unload)}"] if change.unload else []
    parts += [f"load {', '.join(change.load)}"] if change.load else []
    stopped = ", ".join(unit.removesuffix(".service") for unit in change.services)
    if stopped and not change.unload:
        parts.append(f"start {stopped}")
    end = " meanwhile" if change.load else " until the next load"
    return "; ".join(parts) + (f" (stop {stopped}{end})" if stopped and change.unload else "")


def _service(change: Service) -> str:
    unit = change.unit.removesuffix(".service")
    verbs = ["stop", "disable"] if change.disable else []
    verbs += (["enable"] if change.enable else []) + (["restart"] if change.restart else [])
    return f"{' and '.join(verbs) or 'start'} {unit}"


def _packages(change: Packages, most: int) -> str:
    parts = ["refresh the package lists"] if change.refresh else []
    if change.remove:
        parts.append(f"{'purge' if change.purge else 'remove'} {_removed(change.remove, most)}")
    names = [spec.name for spec in change.install]
    held = (
        f" and hold {'it' if len(names) == 1 else 'them'}" if names and set(names) == set(change.hold) else ""
    )
    if change.install:
        parts.append(f"install {_versions(change.install, 2 * most)}{held}")
    if kept := [name for name in change.release if name not in change.remove]:
        parts.append(f"unhold {few(kept, most)}")
    if change.hold and not held:
        parts.append(f"hold {few(change.hold, most)}")
    return "; ".join(parts)


def _removed(names: Sequence[str], most: int) -> str:
    """The names; of more than `most` those that are NVIDIA's by name may be left out, the others never."""
    if len(names) <= most:
        return ", ".join(names)
    others = [name for name in names if not NVIDIA.search(name)]
    return few([*others, *filter(NVIDIA.search, names)], max(most, len(others) + 1))


def _versions(install: tuple[PackageSpec, ...], most: int) -> str:
    """Names with their versions; a version that all share appears once. At most so many."""
    versions = {spec.version for spec in install}
    if len(install) > 1 and len(versions) == 1 and "" not in versions:
        return f"{few([spec.name for spec in install], most)} {versions.pop()}"
    return few([str(spec) for spec in install], most)


def lines(change: Change) -> list[str]:
    """The unified diff of a file's change without its header, or of MIG layouts; [] for other changes."""
    if isinstance(change, MigLayout):
        return [
            f"{sign}{gpu.pci} {layout}"
            for gpu in change.gpus
            for sign, layout in (
                ("-", mig.describe(gpu.before) if gpu.seen else "not known without a driver"),
                ("+", mig.describe(gpu.after)),
            )
        ]
    if isinstance(change, WriteFile):
        before, after = redact(change.before or ""), redact(change.content)
    elif isinstance(change, RemoveFile):
        before, after = redact(change.before), ""
    else:
        return []
    whole = isinstance(change, RemoveFile) or change.before is None
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))
    hunks = [line for line in diff[2:] if not line.startswith("@@")] if whole else diff[2:]
    if not hunks and isinstance(change, WriteFile) and change.before != change.content:
        return ["(a secret or white space changes)"]
    return hunks
