"""Templates mirror where they land, and name their mistakes."""

from pathlib import Path

import pytest

from gpunode.errors import TemplateError
from gpunode.planning import templates
from gpunode.planning.templates import template


def test_a_template_that_is_missing_is_named():
    """With the place where it was looked for."""
    with pytest.raises(TemplateError, match=r"host/etc/none\.j2 is missing"):
        template("etc/none")


def test_a_value_that_a_template_does_not_get_is_named():
    """A hole is never rendered as nothing."""
    with pytest.raises(TemplateError, match=r"gpunode\.sources\.j2.*'uri' is undefined"):
        template("etc/apt/sources.list.d/gpunode.sources", keyring="/k")


def test_templates_mirror_the_places_where_they_land():
    """Their names are absolute paths of hosts."""
    names = [str(p.relative_to(templates.folder() / "host")) for p in templates.folder().glob("host/**/*.j2")]
    assert names
    assert {Path(name).parts[0] for name in names} <= {"etc", "usr"}
