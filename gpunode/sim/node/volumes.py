"""What a pod on a simulated node mounts: ConfigMaps, in folders where its kubelet keeps them, and folders of its host.

No process here has mounts of its own, so variables that name a path below a mount are made to name its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpunode.sim.apiserver.store import Object

KUBELETS = "root/var/lib/kubelet/pods"


class CannotMount(Exception):
    """A volume cannot be set up; the message is the kubelet's."""


class Volumes:
    """The volumes of one pod. `host` is its host's folder; `find` gives the ConfigMap of a namespace and name."""

    def __init__(self, pod: Object, host: Path, find: Callable[[str, str], Object | None]) -> None:
        self._folder: Path = host / KUBELETS / pod["metadata"]["uid"]
        self._namespace, self._find = pod["metadata"]["namespace"], find
        self._sources: dict[str, str] = {
            one["name"]: one["configMap"]["name"]
            for one in pod["spec"].get("volumes", [])
            if "configMap" in one
        }
        self._hosts: dict[str, Path] = {
            one["name"]: host / "root" / one["hostPath"]["path"].strip("/")
            for one in pod["spec"].get("volumes", [])
            if "hostPath" in one
        }
        self._held: dict[str, str] = {}  # volume -> the version of the ConfigMap that it shows

    def bring(self) -> None:
        """Write the files of the current ConfigMaps; those of a deleted one stay. Raises CannotMount."""
        for volume, name in self._sources.items():
            there = self._find(self._namespace, name)
            if there is None and volume not in self._held:
                raise CannotMount(
                    f'MountVolume.SetUp failed for volume "{volume}" : configmap "{name}" not found'
                )
            if there is not None and there["metadata"]["resourceVersion"] != self._held.get(volume):
                _fill(self._place(volume), there.get("data") or {})
                self._held[volume] = there["metadata"]["resourceVersion"]

    def outside(self, container: Object, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a container, with paths below its mounts replaced by those on this computer."""
        mounts = dict(self._mounts(container))

        def led(value: str) -> str:
            for mount, place in mounts.items():
                if value == mount or value.startswith(f"{mount}/"):
                    return f"{place}{value.removeprefix(mount)}"
            return value

        return {name: led(value) for name, value in variables.items()}

    def remove(self) -> None:
        """Remove all volumes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mounts(self, container: Object) -> Iterator[tuple[str, Path]]:
        for one in container.get("volumeMounts", []):
            path = one["mountPath"].rstrip("/")
            if one["name"] in self._sources:
                yield path, self._place(one["name"])
            elif one["name"] in self._hosts:
                yield path, self._hosts[one["name"]]

    def _place(self, volume: str) -> Path:
        return self._folder / "volumes/kubernetes.io~configmap" / volume


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the folder's files atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        new = folder / f"..{name}"  # two dots, as the kubelet's own: readers do not take it for a key
        new.write_text(text, encoding="utf-8")
        new.replace(folder / name)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
