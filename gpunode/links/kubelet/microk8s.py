"""MicroK8s' kubelets: files of arguments that kubelite reads at its start.

source: canonical/microk8s, microk8s-resources/{default-args,wrappers} and the patch for kubelite (ReadArgsFromFile).
"""

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates as merge
from gpunode.links.kubelet import start
from gpunode.model import Change, Desired, Facts, KubeletStart, Place
from gpunode.planning import files, services

DATA, COMMON = "/var/snap/microk8s/current", "/var/snap/microk8s/common"
ARGS = f"{DATA}/args/"
UNIT = "snap.microk8s.daemon-kubelite.service"  # kubelet and, on most nodes, control plane in one process
CONTAINERD = "snap.microk8s.daemon-containerd.service"
KUBELET, KUBELITE = f"{ARGS}kubelet", f"{ARGS}kubelite"
PLACES = (Place(UNIT, KUBELET, "", (), (), "", brings="microk8s"),)
WATCH = (KUBELITE, f"{ARGS}kubelet*")


def read(facts: Facts, place: Place) -> KubeletStart:
    service = start.read(facts, place)
    file = facts.files.get(place.config)
    problem = service.problem
    if file is None or file.content is None:
        problem = f"{place.config}: {file.error if file and file.error else 'is not there'}"
    argv = ("kubelet", *arguments(file.content or "" if file else ""))
    return start.below_service(facts, service, argv, start.config_files(facts, argv, ""), problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
    """Write the desired gates where they are set, else on a line of their own; restart kubelite while that is newer."""
    gates, path, unit = desired.gates, before.place.config, before.place.unit
    texts = {path: merge.kubelet_args(files.text(facts, path) or "", gates)}
    texts |= {path: merge.config_gates(files.text(facts, path) or "", gates) for path in before.config_files}
    if absent := merge.missing(gates, before):
        texts[path] = _add(texts[path], absent)
    refusal = CannotPlan(
        f"{path}: the feature gates cannot be changed here without changing other arguments",
        hint="Write them as --feature-gates=NAME=true,OTHER=false on one line of their own, then run again. "
        "Nothing was touched.",
    )
    after = read(files.overlay(facts, texts), before.place)
    written = merge.write(facts, desired, before, texts, after, refusal)
    paths = (path, *before.config_files) if gates else ()
    reason = services.restart_reason(facts, unit, paths, changed=bool(written), why=merge.AT_START)
    server = "; the API server of this node starts again with it" if is_server(facts) else ""
    return services.add_restart(written, unit, reason, f"pods keep running{server}")


def _add(text: str, gates: merge.Gates) -> str:
    """The arguments with these gates in the flag that is there, else in one of their own."""
    end = "" if not text or text.endswith("\n") else "\n"
    return next(merge.into_flags(text, gates), f"{text}{end}--feature-gates={merge.format_gates(gates)}\n")


def set_by_user(facts: Facts, now: KubeletStart) -> KubeletStart:  # noqa: ARG001 - as of others
    return now


def components(facts: Facts, now: KubeletStart) -> start.Components:  # noqa: ARG001 - as of others
    for path in files.below(facts, f"{ARGS}kube-") if is_server(facts) else ():
        yield path, (path.rpartition("/")[2], *arguments(facts.files[path].content or ""))


def is_server(facts: Facts) -> bool:
    """Whether the host is of the control plane: a worker's kubelite is configured by the snap to start none."""
    file = facts.files.get(KUBELITE)
    text = file.content or "" if file else ""  # one that cannot be read counts as a server's
    return services.is_loaded(facts, UNIT) and "--start-control-plane=false" not in arguments(text)


def arguments(text: str) -> tuple[str, ...]:
    """The arguments of a file: one or more a line, quotes dropped, the snap's folders filled in."""
    argv: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            bare = line.replace('"', "").replace("'", "")
            argv += [_fill(word) for word in bare.split(" ") if word]
    return tuple(argv)


def _fill(word: str) -> str:
    for name, value in (("SNAP_DATA", DATA), ("SNAP_COMMON", COMMON)):
        word = word.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return word
