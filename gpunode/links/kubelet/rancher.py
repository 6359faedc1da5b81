"""The kubelets of k3s and RKE2: `kubelet-arg` of their settings, and their folder of configuration.

docs.k3s.io/installation/configuration and docs.rke2.io/install/configuration: config.yaml, then config.yaml.d by name. A
later key replaces an earlier one; with a `+` after it, it is appended; arguments of the command replace both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates as merge
from gpunode.links.kubelet import registration, start
from gpunode.model import Change, Desired, Facts, KubeletStart, Place, RemoveFile, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template

ARG = "kubelet-arg"
TAINT = "node-taint"  # of the settings; the kubelet gets them as --register-with-taints, which the node's registration reads alone
FLAG = "feature-gates="
STARTS = "it is not running"
DEFAULTS = "-defaults.conf"  # what they write into the folder themselves, at every start
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True, slots=True)
class Product:
    """k3s or RKE2, and where it keeps its files."""

    name: Literal["k3s", "rke2"]
    title: str  # as its makers write it
    units: tuple[str, ...]  # of a server, of an agent
    config: str  # its settings; drop-ins are beside it
    agent: str  # the folder of its kubelet and its containerd
    folder: str  # of the kubelet's configuration: from Kubernetes 1.32 on
    watched: tuple[str, ...]  # the files of its settings

    def unit(self, facts: Facts) -> str | None:
        """The unit that this host has, an active one first; None: it is no node of this product."""
        return services.pick(facts, self.units)

    def paths(self, facts: Facts) -> tuple[str, ...]:
        """The files of its settings in the order in which they count; the first may be absent."""
        return (self.config, *files.below(facts, f"{self.config}.d/"))

    def place(self, unit: str) -> Place:
        drop_in = f"{self.config}.d/91-gpunode-kubelet.yaml"
        return Place(unit, self.config, "", (), (), drop_in, brings=self.name)


def _product(name: Literal["k3s", "rke2"], title: str, *units: str) -> Product:
    config, agent = f"/etc/rancher/{name}/config.yaml", f"/var/lib/rancher/{name}/agent"
    watched = (config, f"{config}.d/*.y*ml")
    return Product(name, title, units, config, agent, f"{agent}/etc/kubelet.conf.d", watched)


PRODUCTS: Mapping[str, Product] = {
    "k3s": _product("k3s", "k3s", "k3s.service", "k3s-agent.service"),
    "rke2": _product("rke2", "RKE2", "rke2-server.service", "rke2-agent.service"),
}
PLACES = tuple(product.place(unit) for product in PRODUCTS.values() for unit in product.units)
WATCH = tuple(
    path for product in PRODUCTS.values() for path in (*product.watched, f"{product.folder}/*.conf")
)


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, in the process of the node's service or below it."""
    product = PRODUCTS[place.brings or ""]
    service = start.read(facts, place)
    problem, argv = service.problem, ["kubelet"]
    try:
        # source: k3s' pkg/daemons/agent; the kubelet's own arguments come after it
        if name := _node_name(facts, product, service):
            argv.append(f"--hostname-override={name}")
        argv += _arguments(facts, product, service, ARG)
    except CannotPlan as error:
        problem = error.message.splitlines()[-1]
    argv.append(f"--config-dir={product.folder}")
    return start.below_service(facts, service, argv, start.config_files(facts, argv, ""), problem)


def _node_name(facts: Facts, product: Product, service: KubeletStart) -> str:
    """The node's name of arguments, settings or environment; "" for the host's, or where `with-node-id` appends an id to it."""
    ids = values(settings(facts, product), "with-node-id")
    if start.has_flag(service.argv, "with-node-id") or (ids and ids[-1].value != "false"):
        return ""
    names = _arguments(facts, product, service, "node-name")
    return names[-1][2:] if names else service.variables.get(f"{product.name.upper()}_NODE_NAME", "")


