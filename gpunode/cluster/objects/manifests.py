"""Objects rendered from templates/cluster."""

import json
from functools import cache

import jinja2
import yaml

from gpunode.cluster.api.kinds import Object
from gpunode.errors import TemplateError
from gpunode.planning.templates import folder


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(  # noqa: S701 - YAML, no HTML
        loader=jinja2.FileSystemLoader(folder() / "cluster"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def text(template: str, /, **values: object) -> str:
    """The YAML in `templates/cluster/<template>` with these values."""
    try:
        return _environment().get_template(template).render(**values)
    except jinja2.TemplateError as error:
        raise _unusable(template, error) from error


def render(template: str, /, **values: object) -> list[Object]:
    """The objects in `templates/cluster/<template>` with these values."""
    try:
        objects: list[Object] = json.loads(_to_json(text(template, **values)))
    except yaml.YAMLError as error:
        raise _unusable(template, error) from error
    return objects


@cache
def _to_json(manifests: str) -> str:
    """A run renders the same manifests ten times over, and YAML takes twenty times as long to read."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; the wheels have it
    return json.dumps([manifest for manifest in yaml.load_all(manifests, loader) if manifest])


def _unusable(template: str, error: Exception) -> TemplateError:
    return TemplateError(
        f"{folder()}/cluster/{template}: {error}", hint="Fix the template, or reinstall gpunode."
    )
