"""The changes that add the extender to a host's scheduler, or take it out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.errors import CannotPlan
from gpunode.links.scheduler import configuration, manifest
from gpunode.links.scheduler.configuration import Extender
from gpunode.model import Change, File, RemoveFile, WriteFile

FOLDER = "/etc/kubernetes/gpunode-share"
CERTIFICATES = ("ca.crt", "client.crt", "client.key")
SCHEDULER, POLICY = f"{FOLDER}/scheduler.yaml", f"{FOLDER}/policy.json"
FILES = (manifest.PATH, SCHEDULER, POLICY, *(f"{FOLDER}/{name}" for name in CERTIFICATES))
VOLUME = (
    "gpunode-share-"  # and a hash of all files: the kubelet starts the pod again only for another manifest
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The extender, with what the scheduler needs to reach it. `secret`: base64 by file name."""

    address: str
    resource: str
    secret: Mapping[str, str]


def more(files: Mapping[str, File]) -> tuple[str, ...]:
    """The configuration that the manifest names, to be read before there is a plan."""
    found = files.get(manifest.PATH)
    if found is None or found.content is None:
        return ()
    try:
        path = manifest.read(found.content).flags.get("config", "")
    except CannotPlan:
        return ()  # which the plan refuses
    return (path,) if path and path != SCHEDULER else ()


def enabling(files: Mapping[str, File], minor: int, wanted: Wanted) -> tuple[tuple[Change, ...], str]:
    """The changes, the manifest last, and the name of the volume that the pod then has. Raises CannotPlan."""
    text = _content(files, manifest.PATH)
    found = manifest.read(text)
    minor = found.minor or minor
    extender = Extender(wanted.address, wanted.resource, FOLDER)
    made = {f"{FOLDER}/{name}": base64.b64decode(wanted.secret[name]).decode() for name in CERTIFICATES}
    flag = ""
    for name in ("policy-config-file", "policy-configmap"):
        if name in found.flags:
            raise CannotPlan(
                f"{manifest.PATH}: the scheduler has a Policy already, {found.flags[name]}",
                hint=f"Take --{name} and its extender out first; pods that it placed keep their GPUs.",
            )
    path = found.flags.get("config", "")
    if not path:
        configuration.provided(manifest.PATH, found.flags)
    if path:
        plain = configuration.without(_content(files, path))
        made[path] = configuration.extended(path, plain, extender)
    elif not configuration.version(minor):
        made[POLICY], flag = configuration.policy(extender), f"--policy-config-file={POLICY}"
    else:
        settings = configuration.as_configuration(manifest.PATH, found.flags, minor)
        made[SCHEDULER], flag = configuration.fresh(extender, minor, settings), f"--config={SCHEDULER}"
    digest = hashlib.sha256(
        "\0".join(f"{path}\0{content}" for path, content in sorted(made.items())).encode()
    )
    volume = VOLUME + digest.hexdigest()[:8]
    made[manifest.PATH] = manifest.extended(found, flag, volume, FOLDER)
    changes = [_write(files, path, content) for path, content in made.items()]
    return tuple(change for change in changes if change is not None), volume


def disabling(files: Mapping[str, File]) -> tuple[Change, ...]:
    """The changes that take it out, the manifest first. Raises CannotPlan."""
    why = "the scheduler asks gpunode's extender no more"
    changes: list[Change] = []
    for path in (manifest.PATH, *more(files)):
        text = _content(files, path)
        plain = configuration.without(text)
        if plain != text:
            changes.append(WriteFile(path, plain, why, before=text))
    for path in FILES[1:]:
        there = files.get(path)
        if there is not None and there.content is not None:
            changes.append(RemoveFile(path, there.content, why, folder=True))
    return tuple(changes)


def restoring(files: Mapping[str, File], now: Mapping[str, File]) -> tuple[Change, ...]:
    """The changes from the state `now` back to `files`, byte for byte; the manifest first."""
    why = "the scheduler gets its earlier configuration back"
    changes: list[Change] = []
    for path in dict.fromkeys((manifest.PATH, *files)):
        text = files[path].content if path in files else None
        there = now[path].content if path in now else None
        if text == there:
            continue
        if text is not None:
            mode = 0o600 if path.startswith(FOLDER) else 0o644
            changes.append(WriteFile(path, text, why, before=there, mode=mode))
        elif there is not None:
            changes.append(RemoveFile(path, there, why, folder=path.startswith(FOLDER)))
    return tuple(changes)


def volumes(files: Mapping[str, File]) -> bool:
    """Whether the manifest has gpunode's lines."""
    found = files.get(manifest.PATH)
    return (
        found is not None
        and found.content is not None
        and configuration.without(found.content) != found.content
    )


def _write(files: Mapping[str, File], path: str, content: str) -> Change | None:
    there = files.get(path)
    before = there.content if there is not None else None
    if before == content:
        return None
    why = "the scheduler asks gpunode's extender for pods with GPU memory"
    return WriteFile(path, content, why, before=before, mode=0o600 if path.startswith(FOLDER) else 0o644)


def _content(files: Mapping[str, File], path: str) -> str:
    found = files.get(path)
    if found is None or found.content is None:
        why = "is not there" if found is None or not found.exists else found.error or "cannot be read"
        raise CannotPlan(f"{path} {why}", hint="Make it readable: gpunode plans from its content.")
    return found.content
