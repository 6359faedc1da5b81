"""What the manifests promise: ours by label, small in rights, right for every runtime, with admission policies that hold their
accounts in. What these refuse: tests/lab/test_policies.py."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode import inventory
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.objects import apply
from gpunode.cluster.objects import manifests as cluster_manifests
from gpunode.cluster.objects.manifests import render
from gpunode.contract.promises import ALLOCATION, ASSIGNED, ASSUMED, DEV, INDEX, MEMORY_ANNOTATION, POD
from gpunode.contract.status import ANNOTATION
from gpunode.errors import TemplateError
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler.deployment import Spec as ExtenderSpec
from gpunode.links.scheduler.deployment import rights_to_remove
from gpunode.model import PluginConfig, PluginImage, PluginPublish, Share
from gpunode.share.waiting import ROOM

from .conftest import NS, has
from .fake import FakeApi

ALL = Spec("gpunode", PluginImage("gpunode/device-plugin:0.1.0", image_id="sha256:12")).manifests
DAEMONSETS = [item for item in ALL if item["kind"] == "DaemonSet"]


def vectoradd(**values: object) -> dict[str, object]:
    given = {
        "name": "vectoradd-1-0",
        "namespace": "gpunode",
        "run": "12345678",
        "holder": "",
        "hostname": "gpu-01",
        "taints": (),
        "image": "gpunode/device-plugin:0.1.0",
        "pull": "IfNotPresent",
        "args": ("-m", "x"),
        "resource": "nvidia.com/gpu",
        "amount": 1,
        "scheduler": "",
        "claims": "",
        "runtime_class": None,
        "seconds": 60,
    }
    (made,) = render("vectoradd.yaml.j2", **(given | values))
    return made


def test_everything_carries_our_label():
    """It is what `remove` goes by; the pods of a DaemonSet carry it too."""
    for item in [*ALL, vectoradd(), *(daemonset["spec"]["template"] for daemonset in DAEMONSETS)]:
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpunode"


def test_the_plugin_is_ready_only_when_it_says_so():
    """The address that the probe asks is the one that it is told to listen on, whatever else it serves."""
    for metrics in (True, False):
        publish = PluginPublish(metrics=metrics)
        for manifest in Spec("gpunode", PluginImage("x"), None, publish).manifests:
            if manifest["kind"] == "DaemonSet":
                (container,) = manifest["spec"]["template"]["spec"]["containers"]
                asked = container["readinessProbe"]["httpGet"]
                assert asked["path"] == "/readyz"
                assert {"name": "PROBE_ADDRESS", "value": f":{asked['port']}"} in container["env"]
                assert f":{asked['port']}" == inventory.PROBES  # by which files are judged


def rights(publish: PluginPublish) -> set[tuple[str, str, str]]:
    """(namespace, verbs, resources) of every role; "" is the whole cluster."""
    return {
        (manifest["metadata"].get("namespace", ""), " ".join(rule["verbs"]), " ".join(rule["resources"]))
        for manifest in Spec("gpunode", PluginImage("x"), None, publish).manifests
        for rule in manifest.get("rules", [])
    }


def test_the_plugin_has_the_rights_that_what_it_tells_takes_and_no_others():
    """By default it says events; a token only where it has rights, and a name for the node it is about."""
    say = ("default", "create patch", "events")
    silent = PluginPublish(events=False)
    assert rights(PluginPublish()) == {say}
    assert rights(silent) == set()
    assert rights(PluginPublish(annotation=True)) == {say, ("", "patch", "nodes")}
    assert rights(PluginPublish(events=False, metrics=True)) == set()
    for publish, talks in ((PluginPublish(), True), (silent, False)):
        for daemonset in Spec("gpunode", PluginImage("x"), None, publish).manifests[-2:]:
            spec = daemonset["spec"]["template"]["spec"]
            assert spec["automountServiceAccountToken"] is talks
            names = [variable["name"] for variable in spec["containers"][0]["env"]]
            assert ("NODE_NAME" in names, "NODE_EVENTS" in names) == (talks, talks)


def test_several_configurations_come_with_the_right_to_watch_nodes():
    """The node's label chooses among them in the running pod: a changed one is no new template."""
    several = PluginConfig(files={"default": "version: v1\n", "shared": "version: v1  # é\n"})
    made = Spec("gpunode", PluginImage("x"), several, PluginPublish(events=False)).manifests
    (config_map,) = [manifest for manifest in made if manifest["kind"] == "ConfigMap"]
    assert config_map["data"] == several.files
    (role,) = [manifest for manifest in made if manifest["kind"] == "ClusterRole"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["watch"]}]
    for daemonset in made[-2:]:
        template = daemonset["spec"]["template"]
        assert "annotations" not in template["metadata"]
        assert template["spec"]["automountServiceAccountToken"] is True
        (container,) = template["spec"]["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert env["CONFIG_DIR"] in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert "CONFIG_FILE" not in env
        assert "NODE_NAME" in env
    both = Spec("gpunode", PluginImage("x"), several, PluginPublish(annotation=True)).manifests
    (role,) = [item for item in both if item["kind"] == "ClusterRole"]
    assert role["rules"][0]["verbs"] == ["patch", "watch"]
    mps = Spec("gpunode", PluginImage("x"), PluginConfig("", "", "/run/mps", several.files)).manifests[-1]
    assert mps["metadata"]["name"] == "gpunode-mps-class"
    (container,) = mps["spec"]["template"]["spec"]["containers"]
    assert {"CONFIG_DIR", "NODE_NAME"} < {variable["name"] for variable in container["env"]}


def test_mps_pods_have_an_account_of_their_own_that_at_most_watches_nodes():
    """They are privileged: the plugin's token, which may write, is not theirs."""
    publish = PluginPublish(annotation=True, promises=True)
    for files, talks in (({}, False), ({"default": "version: v1\n"}, True)):
        made = Spec("gpunode", PluginImage("x"), PluginConfig("v", "", "/run/mps", files), publish).manifests
        for daemonset in made[-2:]:
            spec = daemonset["spec"]["template"]["spec"]
            assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
                "gpunode-mps",
                talks,
            )
        named = {item["kind"]: item for item in made if item["metadata"]["name"] == "gpunode-mps"}
        assert named["ServiceAccount"]["automountServiceAccountToken"] is False
        watch = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["watch"]}]
        assert named.get("ClusterRole", {}).get("rules", []) == watch * talks
        assert set(named) == {"ServiceAccount", "DaemonSet"} | (
            {"ClusterRole", "ClusterRoleBinding"} if talks else set()
        )


