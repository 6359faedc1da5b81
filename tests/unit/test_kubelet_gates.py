"""Feature gates merged into what a kubelet is started with: the rest of each file stays as it is, byte for byte."""

import pytest
import yaml

from gpunode.links.kubelet import systemd
from gpunode.links.kubelet.gates import (
    config_gates,
    into_command,
    into_config,
    into_flags,
    into_unit_variable,
    into_variable,
    kubelet_args,
)
from tests import tables

OUT = {"DevicePlugins": None}


@tables.rows("gates-taken-out")
def test_a_gate_taken_out_leaves_the_rest_byte_for_byte(before: str, after: str):
    """An empty flag goes with it; quotes, comments and other gates stay."""
    assert kubelet_args(before, OUT) == after
    assert kubelet_args(after, OUT) == after


@tables.rows("gates-of-variables")
def test_a_gate_is_set_at_the_end_of_a_variable(before: str, after: str):
    """Or as a line of its own where the file does not set the variable."""
    assert into_variable(before, "ARGS", "--feature-gates=G=true") == after
    assert kubelet_args(after, {"G": True}) == after


@tables.rows("gates-that-join")
def test_a_gate_joins_a_flag_that_is_there(before: str, after: list[str]):
    """Each flag of the file is offered, the last one first."""
    assert list(into_flags(before, {"G": True})) == after


@tables.rows("gates-of-units")
def test_a_gate_is_set_in_a_variable_of_a_unit(before: str, after: str):
    """In the last assignment, within its quotes."""
    assert into_unit_variable(f"[Service]\n{before}", "A", "--feature-gates=G=true") == f"[Service]\n{after}"


@tables.rows("gates-of-commands")
def test_a_gate_is_set_at_the_end_of_a_command(before: str, after: str):
    """On a line of its own where the arguments are."""
    text = f"[Service]\n{before}"
    (setting,) = (each for each in systemd.read_unit(text) if each.key == "ExecStart")
    assert into_command(text, setting, {"G": True}) == f"[Service]\n{after}"


KIND = "kind: KubeletConfiguration\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (KIND, f"{KIND}featureGates:\n  G: true\n"),
        (f"{KIND}a: 1 # x\n# end\n", f"{KIND}a: 1 # x\nfeatureGates:\n  G: true\n# end\n"),
        (
            f"{KIND}a:\n- b: 1\n  c: [1,\n   2]",
            f"{KIND}a:\n- b: 1\n  c: [1,\n   2]\nfeatureGates:\n  G: true\n",
        ),
        (f"{KIND}a: |\n  x\n  y\n", f"{KIND}a: |\n  x\n  y\nfeatureGates:\n  G: true\n"),
        (f"featureGates:\n    X: true # x\n{KIND}", f"featureGates:\n    X: true # x\n    G: true\n{KIND}"),
        (f"featureGates: {{X: true}}\n{KIND}", f"featureGates: {{X: true, G: true}}\n{KIND}"),
        (f"featureGates: {{}}\n{KIND}", f"featureGates: {{G: true}}\n{KIND}"),
        (f"featureGates:\n{KIND}", f"featureGates:\n  G: true\n{KIND}"),
        (
            "---\nkind: KubeletConfiguration\r\na: 1\r\n",
            "---\nkind: KubeletConfiguration\r\na: 1\r\nfeatureGates:\r\n  G: true\r\n",
        ),
        (
            '{\n\t"kind": "KubeletConfiguration",\n\t"a": {"b": 1}\n}\n',
            '{\n\t"kind": "KubeletConfiguration",\n\t"a": {"b": 1},\n\t"featureGates": {"G": true}\n}\n',
        ),
        (
            '{"kind":"KubeletConfiguration","featureGates":{"X":true}}',
            '{"kind":"KubeletConfiguration","featureGates":{"X":true, "G": true}}',
        ),
        ("kind: Other\n", None),
        ("kind: KubeletConfiguration\na: x\ty: z\n\tb: 1\n", None),
        ("- a\n", None),
        ("", None),
    ],
)
def test_a_gate_is_set_in_a_kubelet_configuration(before: str, after: str | None):
    """In its own style, comments kept; not where the file is none."""
    assert into_config(before, {"G": True}) == after
    if after is not None:
        assert yaml.safe_load(after.replace("\t", " "))["featureGates"]["G"] is True


@tables.rows("gates-of-configurations")
def test_gates_of_a_kubelet_configuration(before: str, gates: dict[str, bool | None], after: str):
    """Only what the file sets is changed, in its own style."""
    assert config_gates(before, gates) == after
