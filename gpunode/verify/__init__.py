"""The chain from the PCI bus to a CUDA pod that passed: its links, the first broken one with cause and fix."""

from __future__ import annotations

from gpunode.verify import container, coverage
from gpunode.verify.host import first_broken, image
from gpunode.verify.host import links as host_links

__all__ = ["container", "coverage", "first_broken", "host_links", "image"]