def test_whatever_the_inventory_everything_that_it_applies_is_known_to_removal():
    publish = PluginPublish(events=True, annotation=True, metrics=True, promises=True)
    known = {(item["kind"], item["metadata"]["name"]) for item in all_objects("gpunode")}
    for config in (None, PluginConfig("v", "/cdi", "/run/mps"), PluginConfig("", "", "/run/mps", {"a": "v"})):
        made = Spec("gpunode", PluginImage("x"), config, publish).manifests
        assert {(manifest["kind"], manifest["metadata"]["name"]) for manifest in made} <= known


def test_the_kubelet_can_be_asked_what_pods_have():
    """Read-only, and the folder, as the socket in it is made anew when the kubelet is."""
    for daemonset in DAEMONSETS:
        spec = daemonset["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        mounts = {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]}
        assert mounts[str(Path(env["POD_RESOURCES_SOCKET"]).parent)] is True
        assert "/var/lib/kubelet/pod-resources" in [volume["hostPath"]["path"] for volume in spec["volumes"]]
        assert "METRICS_ADDRESS" not in env


def test_metrics_come_with_a_port_of_their_own():
    for daemonset in Spec("gpunode", PluginImage("x"), None, PluginPublish(metrics=True)).manifests[-2:]:
        (container,) = daemonset["spec"]["template"]["spec"]["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert env["METRICS_ADDRESS"] == f":{container['ports'][0]['containerPort']}" == inventory.METRICS


def test_the_plugin_has_few_rights_on_the_node():
    """No capabilities, a read-only root file system, two folders of the kubelet's: to be registered, and to ask."""
    for daemonset in DAEMONSETS:
        spec = daemonset["spec"]["template"]["spec"]
        assert {volume["hostPath"]["path"] for volume in spec["volumes"]} == {
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources",
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False


def test_every_gpu_node_is_served_by_exactly_one_of_the_two_daemonsets():
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


def test_another_image_of_the_same_name_is_another_template():
    """A side-loaded image may be rebuilt under its old tag; its id makes the DaemonSet roll."""
    notes = DAEMONSETS[0]["spec"]["template"]["metadata"]["annotations"]
    assert notes == {"gpunode.dev/image-id": "sha256:12"}
    plain = Spec("gpunode", PluginImage("gpunode/device-plugin:0.1.0")).manifests[-1]
    assert "annotations" not in plain["spec"]["template"]["metadata"]


def test_the_hosts_cdi_directory_is_mounted_only_where_the_plugin_writes_into_it():
    """With a CDI strategy, and then into both DaemonSets; the pod gets no directory that it does not need."""
    for path in ("", "/etc/cdi", "/var/run/cdi"):
        made = Spec("gpunode", PluginImage("x"), PluginConfig("version: v1", path)).manifests
        for pod in [item["spec"]["template"]["spec"] for item in made if item["kind"] == "DaemonSet"]:
            (container,) = pod["containers"]
            mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "cdi"]
            volumes = [volume["hostPath"] for volume in pod["volumes"] if volume["name"] == "cdi"]
            assert mounts == ([path] if path else [])
            assert volumes == ([{"path": path, "type": "DirectoryOrCreate"}] if path else [])
            static = [mount for mount in container["volumeMounts"] if mount["name"] == "etc-cdi"]
            read = {"name": "etc-cdi", "mountPath": "/etc/cdi", "readOnly": True}
            assert static == ([read] if path == "/var/run/cdi" else [])


def test_a_configuration_is_mounted_as_it_was_written_and_another_is_rolled_out():
    """Every character of it, in a ConfigMap of ours; without one there is none, and no variable that names it."""
    text = "version: v1\nsharing: {timeSlicing: {resources: [{name: <'&\"é>, replicas: 2}]}}\n# no end"
    made = Spec("gpunode", PluginImage("x"), PluginConfig(text)).manifests
    (config_map,) = [manifest for manifest in made if manifest["kind"] == "ConfigMap"]
    assert config_map["data"] == {"config.yaml": text}
    ids = set()
    for daemonset in [manifest for manifest in made if manifest["kind"] == "DaemonSet"]:
        template = daemonset["spec"]["template"]
        (container,) = template["spec"]["containers"]
        (mount,) = [entry for entry in container["volumeMounts"] if entry["name"] == "config"]
        (volume,) = [entry for entry in template["spec"]["volumes"] if entry["name"] == "config"]
        assert volume["configMap"] == {"name": config_map["metadata"]["name"]}
        assert {"name": "CONFIG_FILE", "value": f"{mount['mountPath']}/config.yaml"} in container["env"]
        ids.add(template["metadata"]["annotations"]["gpunode.dev/config-id"])
    other = Spec("gpunode", PluginImage("x"), PluginConfig("version: v1")).manifests[-1]
    ids.add(other["spec"]["template"]["metadata"]["annotations"]["gpunode.dev/config-id"])
    assert len(ids) == 2
    plain = str(Spec("gpunode", PluginImage("x")).manifests)
    assert "CONFIG_FILE" not in plain
    assert "ConfigMap" not in plain


def test_only_a_plugin_that_offers_mig_devices_has_the_right_to_see_them():
    """As in NVIDIA's chart: CAP_SYS_ADMIN and the variable, for MIG strategies other than none."""
    for mig in (False, True):
        config = PluginConfig("version: v1", mig=mig)
        for manifest in Spec("gpunode", PluginImage("x"), config).manifests:
            if manifest["kind"] == "DaemonSet":
                (container,) = manifest["spec"]["template"]["spec"]["containers"]
                rights = container["securityContext"]
                assert rights["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if mig else {})}
                assert rights.get("allowPrivilegeEscalation") is (None if mig else False)
                assert ({"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in container["env"]) is mig


def test_mps_brings_control_daemons_in_pods_of_their_own():
    """On the nodes that have the plugin, which sees their state; what replaces the plugin's pods does not touch them."""
    config = PluginConfig("version: v1", mps_root="/srv/mps")
    made = Spec("gpunode", PluginImage("x", image_id="sha256:12"), config).manifests
    plugins, daemons = (
        [
            manifest["spec"]
            for manifest in made
            if manifest["kind"] == "DaemonSet" and manifest["metadata"]["name"].startswith(name)
        ]
        for name in ("gpunode-device-plugin", "gpunode-mps")
    )
    for plugin, daemon in zip(plugins, daemons, strict=True):
        ours, theirs = plugin["template"]["spec"], daemon["template"]["spec"]
        assert ours["affinity"] == theirs["affinity"]
        assert ours.get("runtimeClassName") == theirs.get("runtimeClassName")
        assert daemon["updateStrategy"] == {"type": "OnDelete"}
        (volume,) = [entry for entry in ours["volumes"] if entry["name"] == "mps"]
        assert volume in theirs["volumes"]
        (mount,) = [entry for entry in ours["containers"][0]["volumeMounts"] if entry["name"] == "mps"]
        assert mount == {"name": "mps", "mountPath": "/srv/mps", "readOnly": True}
        (container,) = theirs["containers"]
        assert container["args"] == ["-m", "gpunode.deviceplugin.mps"]
        assert {rule["mountPath"] for rule in container["volumeMounts"]} == {
            "/srv/mps",
            "/etc/gpunode",
            "/var/lib/kubelet/device-plugins",
        }
        assert ours["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "hostPID" not in ours
    other = Spec(
        "gpunode", PluginImage("x", image_id="sha256:12"), replace(config, text="version: v1 ")
    ).manifests
    names = [manifest["metadata"]["name"] for manifest in made if manifest not in other]
    assert names == ["gpunode-device-plugin"] * 2 + ["gpunode-device-plugin-class"]


def test_a_vectoradd_pod_takes_one_gpu_and_fits_the_restricted_level():
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


def test_a_vectoradd_pod_follows_its_node():
    """It tolerates the taints people set there, and takes the RuntimeClass where that is the only way."""
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    spec = vectoradd(taints=(taint,), runtime_class="nvidia")["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert {"key": "dedicated", "value": "ml", "effect": "NoSchedule"} in spec["tolerations"]
    assert "runtimeClassName" not in vectoradd()["spec"]


def test_another_image_starts_as_it_does_by_itself():
    """No arguments: the image's own command, as NVIDIA's sample has it."""
    assert "args" not in vectoradd(args=())["spec"]["containers"][0]


def test_names_that_yaml_would_misread_stay_text():
    """A namespace called `no`, a hostname that is a number."""
    assert Spec("no", PluginImage("x")).manifests[0]["metadata"]["name"] == "no"
    assert vectoradd(hostname="101")["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "101"}


def test_a_template_that_does_not_fit_is_named(tmp_path, monkeypatch):
    """Somebody's own templates: a missing file, a value nobody gives, a text that is not YAML."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "value.j2").write_text("a: {{ nobody }}")
    (tmp_path / "cluster" / "yaml.j2").write_text("a: [")
    monkeypatch.setattr("gpunode.cluster.objects.manifests.folder", lambda: tmp_path)
    monkeypatch.setattr(
        "gpunode.cluster.objects.manifests._environment", inspect.unwrap(cluster_manifests._environment)
    )
    for name in ("missing.j2", "value.j2", "yaml.j2"):
        with pytest.raises(TemplateError, match=re.escape(f"{tmp_path}/cluster/{name}")):
            render(name)


def test_what_was_loaded_onto_nodes_is_never_pulled():
    """Its name may be anybody's in a registry; what a registry has is pulled where it is not there, by the name given."""
    pinned = f"reg.example/plugin:1@sha256:{'0' * 64}"
    shared = PluginConfig("version: v1", mps_root="/run/nvidia/mps")
    for image, policy in (
        (PluginImage("plugin:1", "plugin.tar"), "Never"),
        (PluginImage(pinned), "IfNotPresent"),
    ):
        made = [item for item in Spec("gpunode", image, shared).manifests if item["kind"] == "DaemonSet"]
        containers = [c for manifest in made for c in manifest["spec"]["template"]["spec"]["containers"]]
        assert len(containers) == 4
        assert {(c["image"], c["imagePullPolicy"]) for c in containers} == {(image.reference, policy)}
        containers = vectoradd(image=image.reference, pull=image.pull)["spec"]["containers"]
        assert {(c["image"], c["imagePullPolicy"]) for c in containers} == {(image.reference, policy)}


def test_where_variables_count_for_nothing_the_plugin_gets_all_gpus_by_a_mount():
    """As NVIDIA's runtime takes a container's list: a folder with a name in it for each device."""

    def mounts(isolated: bool) -> list[str]:
        made = Spec("gpunode", PluginImage("plugin:1"), isolated=isolated).manifests
        pods = [manifest["spec"]["template"]["spec"] for manifest in made if manifest["kind"] == "DaemonSet"]
        volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pods[0]["volumes"]}
        return [
            f"{volumes[mount['name']]} {mount['mountPath']}"
            for pod in pods
            for mount in pod["containers"][0]["volumeMounts"]
        ]

    wanted = "/dev/null /var/run/nvidia-container-devices/all"
    assert mounts(isolated=True).count(wanted) == 2
    assert wanted not in mounts(isolated=False)


POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
IMAGE = PluginImage("i:1")
WRITES = PluginPublish(annotation=True)
PLUGIN = Spec(NS, IMAGE, None, WRITES).manifests
EXTENDER = ExtenderSpec(NS, IMAGE, Share(resource="x.io/mem"), dict.fromkeys(deployment.FILES, "")).manifests


def named(made: list[Object], kind: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in made if item["kind"] == kind}


@pytest.mark.parametrize(
    ("publish", "held"),
    [
        (PluginPublish(), False),
        (PluginPublish(metrics=True), False),
        (WRITES, True),
        (PluginPublish(promises=True), True),
    ],
)
def test_whoever_may_write_nodes_is_held_in(publish: PluginPublish, held: bool):
    """And no other, as a policy costs each write a look."""
    made = Spec(NS, IMAGE, None, publish).manifests
    rules = [rule for manifest in made if manifest["kind"] == "ClusterRole" for rule in manifest["rules"]]
    assert any("patch" in rule["verbs"] for rule in rules) is held
    assert (
        set(named(made, POLICY))
        == set(named(made, BINDING))
        == ({"gpunode-device-plugin"} if held else set())
    )


def test_a_policy_is_for_the_account_of_the_pods_and_denies():
    for made in (PLUGIN, EXTENDER):
        accounts = {
            f"system:serviceaccount:{NS}:{item['spec']['template']['spec']['serviceAccountName']}"
            for item in made
            if item["kind"] in ("DaemonSet", "Deployment")
        }
        for name, value in named(made, POLICY).items():
            (condition,) = value["spec"]["matchConditions"]
            assert set(re.findall(r'"(.*?)"', condition["expression"])) == accounts
            assert value["spec"]["failurePolicy"] == "Fail"
            bound = named(made, BINDING)[name]["spec"]
            assert bound == {"policyName": name, "validationActions": ["Deny"]}


def test_every_write_that_the_roles_allow_has_a_policy():
    """By resource: a right that is added later needs one, too."""
    for made in (PLUGIN, EXTENDER):
        rules = [rule for item in made if item["kind"] == "ClusterRole" for rule in item["rules"]]
        writes = {
            resource
            for rule in rules
            if {"create", "patch", "update", "delete"} & set(rule["verbs"])
            for resource in rule["resources"]
        }
        held = {
            resource
            for item in named(made, POLICY).values()
            for rule in item["spec"]["matchConstraints"]["resourceRules"]
            for resource in rule["resources"]
        }
        assert held == writes


def test_the_annotations_that_are_written_are_those_that_may_be():
    notes = {
        MEMORY_ANNOTATION,
        ALLOCATION,
        INDEX,
        DEV,
        POD,
        ASSIGNED,
        ASSUMED,
    }
    every = {**named(PLUGIN, POLICY), **named(EXTENDER, POLICY)}

    def keys(name: str) -> set[str]:
        own = [variable for variable in every[name]["spec"].get("variables", []) if variable["name"] == "own"]
        text = own[0]["expression"] if own else every[name]["spec"]["validations"][0]["expression"]
        return set(re.findall(r'"(.*?)"', text))

    assert keys("gpunode-device-plugin") == {ANNOTATION, MEMORY_ANNOTATION}
    assert keys("gpunode-share") == notes | {ROOM}
    assert keys("gpunode-share-binding") == notes
    assert '"x.io/mem" in ' in str(every["gpunode-share"]["spec"]["validations"])


@pytest.mark.parametrize(("minor", "demanded"), [(29, False), (30, True)])
def test_rights_to_policies_are_demanded_only_where_there_are_any(
    api: Api, fake: FakeApi, minor: int, demanded: bool
):
    """Who removes the extender may have a ClusterRole of before."""
    fake.minor = minor
    resources = {rule.resource for rule in rights_to_remove(api, NS)}
    assert any("admissionpolicies" in resource for resource in resources) == demanded
    assert "deployments.apps" in resources


@pytest.mark.parametrize("minor", [16, 29, 30, 36])
def test_policies_are_applied_where_the_api_server_has_them(api: Api, fake: FakeApi, minor: int):
    """The group's v1 is older than they are. Where there are none, it is said once, with the right that is given."""
    fake.minor = minor
    changes = apply.diff(api, PLUGIN)
    words = apply.unguarded_note(api, PLUGIN, changes)
    apply.apply(api, PLUGIN)
    assert (
        has(fake, POLICY, "gpunode-device-plugin")
        is has(fake, BINDING, "gpunode-device-plugin")
        is (minor >= 30)
    )
    assert bool(words) is (minor < 30)
    if words:
        assert words.startswith(
            f"Kubernetes v1.{minor}.3 has no admission policies (1.30 has): RBAC alone limits"
        )
        assert not any("validating" in where for _, where, _ in fake.requests), "nobody may have the right"
    apply.apply(api, PLUGIN)
    plain = [change for change in apply.diff(api, PLUGIN) if change.action != "same"]
    assert (plain, apply.unguarded_note(api, PLUGIN, plain)) == ([], "")
    apply.remove(api, all_objects(NS), seconds=60, notify=lambda _: None)
    assert not has(fake, POLICY, "gpunode-device-plugin")


def test_the_extender_prefers_nodes_of_the_control_plane():
    """Where any has a place for it: its token is safer there."""
    (deployment,) = [item for item in EXTENDER if item["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    preferred = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    keys = [term["key"] for rule in preferred for term in rule["preference"]["matchExpressions"]]
    assert keys == ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]
    assert set(keys) <= {toleration.get("key") for toleration in spec["tolerations"]}
