"""Sample workloads: manifests that the Kubernetes API takes, with what their user names in them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gpunode.cli import app
from gpunode.links.pod.samples import SAMPLES
from gpunode.planning import templates
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import Store
from gpunode.sim.controllers import run_jobs
from gpunode.sim.scheduler import schedule
from tests.unit.test_articles import ROOT, options

OWN = {"cuda": "registry.example/me/app:1"}  # the one that has no usual image
MODEL = "accelerator"
KINDS = {
    "notebook": ["Deployment", "Service"],
    "mnist": ["Job"],
    "cuda": ["Pod"],
    "vectoradd": ["Pod"],
    "binpack": ["Deployment"],
}


def printed(name: str, *words: str) -> list[dict[str, Any]]:
    """The objects that the command prints."""
    image = ("--image", OWN[name]) if name in OWN else ()
    done = CliRunner().invoke(app, ["run", "manifest", name, *image, *words])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods that controllers make of them."""
    for item in objects:
        template = item if item["kind"] == "Pod" else item["spec"].get("template")
        if template is not None:
            meta = {"name": item["metadata"]["name"], "namespace": item["metadata"]["namespace"]}
            count = item["spec"].get("replicas", 1)
            for number in range(count):
                named = {**template.get("metadata", {}), **meta, "name": f"{meta['name']}-{number}"}
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": template["spec"]}


def mistakes(value: Any, kind: str, where: str) -> list[str]:
    """Fields that Kubernetes' API does not have there, or whose values are of another type, by the types of its client, which
    are generated from its OpenAPI document."""
    if kind.startswith("List["):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [bad for at, each in enumerate(value) for bad in mistakes(each, kind[5:-1], f"{where}[{at}]")]
    if kind.startswith("Dict["):
        inner = kind[5:-1].partition(", ")[2]
        pairs = value.items() if isinstance(value, dict) else [("", None)]
        # Quantities are strings there; the API takes numbers, too.
        return [f"{where}.{key}: not {inner}" for key, each in pairs if not isinstance(each, (str, int))]
    from kubernetes import client

    model = getattr(client, kind, None)
    if model is None:
        plain = {"str": str, "int": int, "bool": bool, "object": (str, int)}.get(kind, object)
        return [] if isinstance(value, plain) else [f"{where}: not {kind}"]
    if not isinstance(value, dict):
        return [f"{where}: not a {kind}"]
    fields = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
    unknown = [f"{where}.{key}: {kind} has no such field" for key in value if key not in fields]
    return unknown + [
        bad
        for key, each in value.items()
        if key in fields
        for bad in mistakes(each, fields[key], f"{where}.{key}")
    ]


def test_a_wrong_field_or_value_is_a_mistake():
    """Of the check itself, which the others rest on."""
    wrong = {"kind": "Pod", "spec": {"containers": [{"name": 1, "limits": {}}], "tolerations": {}}}
    assert mistakes(wrong, "V1Pod", "pod") == [
        "pod.spec.containers[0].limits: V1Container has no such field",
        "pod.spec.containers[0].name: not str",
        "pod.spec.tolerations: not a list",
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_api_knows_every_field(name: str):
    """With nothing named, and with all that can be."""
    named = ("--node-selector", f"{MODEL}=nvidia-tesla-p100", "--runtime-class", "nvidia")
    for objects in (printed(name), printed(name, *named)):
        assert [value["kind"] for value in objects] == KINDS[name]
        for item in objects:
            assert mistakes(item, f"V1{item['kind']}", item["kind"]) == []


def test_the_commands_names_are_those_of_the_samples_and_of_their_templates():
    there = {path.name.partition(".")[0] for path in templates.folder().glob("cluster/samples/*.j2")}
    assert set(SAMPLES) == set(KINDS) == there - {"placement"}
    words = CliRunner().invoke(app, ["run", "manifest", "--help"]).stdout
    assert all(name in words for name in SAMPLES)


@pytest.mark.parametrize("name", [name for name, kinds in KINDS.items() if kinds[0] in {"Deployment", "Job"}])
def test_a_controller_finds_its_own_pods(name: str):
    """Its selector, and that of a Service, match the labels of its pods."""
    (pod, *_) = pods(printed(name))
    for item in printed(name):
        selector = item["spec"].get("selector", {})
        assert selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("name", SAMPLES)
def test_its_pods_are_placed_on_the_nodes_that_its_user_names(name: str):
    """By the simulated API server and scheduler: one with a taint for GPUs is tolerated, one of another model is not taken."""
    store = Store()
    for kind, called in (("Namespace", "ml"), ("RuntimeClass", "nvidia")):
        store.put({"kind": kind, "apiVersion": "v1", "metadata": {"name": called}})
    for node, model in (("a", "nvidia-tesla-k80"), ("b", "nvidia-tesla-p100")):
        room = {"cpu": "4", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "1", "aliyun.com/gpu-mem": "6"}
        meta = {"name": node, "labels": {MODEL: model}}
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        store.put({"kind": "Node", "apiVersion": "v1", "metadata": meta, "spec": {"taints": [taint]}, "status": {"allocatable": room}})  # fmt: skip
    words = ("-n", "ml", "--node-selector", f"{MODEL}=nvidia-tesla-p100", "--runtime-class", "nvidia")
    for pod in pods(printed(name, *words)):
        Resources(store, "Pod", "ml").create(pod, {"fieldManager": "kubectl"})
    schedule(store)
    made = store.all("Pod")
    assert len(made) == (3 if name == "binpack" else 1)
    assert {pod["spec"].get("nodeName") for pod in made} == {"b"}


def test_pods_that_find_no_memory_on_any_gpu_wait():
    """The third pod of three that share 4 GiB by 2."""
    store = Store()
    store.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}})
    room = {"pods": "9", "aliyun.com/gpu-mem": "4"}
    store.put({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {}, "status": {"allocatable": room}})  # fmt: skip
    for pod in pods(printed("binpack")):
        Resources(store, "Pod", "default").create(pod, {"fieldManager": "kubectl"})
    schedule(store)
    assert [pod["spec"].get("nodeName") for pod in store.all("Pod")].count("a") == 2


