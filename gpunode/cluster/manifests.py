"""From templates/cluster to objects."""

from __future__ import annotations

from pathlib import Path

import jinja2
import yaml

from gpunode.cluster.kinds import Object


def rendered(template: str, **values: object) -> list[Object]:
    """The objects in a template of templates/cluster."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(Path(__file__).parents[2] / "templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = env.get_template(f"cluster/{template}").render(**values)
    return [one for one in yaml.safe_load_all(text) if one]