def _arguments(facts: Facts, product: Product, service: KubeletStart, key: str) -> tuple[str, ...]:
    """Those of a component: the command's replace those of the files."""
    own = start.flags(service.argv, key)
    flags = own or tuple(scalar.value for scalar in values(settings(facts, product), key))
    return tuple(f"--{value.lstrip('-')}" for value in flags)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
    """Write the desired gates into the settings; restart the service while they are newer than it."""
    gates, product, unit = desired.gates, PRODUCTS[before.place.brings or ""], before.place.unit
    texts = {
        path: _merge_settings(files.text(facts, path) or "", path, gates) for path in product.paths(facts)
    }
    own = _own_config(before)
    texts |= {path: merge.config_gates(files.text(facts, path) or "", gates) for path in own}
    if absent := merge.missing(gates, before):
        path, added = before.place.drop_in, merge.format_gates(absent)
        present = texts.get(path, "")
        new = template("etc/rancher/kubelet.yaml", gates=added)
        texts[path] = f"{present}  - {FLAG}{added}\n" if any(read_settings(present, path)) else new
    after = read(files.overlay(facts, texts), before.place)
    written = merge.write(facts, desired, before, texts, after, _not_editable(before, product))
    reason: str | None = merge.AT_START
    if not written:  # the runtime's changes start a unit that does not run
        running = gates and services.is_active(facts, unit)
        paths = (*product.paths(facts), *own)
        reason = services.restart_reason(facts, unit, paths, changed=False) if running else None
    taint = _registration(facts, before, desired.registers_tainted)
    if taint and desired.registers_tainted and desired.runtime_mode != "none":
        reason = reason or STARTS  # as the runtime's plan: one start, after all files
    guards = [change.path for change in (*taint, *written)]
    return (*taint, *services.add_restart(written, unit, reason, "pods keep running", guards=guards))


def _registration(
    facts: Facts, before: KubeletStart, wanted: bool
) -> tuple[WriteFile, ...] | tuple[RemoveFile, ...]:
    """The file with the taint of unproven nodes, for a node that has not started yet; its removal where it is not wanted any more.
    Nothing where other settings would replace it."""
    product = PRODUCTS[before.place.brings or ""]
    path = f"{product.config}.d/92-gpunode-taint.yaml"
    text, present = template("etc/rancher/taint.yaml", taint=registration.TAINT), files.text(facts, path)
    if not wanted:
        return (files.remove(path, text, registration.OFF),) if present == text else ()
    started = (before.place.unit, f"{product.agent}/etc/containerd/config.toml")
    if present is not None or services.is_active(facts, started[0]) or files.exists(facts, started[1]):
        return ()
    service = start.read(facts, before.place)
    set_elsewhere = start.has_flag(service.argv, TAINT) or start.has_flag(before.argv, "register-with-taints")
    after = values(settings(files.overlay(facts, {path: text}), product), TAINT)
    if set_elsewhere or registration.TAINT not in [scalar.value for scalar in after]:
        return ()
    return files.write(facts, path, text, registration.WHY)


def _merge_settings(text: str, path: str, gates: merge.Gates) -> str:
    """The settings with the gates that they give the kubelet brought to what is wished."""
    scalars = [
        scalar for setting in read_settings(text, path) if setting.key == ARG for scalar in setting.values
    ]
    for scalar in reversed(scalars):
        dashes = scalar.value[: len(scalar.value) - len(scalar.value.lstrip("-"))]
        if not scalar.value[len(dashes) :].startswith(FLAG):
            continue
        value = scalar.value.partition("=")[2]
        merged = merge.flag_value(value, gates)
        if not merged:
            text = remove_scalar(text, scalar)
        elif merged != value:
            text = replace_scalar(text, scalar, f"{dashes}{FLAG}{merged}")
    return text


def _own_config(now: KubeletStart) -> tuple[str, ...]:
    """Configuration files that are the user's."""
    return tuple(path for path in now.config_files if not path.endswith(DEFAULTS))


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


