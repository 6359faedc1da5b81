"""The kubelets of k3s and RKE2: `kubelet-arg` of their settings, and their folder of configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import arguments, config, start
from gpunode.links.kubelet import gates as merge
from gpunode.links.kubelet import rancher_settings as rancher
from gpunode.links.kubelet.comparison import differ_only_in
from gpunode.links.kubelet.rancher_settings import PRODUCTS, Product
from gpunode.model import Change, Desired, Facts, File, KubeletStart, Place, Service, WriteFile
from gpunode.planning import files
from gpunode.planning.templates import template

ARG = "kubelet-arg"
FLAG = "feature-gates="
DEFAULTS = "-defaults.conf"  # what they write into the folder themselves, at every start

PLACES = tuple(product.place(unit) for product in PRODUCTS.values() for unit in product.units)


def folder(product: Product) -> str:
    """Of the kubelet's configuration: from Kubernetes 1.32 on."""
    return f"{product.agent}/etc/kubelet.conf.d"


def watch() -> tuple[str, ...]:
    """The files that a probe reads."""
    return tuple(path for one in PRODUCTS.values() for path in (*one.watched, f"{folder(one)}/*.conf"))


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, in the process of the node's service or below it."""
    product = PRODUCTS[place.brings or ""]
    service = start.read(facts, place)
    problem, words = service.problem, ["kubelet"]
    try:
        words += [f"--{one.lstrip('-')}" for one in _arguments(facts, product, service)]
    except CannotPlan as error:
        problem = error.message.splitlines()[-1]
    words.append(f"--config-dir={folder(product)}")
    return start.below(facts, service, words, config.files(facts, words, ""), problem)


def _arguments(facts: Facts, product: Product, service: KubeletStart) -> tuple[str, ...]:
    """Those of the kubelet: the command's replace those of the files."""
    own = arguments.flags(service.words, ARG)
    return own or tuple(one.value for one in rancher.values(rancher.settings(facts, product), ARG))


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
    """Write the desired gates into the settings; restart the service while they are newer than it."""
    written = tuple(_files(facts, desired, before))
    product, unit = PRODUCTS[before.place.brings or ""], before.place.unit
    if written:
        why = "it reads its gates at its start"
    else:
        read_from = (*product.watched[:1], *_drop_ins(facts, product), *_own(before))
        newer = [path for path in read_from if files.newer(facts, path, unit)]
        if not newer or not desired.gates:
            return ()
        why = f"{newer[0]} is newer than the running one"
    fault = "" if written else None
    guards = tuple(change.path for change in written)
    return (*written, Service(unit, why, restart=True, guards=guards, note="pods keep running", fault=fault))


def _files(facts: Facts, desired: Desired, before: KubeletStart) -> Iterator[WriteFile]:
    gates, product = desired.gates, PRODUCTS[before.place.brings or ""]
    texts = {
        path: _with_gates(files.text(facts, path) or "", path, gates)
        for path in (product.config, *_drop_ins(facts, product))
    }
    texts |= {path: merge.config_gates(files.text(facts, path) or "", gates) for path in _own(before)}
    absent = {name: state for name, state in gates.items() if state is not None and name not in before.gates}
    if absent:
        path = before.place.drop_in
        there = texts.get(path) or ""
        line = f"  - {FLAG}{merge.written(absent)}\n"
        new = template("etc/rancher/kubelet.yaml", gates=merge.written(absent))
        texts[path] = f"{there}{line}" if there else new
    after = replace(
        facts,
        files={**facts.files, **{path: File(path, bool(text), content=text) for path, text in texts.items()}},
    )
    if not differ_only_in(before, read(after, before.place), gates):
        raise _not_editable(before, product)
    changed = [name for name, state in gates.items() if before.gates.get(name) != state]
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in changed)
    for path, text in texts.items():
        if text or files.text(facts, path):
            yield from files.write(facts, path, text, why or "gates that are not wished")


def _with_gates(text: str, path: str, gates: merge.Gates) -> str:
    """The settings with the gates that they give the kubelet brought to what is wished."""
    scalars = [one for setting in rancher.read(text, path) if setting.key == ARG for one in setting.values]
    for one in reversed(scalars):
        dashes = one.value[: len(one.value) - len(one.value.lstrip("-"))]
        if not one.value[len(dashes) :].startswith(FLAG):
            continue
        value = one.value.partition("=")[2]
        merged = merge.flag_value(value, gates)
        if not merged:
            text = rancher.without(text, one)
        elif merged != value:
            text = rancher.replaced(text, one, f"{dashes}{FLAG}{merged}")
    return text


def _drop_ins(facts: Facts, product: Product) -> tuple[str, ...]:
    there = (path for path, file in facts.files.items() if file.exists)
    return tuple(sorted(path for path in there if path.startswith(f"{product.config}.d/")))


def _own(start_now: KubeletStart) -> tuple[str, ...]:
    """Configuration files that are the user's."""
    return tuple(path for path in start_now.config_files if not path.endswith(DEFAULTS))


def _not_editable(before: KubeletStart, product: Product) -> CannotPlan:
    command = before.command[1].value if before.command else ""
    if f"--{ARG}" in command and before.command:
        return CannotPlan(
            f"{before.command[0]} starts {product.title} with --{ARG}, which replaces all that {product.config} has of it",
            hint=f"Move these arguments into {product.config} as `{ARG}`, then run again. Nothing was touched.",
        )
    return CannotPlan(
        f"the feature gates in the settings of {product.title} cannot be changed without changing other arguments",
        hint=f"Write them as `{ARG}: [feature-gates=NAME=true]` in {product.config} alone, then run again. "
        "Nothing was touched.",
    )
