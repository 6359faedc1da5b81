"""YAML and JSON of hosts, clusters and users: whatever a text holds, its reader gets data or one kind of error."""

import base64
from collections.abc import Callable

import pytest
import yaml

from gpunode.cluster.api import kubeconfig, notes
from gpunode.contract import cordons, usage, yaml_text
from gpunode.errors import CannotPlan, UsageError
from gpunode.links.kubelet import rancher, start
from gpunode.links.plugin.image import registry

DEEP = "[" * 200_000
BAD = {
    "nested": DEEP,
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
def test_a_text_without_data_is_one_kind_of_error(text: str):
    """PyYAML itself raises seven kinds, and ends the process for the first."""
    with pytest.raises(yaml.YAMLError):
        yaml_text.data(text)


@pytest.mark.parametrize("name", ["nested", "nested in lines", "control character"])
def test_a_node_agents_file_that_nests_too_deep_is_refused(name: str):
    """It is named, as one with any other mistake is."""
    with pytest.raises(CannotPlan, match=r"/etc/a\.yaml does not parse"):
        list(rancher.read_settings(BAD[name], "/etc/a.yaml"))


@pytest.mark.parametrize("text", [*BAD.values(), '{"a": ' * 50_000])
def test_a_kubelets_file_that_cannot_be_read_is_a_problem(text: str):
    """In YAML and in JSON."""
    assert "not valid YAML" in (start.read_config([("", text)])[1] or "")


@pytest.mark.parametrize("read", [usage.loads, cordons.loads])
def test_json_that_nests_too_deep_is_a_value_error(read: Callable[[str], object]):
    """As other text that is none; a traceback would be a bug of gpunode's."""
    with pytest.raises(ValueError, match="nested too deeply"):
        read(DEEP)


def test_deep_notes_and_tokens_of_others_are_none():
    token = base64.urlsafe_b64encode(f'{{"exp": {DEEP}'.encode()).decode().rstrip("=")
    assert kubeconfig._end_of_token(f"Bearer a.{token}.b") is None
    assert notes.read({"metadata": {"annotations": {f"{notes.PREFIX}x": DEEP}}}) == {}


def test_a_deep_login_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    (tmp_path / "auth.json").write_text(DEEP)
    with pytest.raises(UsageError, match="the login for r cannot be read"):
        registry.login("r", "i")
