"""Templates of files that are wholly gpunode's: `templates/host/` mirrors where they land."""

from functools import cache
from pathlib import Path

import jinja2

from gpunode.errors import TemplateError
from gpunode.once import Once


def folder() -> Path:
    """The folder of templates: in the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(  # noqa: S701 - plain text for hosts, no HTML
        loader=jinja2.FileSystemLoader(folder() / "host"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@Once
def _template(name: str) -> jinja2.Template:
    return _environment().get_template(f"{name}.j2")


def template(name: str, **values: object) -> str:
    """The text of `templates/host/<name>.j2` with these values. Raises TemplateError for a missing one."""
    try:
        return _template(name).render(**values)
    except jinja2.TemplateNotFound:
        raise TemplateError(
            f"template host/{name}.j2 is missing in {folder()}",
            hint="Reinstall gpunode, or restore the file in the checkout.",
        ) from None
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"{folder()}/host/{name}.j2{f':{line}' if line else ''}"
        raise TemplateError(f"{where}: {error}", hint="Fix the template.") from error
