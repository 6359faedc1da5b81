"""YAML of hosts and clusters: whatever a text holds, its reader gets data or one kind of error."""

from __future__ import annotations

import pytest
import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan
from gpunode.links.kubelet import rancher, start

BAD = {
    "nested": "[" * 200_000,
    "nested in lines": "- " * 20_000 + "x",
    "nested mappings": "{a: " * 20_000,
    "date": "a: 2026-13-45",
    "time": "2026-01-01T99:00:00Z",
    "timestamp": "!!timestamp soon",
    "long number": "a: " + "9" * 5000,
    "int": "!!int x",
    "empty int": '!!int ""',
    "float": "!!float x",
    "bool": "!!bool maybe",
    "binary": "!!binary x",
    "key": "? [a]\n: b",
    "merge": "<<: 1",
    "tag": "!!python/object/apply:os.system [id]",
    "control character": "a: \0",
    "surrogate": "a: \ud800",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_text_without_data_is_one_kind_of_error(text: str) -> None:
    """PyYAML itself raises seven kinds, and ends the process for the first."""
    with pytest.raises(yaml.YAMLError):
        yaml_text.data(text)


@pytest.mark.parametrize("name", ["nested", "nested in lines", "control character"])
def test_a_node_agents_file_that_nests_too_deep_is_refused(name: str) -> None:
    """It is named, as one with any other mistake is."""
    with pytest.raises(CannotPlan, match=r"/etc/a\.yaml does not parse"):
        list(rancher.read_settings(BAD[name], "/etc/a.yaml"))


@pytest.mark.parametrize("text", [*BAD.values(), '{"a": ' * 50_000])
def test_a_kubelets_file_that_cannot_be_read_is_a_problem(text: str) -> None:
    """In YAML and in JSON."""
    assert "not valid YAML" in (start.read_config([("", text)])[1] or "")