@pytest.mark.parametrize(
    ("phases", "ended"), [(["Succeeded"], "Complete"), (["Failed"], ""), (["Failed", "Failed"], "Failed")]
)
def test_a_simulated_job_ends_with_its_pods(phases: list[str], ended: str):
    """The one that learns MNIST has a second pod where the first failed, and no third."""
    store = Store()
    store.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}})
    (job,) = printed("mnist")
    Resources(store, "Job", "default").create(job, {"fieldManager": "kubectl"})
    for phase in phases:
        run_jobs(store)
        (pod,) = [value for value in store.all("Pod") if value["status"]["phase"] == "Pending"]
        store.change(pod, lambda item, phase=phase: item["status"].update(phase=phase))
    run_jobs(store)
    (job,) = store.all("Job")
    assert [value["type"] for value in job["status"].get("conditions", [])] == ([ended] if ended else [])
    assert len(store.all("Pod")) == (1 if ended == "Complete" else 2)


def test_an_image_of_ones_own_is_asked_for():
    assert CliRunner().invoke(app, ["run", "manifest", "cuda"]).exit_code != 0


@pytest.mark.parametrize(("words", "what"), [((), "no workload is named"), (("wrong",), "no workload wrong")])
def test_a_name_that_is_none_is_answered_with_those_that_are(words: tuple[str, ...], what: str):
    done = CliRunner().invoke(app, ["run", "manifest", *words])
    assert what in str(done.exception)
    assert "notebook, mnist, cuda, vectoradd, binpack" in str(done.exception)


def test_a_label_without_a_value_is_refused():
    done = CliRunner().invoke(app, ["run", "manifest", "cuda", "--image", "a", "--node-selector", "gpu"])
    assert "expected LABEL=VALUE" in str(done.exception)


def test_programs_get_an_object_a_line():
    done = CliRunner().invoke(app, ["run", "manifest", "notebook", "--json"])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["type"], line["object"]["kind"]) for line in lines] == [("manifest", "Deployment"), ("manifest", "Service")]  # fmt: skip


def test_the_document_has_every_manifest_with_its_image_and_commands_that_exist():
    """docs/workloads.md."""
    text = (ROOT / "docs/workloads.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| .* \| (.*) \|$", text))
    assert rows == {
        entry.name: f"`{entry.image}`" if entry.image else "yours, by `--image`" for entry in SAMPLES.values()
    }
    spans = [*re.findall(r"(?m)^gpunode (.*)$", text), *re.findall(r"`gpunode ([^`]+)`", text)]
    assert len(spans) > 9
    for span in spans:
        given, there = options(span.partition(" |")[0].split())
        assert {word for word in given if word.startswith("-")} <= there
