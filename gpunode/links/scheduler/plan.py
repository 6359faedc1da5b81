"""The changes that add the extender to a host's scheduler, or take it out."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.errors import CannotPlan
from gpunode.links.scheduler import configuration
from gpunode.links.scheduler.configuration import MANIFEST, Extender
from gpunode.model import Change, File, RemoveFile, WriteFile

FOLDER = "/etc/kubernetes/gpunode-share"
CERTIFICATES = ("ca.crt", "client.crt", "client.key")
SCHEDULER, POLICY = f"{FOLDER}/scheduler.yaml", f"{FOLDER}/policy.json"
FILES = (MANIFEST, SCHEDULER, POLICY, *(f"{FOLDER}/{name}" for name in CERTIFICATES))
# And a hash of all files: the kubelet starts the pod again only for another manifest
VOLUME = "gpunode-share-"


@dataclass(frozen=True, slots=True)
class Access:
    """The extender, with what the scheduler needs to reach it. `secret`: base64 by file name."""

    address: str
    resource: str
    secret: Mapping[str, str]


def named_configuration(files: Mapping[str, File]) -> tuple[str, ...]:
    """The configuration that the manifest names, to be read before there is a plan."""
    file = files.get(MANIFEST)
    if file is None or file.content is None:
        return ()
    try:
        path = configuration.read_manifest(file.content).flags.get("config", "")
    except CannotPlan:
        return ()  # which the plan refuses
    return (path,) if path and path != SCHEDULER else ()


def enable(files: Mapping[str, File], minor: int, access: Access) -> tuple[tuple[Change, ...], str]:
    """The changes, the manifest last, and the name of the volume that the pod then has. Raises CannotPlan."""
    text = _content(files, MANIFEST)
    current = configuration.read_manifest(text)
    minor = current.minor or minor
    extender = Extender(access.address, access.resource, FOLDER)
    contents = {f"{FOLDER}/{name}": base64.b64decode(access.secret[name]).decode() for name in CERTIFICATES}
    flag = ""
    for name in ("policy-config-file", "policy-configmap"):
        if name in current.flags:
            raise CannotPlan(
                f"{MANIFEST}: the scheduler has a Policy already, {current.flags[name]}",
                hint=f"Take --{name} and its extender out first; pods that it placed keep their GPUs.",
            )
    path = current.flags.get("config", "")
    if not path:
        configuration.check_provider(MANIFEST, current.flags)
    if path:
        plain = configuration.strip_marked(_content(files, path))
        contents[path] = configuration.extend_configuration(path, plain, extender)
    elif not configuration.version_for(minor):
        contents[POLICY], flag = configuration.make_policy(extender), f"--policy-config-file={POLICY}"
    else:
        settings = configuration.as_configuration(MANIFEST, current.flags, minor)
        contents[SCHEDULER] = configuration.make_configuration(extender, minor, settings)
        flag = f"--config={SCHEDULER}"
    digest = hashlib.sha256(
        "\0".join(f"{path}\0{content}" for path, content in sorted(contents.items())).encode()
    )
    volume = VOLUME + digest.hexdigest()[:8]
    contents[MANIFEST] = configuration.extend_manifest(current, flag, volume, FOLDER)
    changes = [_write(files, path, content) for path, content in contents.items()]
    return tuple(change for change in changes if change is not None), volume


def disable(files: Mapping[str, File]) -> tuple[Change, ...]:
    """The changes that take it out, the manifest first. Raises CannotPlan."""
    why = "the scheduler asks gpunode's extender no more"
    changes: list[Change] = []
    for path in (MANIFEST, *named_configuration(files)):
        text = _content(files, path)
        plain = configuration.strip_marked(text)
        if plain != text:
            changes.append(WriteFile(path, plain, why, before=text))
    for path in FILES[1:]:
        file = files.get(path)
        if file is not None and file.content is not None:
            changes.append(RemoveFile(path, file.content, why, folder=True))
    return tuple(changes)


def restore(files: Mapping[str, File], now: Mapping[str, File]) -> tuple[Change, ...]:
    """The changes from the state `now` back to `files`, byte for byte; the manifest first."""
    why = "the scheduler gets its earlier configuration back"
    changes: list[Change] = []
    for path in dict.fromkeys((MANIFEST, *files)):
        text = files[path].content if path in files else None
        current = now[path].content if path in now else None
        if text == current:
            continue
        if text is not None:
            mode = 0o600 if path.startswith(FOLDER) else 0o644
            changes.append(WriteFile(path, text, why, before=current, mode=mode))
        elif current is not None:
            changes.append(RemoveFile(path, current, why, folder=path.startswith(FOLDER)))
    return tuple(changes)


def _write(files: Mapping[str, File], path: str, content: str) -> Change | None:
    file = files.get(path)
    before = file.content if file is not None else None
    if before == content:
        return None
    why = "the scheduler asks gpunode's extender for pods with GPU memory"
    return WriteFile(path, content, why, before=before, mode=0o600 if path.startswith(FOLDER) else 0o644)


def _content(files: Mapping[str, File], path: str) -> str:
    file = files.get(path)
    if file is None or file.content is None:
        why = "is not there" if file is None or not file.exists else file.error or "cannot be read"
        raise CannotPlan(f"{path} {why}", hint="Make it readable: gpunode plans from its content.")
    return file.content
