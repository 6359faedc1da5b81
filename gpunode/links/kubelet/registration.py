"""The taint with which a kubelet registers its node: no pod comes to a new node before its GPUs are proven.

A kubelet sets it only on a Node object that it creates (pkg/kubelet/kubelet_node_status.go: `initialNode` has the taints, and
`tryRegisterWithAPIServer` leaves those of a node that exists). So only a kubelet that has not joined gets it, and no restart is needed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from gpunode.links.kubelet.start import has_flag
from gpunode.model import Facts, KubeletStart, WriteFile
from gpunode.planning import files

UNVERIFIED = "gpunode.dev/unverified"
JOINING = "joining"  # the value; a run's has its id
TAINT = f"{UNVERIFIED}={JOINING}:NoSchedule"
FLAG = f"--register-with-taints={TAINT}"
WHY = "the node takes no pods before its GPUs are verified"
OFF = "the inventory asks for no taint any more"

# Places for a flag, the least invasive first, each with the file's new text.
Places: TypeAlias = Callable[[Facts, KubeletStart], Iterator[tuple[str, str]]]
Read: TypeAlias = Callable[[Facts], KubeletStart]


def plan(
    facts: Facts,
    start: KubeletStart,
    gates: tuple[WriteFile, ...],
    wanted: bool,
    places: Places,
    read: Read,
) -> tuple[WriteFile, ...]:
    """The writes of gates, with the flag added or removed. A kubelet with taints of the user's, or without a safe place, has none added."""
    written = {change.path: change for change in gates}
    after = files.overlay(facts, {path: change.content for path, change in written.items()})
    start = read(after) if written else start
    joined = files.text(facts, start.config_path) is not None or (facts.kubelet and facts.kubelet.arguments)
    texts: Mapping[str, str] = {}
    if not wanted and FLAG in start.argv:
        texts = {path: text.replace(f" {FLAG}", "").replace(FLAG, "") for path, text in _texts(after, start)}
    elif wanted and not joined and not has_flag(start.argv, "register-with-taints"):
        texts = next(
            (
                {path: text}
                for path, text in places(after, start)
                if sorted(read(files.overlay(after, {path: text})).argv) == sorted((*start.argv, FLAG))
            ),
            {},
        )
    why = WHY if wanted else OFF
    for path, text in texts.items():
        reasons = [written[path].why, why] if path in written else [why]
        for change in files.write(facts, path, text, "; ".join(reasons), check="systemd"):
            written[path] = change
    return tuple(written.values())


def _texts(facts: Facts, start: KubeletStart) -> Iterator[tuple[str, str]]:
    """The files with arguments in which the flag stands."""
    for path in dict.fromkeys((*start.environment_files, *start.units)):
        if FLAG in (text := files.text(facts, path) or ""):
            yield path, text
