"""The inventory: one YAML file -> hosts, the cluster, or every mistake in it at once.

Reads the named file, and the keys, the image archive and the plugin's configuration that it names; contacts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpunode.deviceplugin.settings import configfile
from gpunode.deviceplugin.settings.config import BadConfig, Config
from gpunode.deviceplugin.settings.document import Where
from gpunode.inventory import archive, expand
from gpunode.inventory.selection import select
from gpunode.inventory.source import Source, read
from gpunode.inventory.validation import check
from gpunode.inventory.values import need_file
from gpunode.model import Cluster, Inventory, PluginConfig, PluginImage, PluginVoice

__all__ = ["load", "select"]

PROBES, METRICS = ":9401", ":9400"  # where the plugin's pods answer (templates/cluster/plugin.yaml.j2)


def load(path: Path, *, keys: bool = True) -> Inventory:
    """The file's hosts and cluster. Raises InventoryError with every mistake, each as file:line:column: key: what.

    Without `keys`, for who will not work on its hosts, it is as if it named no kubeconfig, no key and no repository, and the
    image that is in an archive has no name: those files need not be there.
    """
    source = read(path)
    check(source)
    archived = None if keys else leave_out_keys(source.data)
    hosts = expand.hosts(source)
    cluster = read_cluster(source)
    source.stop()
    if archived:
        cluster = replace(cluster, plugin=PluginImage("", archive=archived))
    return Inventory(str(path), hosts, cluster)


def leave_out_keys(data: dict[str, Any]) -> str | None:
    """Take out of the data what opens the way to hosts, cluster and packages; returns the image's archive, if it has one."""
    cluster = data.get("cluster", {})
    cluster.pop("kubeconfig", None)
    archived: str | None = (plugin := cluster.get("plugin", {})).pop("archive", None)
    if archived is not None:
        plugin.pop("image", None)  # which of the archive's
    for variables in places(data):
        variables.pop("repositories", None)
        for key in ("key", "known_hosts"):
            variables.get("ssh", {}).pop(key, None)
    return archived


def places(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Wherever variables may be written: the defaults, each group, each host that has some of its own."""
    yield data.get("defaults", {})
    for group in data.get("groups", {}).values():
        yield group
        yield from (host for host in group.get("hosts", []) if isinstance(host, dict))


def read_cluster(source: Source) -> Cluster:
    """The `cluster` section; its files are looked at, mistakes noted in the source."""
    said = dict(source.data.get("cluster", {}))
    if "kubeconfig" in said:
        said["kubeconfig"] = str(source.relative(said["kubeconfig"]))
        need_file(source, source.data["cluster"]["kubeconfig"], ("cluster", "kubeconfig"))
    plugin = said.pop("plugin", None) or {}
    image = read_plugin(source, plugin) if plugin else None
    pods = {"probe_address": PROBES, **({"metrics_address": METRICS} if plugin.get("metrics") else {})}
    config = read_config(source, plugin["config"], pods) if "config" in plugin else None
    if "configs" in plugin:
        config = read_configs(source, plugin["configs"], pods)
        if "config" in plugin:
            source.problem(
                ("cluster", "plugin", "configs"), "there is `config` too; keep one of them", key=True
            )
    voice = PluginVoice(**{key: plugin[key] for key in ("events", "annotation", "metrics") if key in plugin})
    return Cluster(**said, plugin=image, plugin_config=config, plugin_voice=voice)


def read_plugin(source: Source, said: dict[str, Any]) -> PluginImage | None:
    """The plugin's image; reference and id come out of the archive where there is one."""
    where: Where = ("cluster", "plugin", "archive")
    if "archive" not in said:
        return PluginImage(said["image"]) if "image" in said else None  # else it was wrong, and noted
    file = need_file(source, said["archive"], where)
    if file is None:
        return None
    try:
        reference, image_id = archive.image(file, said.get("image"))
    except ValueError as error:
        source.problem(where, str(error))
        return None
    return PluginImage(reference, archive=str(file), image_id=image_id)


def read_config(source: Source, name: str, pods: Mapping[str, Any]) -> PluginConfig | None:
    """The plugin's configuration file as it is, or None when the plugin could not use it, which is noted."""
    found = read_settings(source, name, ("cluster", "plugin", "config"), pods)
    return PluginConfig(found[0], *host_places([found[1]])) if found else None


def read_configs(source: Source, names: dict[str, str], pods: Mapping[str, Any]) -> PluginConfig | None:
    """Several such files by name, or None when the plugin could not use one of them."""
    where: Where = ("cluster", "plugin", "configs")
    found = {key: read_settings(source, name, (*where, key), pods) for key, name in names.items()}
    read = {key: one for key, one in found.items() if one}
    settings = [one for _, one in read.values()]
    folders = {
        "flags.plugin.cdiDirectory": {one.cdi_directory for one in settings if one.cdi},
        "flags.mpsRoot": {one.mps_root for one in settings if one.mps},
    }
    for key in (key for key, several in folders.items() if len(several) > 1):
        source.problem(where, f"{key} must be the same in all of them: the plugin's pods mount one folder")
    if len(read) < len(names):
        return None
    return PluginConfig("", *host_places(settings), {key: text for key, (text, _) in read.items()})


def read_settings(
    source: Source, name: str, where: Where, pods: Mapping[str, Any]
) -> tuple[str, Config] | None:
    """A configuration file's text, and what the plugin makes of it with what its pods set over it; None where that is
    nothing, which is noted."""
    file = need_file(source, name, where)
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8-sig"), configfile.read(file, pods)
    except BadConfig as error:
        for mistake in error.mistakes:
            source.problem(where, mistake)
        return None


def host_places(settings: list[Config]) -> tuple[str, str]:
    """The folders of the host that the plugin needs with any of these: for CDI, for MPS; "" for none."""
    return (
        next((one.cdi_directory for one in settings if one.cdi), ""),
        next((one.mps_root for one in settings if one.mps), ""),
    )
