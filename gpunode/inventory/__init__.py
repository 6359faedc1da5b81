"""The inventory: one YAML file -> hosts, the cluster, or every mistake in it at once.

Reads the file, and the keys, the image archive and the plugin configuration that it names. Contacts no host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpunode.contract import config_file
from gpunode.contract.config import BadConfig, Config
from gpunode.contract.yaml_text import Where
from gpunode.errors import InventoryError
from gpunode.inventory import archive, expand
from gpunode.inventory.expand import RANGE, expand_range, need_file, seconds
from gpunode.inventory.source import Source, read
from gpunode.inventory.validation import check
from gpunode.local import files as localfile
from gpunode.model import (
    Cluster,
    GateCommand,
    Host,
    Inventory,
    PluginConfig,
    PluginImage,
    PluginPublish,
    SecondScheduler,
    Share,
)
from gpunode.wording import few, near

CDI_FOLDERS = ("/var/run/cdi", "/run/cdi")  # where the toolkit's own units write
PROBES, METRICS = ":9401", ":9400"  # where the plugin's pods answer (templates/cluster/plugin.yaml.j2)


def load(path: Path, *, keys: bool = True) -> Inventory:
    """The file's hosts and cluster. Raises InventoryError with every mistake, each as file:line:column: key: message.

    Without `keys` the file may name files that do not exist: kubeconfig, keys, repositories, a driver's installer and the image archive are
    ignored, and the image has no reference. For callers that do not connect to its hosts.
    """
    source = read(path)
    check(source)
    archived = None if keys else drop_keys(source.data)
    hosts = expand.make_hosts(source)
    cluster = read_cluster(source)
    source.stop()
    if archived:
        cluster = replace(cluster, plugin=PluginImage("", archive=archived))
    if config := cluster.plugin_config:
        by_cdi = config.cdi_directory in CDI_FOLDERS
        hosts = tuple(replace(host, cdi=by_cdi, device_specs=config.device_specs) for host in hosts)
    return Inventory(str(path), hosts, cluster, tuple(gate(item) for item in source.data.get("gate", ())))


def gate(item: str | dict[str, str]) -> GateCommand:
    if isinstance(item, str):
        return GateCommand(item)
    timeout = {"timeout": seconds(item["timeout"])} if "timeout" in item else {}
    return GateCommand(item["command"], **timeout)


def drop_keys(data: dict[str, Any]) -> str | None:
    """Remove kubeconfig, keys, repositories and installers from the data; returns the image's archive, None without one."""
    cluster = data.get("cluster", {})
    cluster.pop("kubeconfig", None)
    archived: str | None = (plugin := cluster.get("plugin", {})).pop("archive", None)
    if archived is not None:
        plugin.pop("image", None)  # which of the archive's
    for variables in places(data):
        variables.pop("repositories", None)
        if isinstance(variables.get("driver"), dict):
            variables["driver"] = variables["driver"].get("version", "auto")
        for key in ("key", "known_hosts"):
            variables.get("ssh", {}).pop(key, None)
    return archived


