"""Keeps dnf on a driver branch: by the stream of NVIDIA's module, where its repository has streams.

Elsewhere the versions of the packages do it, which are held. dnf keeps a module's state in a file, which `dnf module
enable` writes and libdnf reads; enabling another stream after a reset writes it again.
"""

from __future__ import annotations

from configparser import ConfigParser, Error

from gpunode import compat
from gpunode.compat import PackageNames
from gpunode.model import Change, DriverWish, Facts
from gpunode.planning import files
from gpunode.planning.templates import template

NAMES = PackageNames("dnf")
REPOSITORY = "/etc/yum.repos.d/gpunode-driver.repo"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"


def keeps(facts: Facts) -> bool:
    """Whether a stream is enabled; where there are none, whether gpunode's repository or the distribution's is there."""
    mirror = compat.mirror(facts.os)
    if mirror is not None and mirror.package in facts.packages:
        return True
    file, repository = facts.files.get(STREAM), facts.files.get(REPOSITORY)
    enabled = file is not None and _enabled(file.content or "") is not None
    return enabled or (repository is not None and repository.exists)


def plan(facts: Facts, wish: DriverWish) -> tuple[Change, ...]:
    """The stream's file, unless that stream is enabled in it, with whatever profiles."""
    if wish.archive or wish.brings:
        before = files.text(facts, STREAM)
        hides = before is not None and _enabled(before) is not None
        why = "dnf hides the distribution's packages while a stream of NVIDIA's repository is enabled"
        return (files.remove(STREAM, before, why),) if before is not None and hides else ()
    release = compat.release(facts.os)
    stream = NAMES.stream(wish.branch, wish.flavour)
    if release is None or not release.streams or _enabled(files.text(facts, STREAM) or "") == stream:
        return ()
    why = f"dnf hides all packages but those of the enabled stream, and {stream} has the driver"
    return files.write(facts, STREAM, template(STREAM.lstrip("/"), stream=stream), why)


def _enabled(text: str) -> str | None:
    """The stream that is enabled; None without one."""
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except Error:
        return None
    values = parser["nvidia-driver"] if parser.has_section("nvidia-driver") else {}
    return values.get("stream") if values.get("state") == "enabled" else None
