"""Text for hosts: templates of whole files, and edits of TOML that keep every other byte."""

from __future__ import annotations

from gpunode.render.templates import template

__all__ = ["template"]
