"""The containerd that k3s or RKE2 brings. They write its configuration at every start of the node's service, with the nvidia
runtime where they find it; the default one is a setting.

docs.k3s.io/advanced (containerd, alternative runtimes) and docs.rke2.io/advanced; pkg/agent/containerd/runtimes.go.
"""

import re
from collections.abc import Mapping
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import minors, rancher
from gpunode.links.kubelet.rancher import PRODUCTS, Product
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.config_toml import containerd_toml, default_name, nvidia_binaries, section
from gpunode.links.runtime.containerd import Brought
from gpunode.links.runtime.nvidia import BINARY
from gpunode.model import Change, Desired, Facts, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template
from gpunode.planning.toml import lookup
from gpunode.planning.versions import is_installed

KEY = "default-runtime"
OTHERS = {"docker": "docker", "container-runtime-endpoint": "a containerd of its own"}

BASE = re.compile(r"\{\{-?\s*template\s+\"base\"")
# What the products' own templates put the runtimes in with that they find; the second until 2023.
FOUND = re.compile(r"\.ExtraRuntimes\b|\.NvidiaRuntimes\b|\.ContainerRuntimes\b")
NVIDIA = re.compile(r"""^[ \t]*\[\s*plugins\..*\.runtimes\.["']?nvidia["']?\s*\]""", re.MULTILINE)


