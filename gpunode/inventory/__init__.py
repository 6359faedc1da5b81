"""The inventory: one YAML file -> hosts, the cluster, or every mistake in it at once.

Reads the named file, and the keys and the image archive that it names; contacts nothing.
"""

from __future__ import annotations

from pathlib import Path

from gpunode.inventory import archive, expand
from gpunode.inventory.selection import select
from gpunode.inventory.source import Source, Where, read
from gpunode.inventory.validation import check
from gpunode.inventory.values import need_file
from gpunode.model import Cluster, Inventory, PluginImage

__all__ = ["load", "select"]


def load(path: Path) -> Inventory:
    """The file's hosts and cluster. Raises InventoryError with every mistake, each as file:line:column: key: what."""
    source = read(path)
    check(source)
    hosts = expand.hosts(source)
    cluster = read_cluster(source)
    source.stop()
    return Inventory(str(path), hosts, cluster)


def read_cluster(source: Source) -> Cluster:
    """The `cluster` section; its files are looked at, mistakes noted in the source."""
    said = dict(source.data.get("cluster", {}))
    if "kubeconfig" in said:
        said["kubeconfig"] = str(source.relative(said["kubeconfig"]))
        need_file(source, source.data["cluster"]["kubeconfig"], ("cluster", "kubeconfig"))
    plugin = said.pop("plugin", None)
    return Cluster(**said, plugin=read_plugin(source, plugin) if plugin else None)


def read_plugin(source: Source, said: dict[str, str]) -> PluginImage | None:
    """The plugin's image; reference and id come out of the archive where there is one."""
    where: Where = ("cluster", "plugin", "archive")
    if "archive" not in said:
        return PluginImage(said["image"])
    file = need_file(source, said["archive"], where)
    if file is None:
        return None
    try:
        reference, image_id = archive.image(file, said.get("image"))
    except ValueError as error:
        source.problem(where, str(error))
        return None
    return PluginImage(reference, archive=str(file), image_id=image_id)
