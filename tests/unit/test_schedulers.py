"""What tells a scheduler of the extender: in which form, as lines of others' files, and taken back byte for byte."""

import base64
from typing import Any

import pytest
import yaml

from gpunode.errors import CannotPlan
from gpunode.links.scheduler import configuration, plan
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.model import Change, File, RemoveFile, WriteFile
from tests import tables

KUBEADM = """\
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: null
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --bind-address=127.0.0.1  # the operator's words
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    - --leader-elect=true
    image: registry.k8s.io/kube-scheduler:v1.{minor}.3
    name: kube-scheduler
    volumeMounts:
    - mountPath: /etc/kubernetes/scheduler.conf
      name: kubeconfig
      readOnly: true
  hostNetwork: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/scheduler.conf
      type: FileOrCreate
    name: kubeconfig
status: {}
"""
BARE = """\
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler}
spec:
  hostNetwork: true
  containers:
    - name: kube-scheduler
      image: registry.example.org/kube-scheduler:v1.30.1@sha256:0
      command: [kube-scheduler]
      args:
        - --kubeconfig=/etc/kubernetes/scheduler.conf
        - --v=2
"""
OWN = """\
# our scheduler
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
"""
EXTENDERS = (
    OWN
    + """\
extenders:
  - urlPrefix: http://other:80
    filterVerb: filter
profiles:
  - schedulerName: default-scheduler
"""
)
SECRET = {name: base64.b64encode(f"{name}\n".encode()).decode() for name in plan.CERTIFICATES}
WANTED = plan.Access("10.96.0.7", "aliyun.com/gpu-mem", SECRET)


def files(**contents: str) -> dict[str, File]:
    """Facts of a host with a manifest and other files, `config` at /etc/kubernetes/own.yaml."""
    paths = {"manifest": MANIFEST, "config": "/etc/kubernetes/own.yaml"}
    probed = {path: File(path, exists=False) for path in plan.FILES}
    return probed | {
        paths[name]: File(paths[name], exists=True, content=text) for name, text in contents.items()
    }


def after(before: dict[str, File], changes: tuple[Change, ...]) -> dict[str, File]:
    """The facts once these changes were made."""
    contents = dict(before)
    for change in changes:
        if isinstance(change, WriteFile):
            assert contents[change.path].content == change.before
            contents[change.path] = File(change.path, exists=True, content=change.content)
        elif isinstance(change, RemoveFile):
            contents[change.path] = File(change.path, exists=False)
    return contents