class Rancher:
    def __init__(self, product: Product) -> None:
        self.product = product
        self.folder = f"{product.agent}/etc/containerd/"  # of containerd's configuration and its templates
        self.generated = f"{self.folder}config.toml"  # at the last start
        self.WATCH = Watch((*product.watched, f"{self.folder}config*.toml*", BINARY), product.units)
        self.UNITS = product.units  # of a server and of an agent
        folder = product.agent.rpartition("/")[0]
        runc = f"{folder}/data/current/bin/runc" if product.name == "k3s" else f"{folder}/bin/runc"
        self.brought = Brought(product.title, product.units, self.generated, runc)
        self.containers, self.headline = self.brought.containers, self.brought.headline
        self.state = self.brought.state

    def check(self, facts: Facts) -> None:
        settings = rancher.settings(facts, self.product)
        for key, what in OTHERS.items():
            if any(scalar.value != "false" for scalar in rancher.values(settings, key)):
                raise CannotPlan(
                    f"{self.product.title} is set to use {what} ({key})",
                    hint=f"Take `{key}` out of {self.product.config}, or set `runtime: none` and configure it by hand.",
                )
        for scalar in rancher.values(settings, "data-dir"):
            raise CannotPlan(
                f"{scalar.path}: {self.product.title} keeps its files in {scalar.value} (data-dir), which gpunode does not read",
                hint="gpunode supports only its default folder; remove the host from the inventory.",
            )

    def plan(self, facts: Facts, desired: Desired, *, default: bool) -> tuple[Change, ...]:
        """Set the default runtime; restart the service where it has not found the nvidia runtime yet."""
        written = (*self._template(facts, default=default), *self._setting(facts, desired, default=default))
        reason = self._restart_reason(facts, desired, default=default, changed=bool(written))
        unit = self._unit(facts)
        server = unit == self.product.units[0]
        note = f"pods keep running; kubelet and containerd{', and the API server,' if server else ''} start again with it"
        return services.add_restart(written, unit, reason, note)

    def _unit(self, facts: Facts) -> str:
        return self.product.unit(facts) or self.product.units[0]

    def _template_file(self, facts: Facts) -> str | None:
        """The user's template that counts: the newer kind where containerd is 2.0 or newer."""
        version = self.brought.read(facts).get("version")
        newest = isinstance(version, int) and version >= 3
        names = ("config-v3.toml.tmpl", "config.toml.tmpl") if newest else ("config.toml.tmpl",)
        paths = (f"{self.folder}{name}" for name in names)
        return next((path for path in paths if files.text(facts, path) is not None), None)

    def _template(self, facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
        """The user's template with the nvidia runtime, where the product does not put it there itself."""
        path = self._template_file(facts)
        if path is None:
            return ()
        text, works = files.text(facts, path) or "", _is_right(self.brought.read(facts), default=default)
        after = _merge_template(text, path, self.product.title, default=default, works=works)
        why = "pods get GPUs from the nvidia runtime; this template replaces the built-in one"
        return files.write(facts, path, after, why, wrong="does not have the planned nvidia runtime")

    def _setting(self, facts: Facts, desired: Desired, *, default: bool) -> tuple[WriteFile, ...]:
        path = self._template_file(facts)
        if path is not None and "{{" not in (files.text(facts, path) or ""):
            return ()  # a plain file asks for no setting
        scalars = rancher.values(rancher.settings(facts, self.product), KEY)
        now = scalars[-1] if scalars else None
        self._check_flag(desired, default=default)
        if default == (now is not None and now.value == "nvidia"):
            return ()
        if not default and (now is None or not now.value.startswith("nvidia")):
            return ()
        if default:
            self._check_setting(facts)
        name = "nvidia" if default else "runc"
        why = nvidia.reason(default=default) + ("" if default else " by its RuntimeClass alone")
        if now is not None:
            text = rancher.replace_scalar(files.text(facts, now.path) or "", now, name)
            return files.write(facts, now.path, text, why, wrong=f"names {now.value} as the default runtime")
        path = f"{self.product.config}.d/90-gpunode-runtime.yaml"
        return files.write(facts, path, template("etc/rancher/runtime.yaml", runtime=name), why)

    def _check_flag(self, desired: Desired, *, default: bool) -> None:
        start = desired.kubelet
        if start is None or start.command is None or f"--{KEY}" not in start.command[1].value:
            return
        raise CannotPlan(
            f"{start.command[0]}: {self.product.title} is started with --{KEY}, which wins over every file",
            hint=f"Take --{KEY} out of that file and write `{KEY}: {'nvidia' if default else 'runc'}` into "
            f"{self.product.config}; then run again.",
        )

    def _check_setting(self, facts: Facts) -> None:
        version = facts.kubelet.version if facts.kubelet else ""
        if not minors.rancher_has_default_runtime(version):
            raise CannotPlan(
                f"{self.product.title} {version} has no setting for the default runtime",
                hint="Set `runtime: class` for this host (pods with runtimeClassName: nvidia), or upgrade it: "
                f"{minors.rancher_default_runtime_since()} have it.",
            )

    def _restart_reason(self, facts: Facts, desired: Desired, *, default: bool, changed: bool) -> str | None:
        unit = self._unit(facts)
        if changed or not services.is_active(facts, unit):
            why = "it writes containerd's configuration at its start"
            return services.restart_reason(facts, unit, (), changed=changed, why=why)
        data = self.brought.read(facts)
        if _is_right(data, default=default):
            return None
        comes = any(not is_installed(facts.packages, spec) for spec in desired.toolkit)
        if comes or _is_newer(facts, BINARY, unit):
            return "it finds the nvidia runtime at its start"
        read_at_start = (
            *files.below(facts, self.product.config),
            *(path for path in files.below(facts, self.folder) if path.endswith(".tmpl")),
        )
        if stale := services.restart_reason(facts, unit, read_at_start, changed=False):
            return stale
        raise CannotPlan(
            f"{unit} was started with NVIDIA's runtime there, and {self.generated} "
            f"{'does not name it as the default' if _has_nvidia(data) else 'does not have it'}",
            hint=f"See `journalctl -u {unit} | grep -i nvidia` on the host: {self.product.title} looks for "
            f"nvidia-container-runtime in its PATH and {BINARY}.",
        )


K3S, RKE2 = Rancher(PRODUCTS["k3s"]), Rancher(PRODUCTS["rke2"])


def _has_nvidia(data: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's binary is behind the runtime of that name; the GPU operator's is in a folder of its own."""
    return any(str(binary).endswith("/nvidia-container-runtime") for binary in nvidia_binaries(data))


def _is_right(data: Mapping[str, Any], *, default: bool) -> bool:
    name = default_name(lookup(data, section(data)))
    return _has_nvidia(data) and (name == "nvidia") == default


def _is_newer(facts: Facts, path: str, unit: str) -> bool:
    """Whether the file came after the unit's start."""
    file, state = facts.files.get(path), facts.units.get(unit)
    if file is None or file.ctime is None or state is None or state.active_since is None:
        return False
    return state.active_since < file.ctime


def _merge_template(text: str, path: str, product: str, *, default: bool, works: bool) -> str:
    """The user's template with the nvidia runtime. `works`: the configuration that was made of it is right.

    One that has the product's own template in it stays: the runtime comes with that. A plain file is merged like
    containerd's own; in any other no place is safe.
    """
    own = NVIDIA.search(text)
    if BASE.search(text) or FOUND.search(text):
        if own and not works:
            line = text.count("\n", 0, own.start()) + 1
            raise CannotPlan(
                f"{path}:{line}: defines the nvidia runtime, which {product} adds itself: with both, containerd does not "
                "start",
                hint="Take this table and its options out of the template, then run again; gpunode left it unchanged.",
            )
        return text
    if "{{" not in text:
        return containerd_toml(text, default=default, path=path, second="version = 3" in text)
    if works:
        return text
    raise CannotPlan(
        f"{path}: this template lacks {product}'s own runtimes, and has no safe place for nvidia's",
        hint='Begin it with {{ template "base" . }} and leave in it what differs from it, then run again; '
        "gpunode left it unchanged.",
    )
