"""The journal that gpunode keeps on a host: an entry for each change, with what was there before."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpunode.model.change import Layout


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package that a change of packages changed: its version before and after (None: not installed), and whether it was held."""

    name: str
    was: str | None
    now: str | None
    held: bool = False
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an apply. `run`: of the operator's record, "" where it had none or an older gpunode wrote this; `undoes`: the run that
    it undoes, "" of all others, of `forget` and of undos by older gpunodes; `by`: user@machine;
    `ended`: when it was made or had failed, or an apply after its kill noted so; else 0. Of the rest each kind has its own, of before the change."""

    apply: str
    run: str = ""
    undoes: str = ""
    by: str = ""
    time: float = 0.0  # seconds since the epoch
    kind: str = ""
    why: str = ""
    ended: float = 0.0
    failed: str = ""  # a code
    # Of a file: its state before and after (SHA-256; `-> TARGET` of a link; None: absent), and its original.
    path: str = ""
    was: str | None = None
    wrote: str | None = None
    link: str | None = None
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    label: str | None = None  # SELinux's
    content: str | None = None
    error: str = ""  # why there is no content
    new_folder: bool = False
    unit: str = ""  # that was to read the file; of a service its own
    enabled: str = ""  # of a service, as systemctl shows it
    active: str = ""
    modules: tuple[str, ...] | None = None  # loaded ones of GPUs; of packages, modules and drivers
    packages: Mapping[str, PackageChange] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()  # packages whose version of before is in no repository
    layouts: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)  # PCI address → MIG before, after
    name: str = ""  # of an image, a boolean, a version of a driver, the kernel before a reboot
    state: str = ""  # of a boolean `on` or `off`; the version of an installed driver; `purge` of packages; `disable` of a service
