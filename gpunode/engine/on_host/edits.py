"""The changes `write_file` and `remove_file`."""

import os
import stat
from typing import Callable, Dict, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.files import current, put, sha256
from gpunode.agent.journal import keep
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, resolve
from gpunode.engine.on_host.guard import arm
from gpunode.links.kubelet.on_host import check_kubelet_file
from gpunode.links.runtime.on_host.containerd import check_containerd
from gpunode.links.runtime.on_host.docker import check_docker
from gpunode.links.runtime.on_host.selinux import relabel


def refuse_if_changed(path: str, found: Optional[bytes], expected: Optional[str]) -> None:
    if (sha256(found) if found is not None else None) == expected:
        return
    if found is None:
        what = "is gone"
    elif expected is None:
        what = "exists now"
    else:
        what = "has other contents now"
    raise Failure(
        "changed-underneath", "%s %s than when this was planned: nothing was changed" % (path, what)
    )


def write_file(this: Run, change: Message) -> Message:
    path, data = change["path"], change["content"].encode("utf-8")
    real = resolve(path)
    found = current(real)
    if found == data:
        return {"unchanged": True}
    refuse_if_changed(path, found, change["before_sha256"])
    os.makedirs(os.path.dirname(below(real)), exist_ok=True)
    mode, owner = change["mode"], None
    if found is not None:
        status = os.stat(below(real))
        mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    keep(this, real, sha256(data))
    arm(this, real)
    check = CHECKS[change["check"]] if change.get("check") else None
    expected = change.get("expected")
    put(real, data, mode, owner, this.name, (lambda name: check(path, name, expected)) if check else None)
    if found is None:
        relabel(real)
    return {}


def remove_file(this: Run, change: Message) -> Message:
    path = change["path"]
    found = current(resolve(path))
    if found is None and not os.path.lexists(below(path)):
        return {"unchanged": True}
    refuse_if_changed(path, found, change["before_sha256"])
    parent = resolve(os.path.dirname(path))
    real = parent.rstrip("/") + "/" + os.path.basename(path)
    keep(this, real, None)
    arm(this, real)
    os.unlink(below(real))
    if change.get("folder"):
        try:
            os.rmdir(below(parent))
        except OSError:  # something else is in it
            pass
    return {}


CHECKS: Dict[str, Callable[[str, str, Optional[Message]], None]] = {
    "docker": check_docker,
    "containerd": check_containerd,
    "systemd": check_kubelet_file,
}
