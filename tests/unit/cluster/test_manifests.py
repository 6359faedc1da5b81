"""What the manifests promise: ours by label, small in rights, and right for every runtime."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from gpunode.cluster import manifests as cluster_manifests
from gpunode.cluster.manifests import rendered
from gpunode.cluster.plugin import manifests
from gpunode.errors import TemplateError
from gpunode.model import PluginImage

ALL = manifests("gpunode", PluginImage("gpunode/device-plugin:0.1.0", image_id="sha256:12"))
DAEMONSETS = [one for one in ALL if one["kind"] == "DaemonSet"]


def vectoradd(**values: object) -> dict[str, object]:
    given = {
        "name": "vectoradd-1-0",
        "namespace": "gpunode",
        "run": "12345678",
        "hostname": "gpu-01",
        "taints": (),
        "image": "gpunode/device-plugin:0.1.0",
        "args": ("-m", "x"),
        "runtime_class": None,
        "seconds": 60,
    }
    (made,) = rendered("vectoradd.yaml.j2", **(given | values))
    return made


def test_everything_carries_our_label() -> None:
    """It is what `remove` goes by; the pods of a DaemonSet carry it too."""
    for one in [*ALL, vectoradd(), *(daemonset["spec"]["template"] for daemonset in DAEMONSETS)]:
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpunode"


def test_the_plugin_has_no_rights_in_the_cluster_and_few_on_the_node() -> None:
    """No role, no token, no capabilities, a read-only root file system, one folder of the host."""
    assert {one["kind"] for one in ALL} == {"Namespace", "ServiceAccount", "RuntimeClass", "DaemonSet"}
    for daemonset in DAEMONSETS:
        spec = daemonset["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert [one["hostPath"]["path"] for one in spec["volumes"]] == ["/var/lib/kubelet/device-plugins"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False


def test_every_gpu_node_is_served_by_exactly_one_of_the_two_daemonsets() -> None:
    """One for nodes where nvidia is the default runtime (docker among them), one that asks for the RuntimeClass."""
    rules = {}
    for daemonset in DAEMONSETS:
        spec = daemonset["spec"]["template"]["spec"]
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        gpu, runtime = term["matchExpressions"]
        assert (gpu["key"], gpu["operator"], gpu["values"]) == ("gpunode.dev/gpu", "In", ["true"])
        assert (runtime["key"], runtime["values"]) == ("gpunode.dev/runtime", ["class"])
        rules[runtime["operator"]] = spec.get("runtimeClassName")
    assert rules == {"NotIn": None, "In": "nvidia"}


def test_another_image_of_the_same_name_is_another_template() -> None:
    """A side-loaded image may be rebuilt under its old tag; its id makes the DaemonSet roll."""
    notes = DAEMONSETS[0]["spec"]["template"]["metadata"]["annotations"]
    assert notes == {"gpunode.dev/image-id": "sha256:12"}
    plain = manifests("gpunode", PluginImage("gpunode/device-plugin:0.1.0"))[-1]
    assert "annotations" not in plain["spec"]["template"]["metadata"]


def test_a_vectoradd_pod_takes_one_gpu_and_fits_the_restricted_level() -> None:
    """One GPU for the container that adds, none for the one that holds; nothing that a strict namespace forbids."""
    spec = vectoradd()["spec"]
    adds, holds = spec["containers"]
    assert adds["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert "resources" not in holds
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (adds, holds):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "gpu-01"}


def test_a_vectoradd_pod_follows_its_node() -> None:
    """It tolerates the taints people set there, and takes the RuntimeClass where that is the only way."""
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    spec = vectoradd(taints=(taint,), runtime_class="nvidia")["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert {"key": "dedicated", "value": "ml", "effect": "NoSchedule"} in spec["tolerations"]
    assert "runtimeClassName" not in vectoradd()["spec"]


def test_another_image_starts_as_it_does_by_itself() -> None:
    """No arguments: the image's own command, as NVIDIA's sample has it."""
    assert "args" not in vectoradd(args=())["spec"]["containers"][0]


def test_names_that_yaml_would_misread_stay_text() -> None:
    """A namespace called `no`, a hostname that is a number."""
    assert manifests("no", PluginImage("x"))[0]["metadata"]["name"] == "no"
    assert vectoradd(hostname="101")["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "101"}


def test_a_template_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's own templates: a missing file, a value nobody gives, a text that is not YAML."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "value.j2").write_text("a: {{ nobody }}")
    (tmp_path / "cluster" / "yaml.j2").write_text("a: [")
    monkeypatch.setattr("gpunode.cluster.manifests.folder", lambda: tmp_path)
    monkeypatch.setattr(
        "gpunode.cluster.manifests._environment", inspect.unwrap(cluster_manifests._environment)
    )
    for name in ("missing.j2", "value.j2", "yaml.j2"):
        with pytest.raises(TemplateError, match=re.escape(f"{tmp_path}/cluster/{name}")):
            rendered(name)