def set_by_user(facts: Facts, now: KubeletStart) -> KubeletStart:
    """Its settings, and the files in its folder that it does not write itself."""
    own = ((path, files.text(facts, path) or "") for path in _own_config(now))
    gates = start.config_gates(start.read_config(own)[0])
    where = f"a file in {PRODUCTS[now.place.brings or ''].folder}"
    both = {**gates, **start.flag_gates(now.argv[1:])}
    return replace(now, config_gates=gates, gates=both, config_path=where)


def components(facts: Facts, now: KubeletStart) -> start.Components:
    """The commands of the control plane, as far as the settings make them."""
    product, service = PRODUCTS[now.place.brings or ""], start.read(facts, now.place)
    for name in CONTROL_PLANE:
        try:
            argv = _arguments(facts, product, service, f"{name}-arg")
        except CannotPlan:
            return  # a problem of the kubelet's start, too
        yield product.config, (name, *argv)


# --- Settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value in a file, and where its text begins and ends."""

    path: str
    value: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a file with its values, and where its text begins and ends. `appends`: to what earlier files set."""

    key: str
    appends: bool
    values: tuple[Scalar, ...]
    start: int
    stop: int


def settings(facts: Facts, product: Product) -> tuple[Setting, ...]:
    """All settings of a host, in the order in which they count. Raises CannotPlan for a file that is not valid."""
    return tuple(
        setting
        for path in product.paths(facts)
        for setting in read_settings(files.text(facts, path) or "", path)
    )


def values(settings: tuple[Setting, ...], key: str) -> tuple[Scalar, ...]:
    """What a key is set to in the end; () where no file sets it."""
    scalars: tuple[Scalar, ...] = ()
    for setting in settings:
        if setting.key == key:
            scalars = (*scalars, *setting.values) if setting.appends else setting.values
    return scalars


def read_settings(text: str, path: str) -> Iterator[Setting]:
    try:
        root = yaml_text.nodes(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise CannotPlan(
            f"{path} does not parse\n{where}: not valid YAML: {getattr(error, 'problem', error)}",
            hint="Fix the file by hand (the node's service reads it too), then run again; gpunode left it unchanged.",
        ) from None
    if not isinstance(root, yaml.MappingNode):
        return
    for key, value in root.value:
        nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
        scalars = tuple(
            Scalar(path, str(node.value), node.start_mark.index, node.end_mark.index)
            for node in nodes
            if isinstance(node, yaml.ScalarNode)
        )
        name = str(key.value)
        yield Setting(
            name.removesuffix("+"), name.endswith("+"), scalars, key.start_mark.index, value.end_mark.index
        )


def replace_scalar(text: str, scalar: Scalar, value: str) -> str:
    """The text with another value, in the quotes that are there."""
    quote = text[scalar.start : scalar.start + 1]
    quote = quote if quote in ("'", '"') else ""
    return f"{text[: scalar.start]}{quote}{value}{quote}{text[scalar.stop :]}"


def remove_scalar(text: str, scalar: Scalar) -> str:
    """The text without a value: the item of its list, or the whole key where it is the only one."""
    owner = next(
        s for s in read_settings(text, scalar.path) if any(v.start == scalar.start for v in s.values)
    )
    if len(owner.values) == 1:
        return _cut(text, owner.start, owner.stop)
    line = text.rfind("\n", 0, scalar.start) + 1
    if text[line : scalar.start].strip() == "-":
        return _cut(text, scalar.start, scalar.stop)
    after = text[scalar.stop :]
    if after.lstrip().startswith(","):  # a list on one line
        return text[: scalar.start] + after.lstrip()[1:].lstrip()
    return text[: scalar.start].rstrip().removesuffix(",") + after


def _cut(text: str, start: int, stop: int) -> str:
    """The text without the lines from `start` to `stop`, whole."""
    begin = text.rfind("\n", 0, start) + 1
    end = stop if text[stop - 1 : stop] == "\n" else text.find("\n", stop) + 1
    return text[:begin] + (text[end:] if end > 0 else "")