def places(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every mapping that can hold variables: defaults, groups, hosts with their own."""
    yield data.get("defaults", {})
    for group in data.get("groups", {}).values():
        yield group
        yield from (host for host in group.get("hosts", []) if isinstance(host, dict))


def read_cluster(source: Source) -> Cluster:
    """The `cluster` section with its files read; mistakes are noted in the source."""
    section = dict(source.data.get("cluster", {}))
    if "max_tainted" in section:
        section["max_tainted"] = int(section["max_tainted"].rstrip("%"))
    if "kubeconfig" in section:
        section["kubeconfig"] = str(source.relative(section["kubeconfig"]))
        need_file(source, source.data["cluster"]["kubeconfig"], ("cluster", "kubeconfig"))
    plugin = section.pop("plugin", None) or {}
    image = read_plugin(source, plugin) if plugin else None
    pods = {"probe_address": PROBES, **({"metrics_address": METRICS} if plugin.get("metrics") else {})}
    config = read_config(source, plugin["config"], pods) if "config" in plugin else None
    if "configs" in plugin:
        config = read_configs(source, plugin["configs"], pods)
        if "config" in plugin:
            source.problem(
                ("cluster", "plugin", "configs"), "`config` is set too; keep one of them", key=True
            )
    publish = PluginPublish(
        **{key: plugin[key] for key in ("events", "annotation", "condition", "metrics") if key in plugin},
        promises="share" in section,
    )
    share = read_share(section.pop("share")) if "share" in section else None
    return Cluster(**section, plugin=image, plugin_config=config, plugin_publish=publish, share=share)


def read_share(section: dict[str, Any]) -> Share:
    """How GPUs are shared by memory; without a scheduler whose image was wrong."""
    own = section.pop("scheduler", {})
    return Share(**section, scheduler=SecondScheduler(**own) if "image" in own else None)


def read_plugin(source: Source, section: dict[str, Any]) -> PluginImage | None:
    """The plugin's image, None if it was wrong; an archive gives its reference and id."""
    where: Where = ("cluster", "plugin", "archive")
    if "archive" not in section:
        return PluginImage(section["image"]) if "image" in section else None
    file = need_file(source, section["archive"], where, "; `gpunode plugin image` writes one")
    if file is None:
        return None
    try:
        reference, image_id = archive.image(file, section.get("image"))
    except ValueError as error:
        source.problem(where, str(error))
        return None
    return PluginImage(reference, archive=str(file), image_id=image_id)


def read_config(source: Source, name: str, pods: Mapping[str, Any]) -> PluginConfig | None:
    """The plugin's configuration file, None if the plugin could not use it; mistakes are noted."""
    parsed = read_settings(source, name, ("cluster", "plugin", "config"), pods)
    return _config([parsed[1]], text=parsed[0]) if parsed else None


def read_configs(source: Source, names: dict[str, str], pods: Mapping[str, Any]) -> PluginConfig | None:
    """Several configuration files by name, None if the plugin could not use one of them; mistakes are noted."""
    where: Where = ("cluster", "plugin", "configs")
    parsed = {key: read_settings(source, name, (*where, key), pods) for key, name in names.items()}
    read = {key: entry for key, entry in parsed.items() if entry}
    settings = [config for _, config in read.values()]
    folders = {
        "flags.plugin.cdiDirectory": {setting.cdi_directory for setting in settings if setting.cdi},
        "flags.mpsRoot": {setting.mps_root for setting in settings if setting.mps},
    }
    for key in (key for key, several in folders.items() if len(several) > 1):
        source.problem(where, f"{key} must be the same in all of them: the plugin's pods mount one folder")
    if len(read) < len(names):
        return None
    texts = {key: text for key, (text, _) in read.items()}
    return _config(settings, files=texts)


def read_settings(
    source: Source, name: str, where: Where, pods: Mapping[str, Any]
) -> tuple[str, Config] | None:
    """A configuration file's text and the settings that the plugin's pods read from it; None if invalid, with mistakes noted."""
    file = need_file(source, name, where)
    if file is None:
        return None
    try:
        settings = config_file.read(file, pods)  # first: it says why a file cannot be read
        return localfile.read(file).decode("utf-8-sig"), settings
    except BadConfig as error:
        for mistake in error.mistakes:
            source.problem(where, mistake)
        return None


def _config(settings: list[Config], text: str = "", files: Mapping[str, str] | None = None) -> PluginConfig:
    """The configuration as written, and what these settings need of the hosts."""
    return PluginConfig(
        text,
        cdi_directory=next((setting.cdi_directory for setting in settings if setting.cdi), ""),
        mps_root=next((setting.mps_root for setting in settings if setting.mps), ""),
        files=files or {},
        mig=any(setting.mig_strategy != "none" for setting in settings),
        device_specs=all(setting.pass_device_specs for setting in settings),
    )


NAMED = 3  # missing hosts of a range


def select(inventory: Inventory, limit: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[Host, ...]:
    """The hosts in `limit` (default: all) without those in `exclude`, in the inventory's order.

    An entry is a host, a group, a range, a glob over host names, or several of them separated by commas. Raises
    InventoryError for an entry that matches nothing, and if no host is left.
    """
    problems: list[str] = []
    chosen = match_hosts(inventory, limit, "--limit", problems)
    if not limit:
        chosen = {host.name for host in inventory.hosts}
    excluded = match_hosts(inventory, exclude, "--exclude", problems)
    chosen -= excluded
    left = tuple(host for host in inventory.hosts if host.name in chosen)
    if not left and not problems and exclude:
        problems.append(f"no host is left: --exclude {','.join(exclude)} matches all of them")
    if problems:
        raise InventoryError(problems)
    return left


def match_hosts(inventory: Inventory, patterns: Sequence[str], option: str, problems: list[str]) -> set[str]:
    """Names of the hosts that the patterns match; patterns without a match are added to `problems`."""
    matched: set[str] = set()
    known = [
        *(host.name for host in inventory.hosts),
        *(name for host in inventory.hosts for name in host.groups),
    ]
    selectors = [part.strip() for entry in patterns for part in entry.split(",")]
    if patterns and not any(selectors):
        problems.append(f"{option} is empty; name a host, a group or a glob")
    for pattern in filter(None, selectors):
        try:
            parts = expand_range(pattern) if RANGE.search(pattern) else [pattern]
        except ValueError as error:
            problems.append(f"{option} {pattern}: {error}")
            continue
        missing = []
        for part in parts:
            hosts = {
                host.name
                for host in inventory.hosts
                if part == host.name or part in host.groups or fnmatchcase(host.name, part)
            }
            if not hosts:
                missing.append(part)
            if not hosts and len(missing) <= NAMED:
                glob = any(character in part for character in "*?[")  # a similar name would not match it
                close = [] if glob else near(part, known, cutoff=0.5)
                advice = (
                    f"; did you mean `{close[0]}`?"
                    if close
                    else f"; {inventory.path} has {group_names(inventory)}"
                )
                problems.append(f"{option} {part}: no such host or group{advice}")
            matched |= hosts
        if more := missing[NAMED:]:
            problems.append(f"{option} {pattern}: {len(more)} more of this range are no hosts")
    return matched


def group_names(inventory: Inventory) -> str:
    """The first five groups, or hosts where there is no group, in a sentence."""
    groups = list(dict.fromkeys(name for host in inventory.hosts for name in host.groups))
    if not groups:
        return (
            f"the hosts {few([host.name for host in inventory.hosts], 5)}" if inventory.hosts else "no hosts"
        )
    return f"the group{'s' if len(groups) > 1 else ''} {few(groups, 5)}"
