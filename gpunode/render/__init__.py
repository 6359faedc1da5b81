"""Text for hosts: templates, and merges into what is there that keep the user's keys, order, style and comments.

A merge returns the whole new text, equal to the old one when nothing is to be changed, or raises Unfit with file,
line and cause: a file that is not understood is never written.
"""

from __future__ import annotations

from gpunode.render.containerd import containerd_toml
from gpunode.render.daemon import daemon_json
from gpunode.render.templates import template
from gpunode.render.unfit import Unfit

__all__ = ["Unfit", "containerd_toml", "daemon_json", "template"]
