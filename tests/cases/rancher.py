"""What k3s and RKE2 make of their settings and templates at a start: the configuration that they write for containerd."""

from dataclasses import replace

from gpunode.links.kubelet import rancher
from gpunode.links.kubelet.rancher import Product
from gpunode.model import Facts, File

BINARY = "/usr/bin/nvidia-container-runtime"
SECTION = "plugins.'io.containerd.cri.v1.runtime'.containerd"
NVIDIA = f"""
[{SECTION}.runtimes.'nvidia']
  runtime_type = "io.containerd.runc.v2"

[{SECTION}.runtimes.'nvidia'.options]
  BinaryName = "{BINARY}"
  SystemdCgroup = true
"""


def restarted(seen: Facts, unit: str) -> Facts:
    """The host after a start of this unit, where it is one of theirs."""
    product = next((each for each in rancher.PRODUCTS.values() if unit in each.units), None)
    if product is None:
        return seen
    path = f"{product.agent}/etc/containerd/config.toml"
    return replace(
        seen, files={**seen.files, path: File(path, True, mtime=seen.time, content=_text(seen, product))}
    )


def _text(seen: Facts, product: Product) -> str:
    folder = f"{product.agent}/etc/containerd"
    there = (seen.files.get(f"{folder}/{name}") for name in ("config-v3.toml.tmpl", "config.toml.tmpl"))
    template = next(
        (file.content for file in there if file and file.content is not None), '{{ template "base" . }}'
    )
    value = rancher.values(rancher.settings(seen, product), "default-runtime")
    base = f"version = 3\n[{SECTION}]\n"
    base += f'  default_runtime_name = "{value[-1].value}"\n' if value else ""
    base += f'[{SECTION}.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    base += NVIDIA if "nvidia-container-toolkit" in seen.packages else ""
    return (template or "").replace('{{ template "base" . }}', base)