def content(files: dict[str, File], path: str) -> str:
    text = files[path].content
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("minor", "flag", "version"),
    [
        (18, "--policy-config-file=/etc/kubernetes/gpunode-share/policy.json", "v1"),
        (19, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1beta1"),
        (21, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1beta1"),
        (22, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1beta2"),
        (24, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1beta3"),
        (25, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1"),
        (36, "--config=/etc/kubernetes/gpunode-share/scheduler.yaml", "kubescheduler.config.k8s.io/v1"),
    ],
)
def test_the_form_follows_the_version(minor: int, flag: str, version: str):
    """The manifest's image names it, not the API server's; the pod has one flag, one mount and one volume more."""
    text = KUBEADM.replace("{minor}", str(minor))
    before = files(manifest=text)
    changes, volume = plan.enable(before, 99, WANTED)
    now = after(before, changes)

    assert isinstance(changes[-1], WriteFile)
    assert changes[-1].path == MANIFEST
    pod = yaml.safe_load(content(now, MANIFEST))
    container = pod["spec"]["containers"][0]
    assert container["command"].count(flag) == 1
    assert container["volumeMounts"][0] == {"name": volume, "mountPath": plan.FOLDER, "readOnly": True}
    assert pod["spec"]["volumes"][0]["hostPath"] == {"path": plan.FOLDER, "type": "Directory"}
    assert "# the operator's words" in content(now, MANIFEST)
    document = yaml.safe_load(content(now, flag.partition("=")[2]))
    assert document["apiVersion"] == version
    (extender,) = document["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.7/share"
    policy = minor < 19
    assert extender["enableHttps" if policy else "enableHTTPS"] is True
    assert extender["httpTimeout"] == (10**10 if policy else "10s")
    assert extender["managedResources"] == [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}]
    if not policy:
        assert document["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
        assert document["leaderElection"] == {"leaderElect": True}


@pytest.mark.parametrize(
    ("contents", "paths"),
    [
        ({"manifest": KUBEADM.replace("{minor}", "36")}, []),
        ({"manifest": KUBEADM.replace("{minor}", "17")}, []),
        ({"manifest": BARE}, []),
        ({"manifest": BARE.replace("--v=2", "--config=/etc/kubernetes/own.yaml"), "config": OWN}, ["config"]),
        (
            {"manifest": BARE.replace("--v=2", "--config=/etc/kubernetes/own.yaml"), "config": EXTENDERS},
            ["config"],
        ),
    ],
    ids=["kubeadm", "policy", "args, no mounts", "own configuration", "own extenders"],
)
def test_it_is_taken_back_byte_for_byte(contents: dict[str, str], paths: list[str]):
    """Enabled twice nothing is left to do; disabled, all is as it was."""
    before = files(**contents)
    changes, volume = plan.enable(before, 36, WANTED)
    now = after(before, changes)
    again = plan.enable(now, 36, WANTED)
    assert again == ((), volume)

    changes = plan.disable(now)
    assert after(now, changes) == before
    assert all(change.folder for change in changes if isinstance(change, RemoveFile))
    assert plan.disable(before) == ()


def test_the_operators_configuration_is_extended_in_place():
    """Its own extender stays, and so do its comments; the manifest gets no second --config."""
    before = files(manifest=BARE.replace("--v=2", "--config=/etc/kubernetes/own.yaml"), config=EXTENDERS)
    assert plan.named_configuration(before) == ("/etc/kubernetes/own.yaml",)
    now = after(before, plan.enable(before, 36, WANTED)[0])

    text = content(now, "/etc/kubernetes/own.yaml")
    assert [extender["urlPrefix"] for extender in yaml.safe_load(text)["extenders"]] == [
        "https://10.96.0.7/share",
        "http://other:80",
    ]
    assert text.startswith("# our scheduler\n")
    args = yaml.safe_load(content(now, MANIFEST))["spec"]["containers"][0]["args"]
    assert args == ["--kubeconfig=/etc/kubernetes/scheduler.conf", "--config=/etc/kubernetes/own.yaml"]


def test_another_certificate_starts_the_scheduler_again():
    """The kubelet does so only for another manifest: the volume's name changes."""
    before = files(manifest=BARE)
    changes, volume = plan.enable(before, 36, WANTED)
    other = plan.Access(WANTED.address, WANTED.resource, SECRET | {"client.crt": "bmV3Cg=="})
    again, changed = plan.enable(after(before, changes), 36, other)

    assert volume != changed
    assert [change.path for change in again if isinstance(change, WriteFile)] == [
        f"{plan.FOLDER}/client.crt",
        MANIFEST,
    ]


@tables.rows("schedulers")
def test_what_cannot_be_extended_is_left_as_it_is(contents: dict[str, str], words: str):
    """With the file, and what to do."""
    with pytest.raises(CannotPlan) as caught:
        plan.enable(files(**contents), 36, WANTED)
    assert words in caught.value.message
    assert caught.value.hint


FLAGS = """\
    - --profiling=false
    - --contention-profiling=F
    - --kube-api-qps=80
    - --kube-api-burst
    - "160"
    - --kube-api-content-type=application/json
    - --leader-elect-lease-duration=30s
    - --leader-elect-resource-name=ours
    - --lock-object-namespace=infra
    - --scheduler-name=ours
    - --hard-pod-affinity-symmetric-weight=7
    - --port=0
    - --v=2
"""


@pytest.mark.parametrize(
    ("minor", "more"),
    [
        (20, {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (22, {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (23, {}),
        (36, {}),
    ],
)
def test_flags_that_a_configuration_overrules_are_in_it(minor: int, more: dict[str, str]):
    """By cmd/kube-scheduler/app/options of 1.19 to 1.36; the manifest keeps them. --v counts beside a configuration."""
    text = KUBEADM.replace("{minor}", str(minor)).replace("    - --leader-elect=true\n", FLAGS)
    before = files(manifest=text)
    now = after(before, plan.enable(before, 36, WANTED)[0])
    document = yaml.safe_load(content(now, plan.SCHEDULER))
    for key in ("apiVersion", "kind", "extenders"):
        del document[key]
    assert document == {
        "clientConnection": {
            "kubeconfig": "/etc/kubernetes/scheduler.conf",
            "contentType": "application/json",
            "qps": 80.0,
            "burst": 160,
        },
        "enableProfiling": False,
        "enableContentionProfiling": False,
        "leaderElection": {
            "leaderElect": True,
            "leaseDuration": "30s",
            "resourceName": "ours",
            "resourceNamespace": "infra",
        },
        "profiles": [
            {
                "schedulerName": "ours",
                "pluginConfig": [{"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 7}}],
            }
        ],
        **more,
    }


@pytest.mark.parametrize("minor", [18, 19, 22])
def test_another_algorithm_provider_is_refused_by_name(minor: int):
    """Neither a Policy nor a configuration has a place for it. The default one, and that beside the operator's own configuration, stay."""

    def given(provider: str) -> str:
        word = f"--leader-elect=true\n    - --algorithm-provider={provider}"
        return KUBEADM.replace("{minor}", str(minor)).replace("--leader-elect=true", word)

    with pytest.raises(CannotPlan, match="--algorithm-provider=ClusterAutoscalerProvider") as caught:
        plan.enable(files(manifest=given("ClusterAutoscalerProvider")), minor, WANTED)
    assert MANIFEST in caught.value.message
    assert caught.value.hint
    for provider in ("", "DefaultProvider"):
        assert plan.enable(files(manifest=given(provider)), minor, WANTED)[0]
    own = given("ClusterAutoscalerProvider").replace(
        "--leader-elect=true", "--config=/etc/kubernetes/own.yaml"
    )
    assert plan.enable(files(manifest=own, config=OWN), minor, WANTED)[0]


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({}, None),  # the default of both
        ({"port": "8080"}, ":8080"),
        ({"port": "0"}, "127.0.0.1:10251"),
        ({"port": "8080", "address": "10.0.0.1"}, "10.0.0.1:8080"),
        ({"address": "::1"}, "[::1]:10251"),
    ],
)
def test_the_port_without_tls_stays_where_it_was(given: dict[str, str], bound: str | None):
    """Up to 1.22 a configuration without addresses opens it on all of them, and none closes it."""
    assert configuration.as_configuration(MANIFEST, given, 20).get("healthzBindAddress") == bound
    assert "healthzBindAddress" not in configuration.as_configuration(MANIFEST, given, 23)


@pytest.mark.parametrize("word", ["--kube-api-burst=many", "--profiling=maybe", "--kube-api-qps=fast"])
def test_a_flag_that_cannot_be_read_is_named(word: str):
    """With its file: it would be lost."""
    text = KUBEADM.replace("{minor}", "30").replace("--leader-elect=true", word)
    with pytest.raises(CannotPlan, match=word) as caught:
        plan.enable(files(manifest=text), 30, WANTED)
    assert MANIFEST in caught.value.message


def test_a_flag_is_not_added_between_another_and_its_value():
    """`--flag value` is as good as `--flag=value`."""
    text = BARE.replace(
        "--kubeconfig=/etc/kubernetes/scheduler.conf", "--kubeconfig\n        - /etc/own.conf"
    )
    before = files(manifest=text)
    now = after(before, plan.enable(before, 36, WANTED)[0])
    args = yaml.safe_load(content(now, MANIFEST))["spec"]["containers"][0]["args"]
    assert args == [f"--config={plan.SCHEDULER}", "--kubeconfig", "/etc/own.conf", "--v=2"]
    document = yaml.safe_load(content(now, plan.SCHEDULER))
    assert document["clientConnection"] == {"kubeconfig": "/etc/own.conf"}


def test_a_mark_is_no_part_of_anybodys_line():
    """Lines of the operator that only mention it stay."""
    text = "a: 1  # gpunode share is here\nb: 2\n"
    assert configuration.strip_marked(configuration.add_marked(text, 1, 2, ["c: 3"])) == text


def test_every_version_is_one_that_its_schedulers_read():
    """By Kubernetes' own table: from and to the minor versions that read it."""
    reads: dict[str, Any] = {"v1beta1": (19, 22), "v1beta2": (22, 27), "v1beta3": (23, 28), "v1": (25, 99)}
    for minor in range(19, 40):
        first, last = reads[configuration.version_for(minor)]
        assert first <= minor <= last
    assert configuration.version_for(18) == ""


@pytest.mark.parametrize("text", ["a: [\n", "[]", "kind: Pod\n", ""])
def test_a_manifest_that_cannot_be_read_names_no_more_files_and_is_refused_by_the_plan(text: str):
    """A probe is no place for a refusal of the plan."""
    assert plan.named_configuration({MANIFEST: File(MANIFEST, exists=True, content=text)}) == ()
