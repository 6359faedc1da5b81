"""Flags, environment and file: names, precedence, mistakes."""

from __future__ import annotations

import pytest
import yaml

from gpunode.deviceplugin.config import BadConfig, Config
from gpunode.deviceplugin.configfile import values
from gpunode.deviceplugin.settings import read


def from_file(tmp_path, text: str, *flags: str, **environ: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read([f"--config-file={file}", *flags], environ)


def test_the_defaults_are_those_of_nvidias_plugin():
    """A switch-over without any setting behaves the same."""
    config = read([], {})
    assert (config.mig_strategy, config.fail_on_init_error, config.pass_device_specs) == ("none", True, False)
    assert (config.device_list_strategy, config.device_id_strategy) == (("envvar",), "uuid")
    assert config.kubelet_socket == "/var/lib/kubelet/device-plugins/kubelet.sock"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path):
    """Precedence, one setting in all three places."""
    text = "version: v1\nflags: {migStrategy: single}\n"
    assert from_file(tmp_path, text).mig_strategy == "single"
    assert from_file(tmp_path, text, MIG_STRATEGY="mixed").mig_strategy == "mixed"
    assert from_file(tmp_path, text, "--mig-strategy=none", MIG_STRATEGY="mixed").mig_strategy == "none"


@pytest.mark.parametrize(
    "text", ["", "# nothing yet\n", "flags: {}\n", "sharing:\n", "version:\n", "imex: {channelIDs: []}\n"]
)
def test_a_file_without_a_version_or_anything_is_as_no_file(tmp_path, text):
    """NVIDIA's plugin takes v1 for what is not said; its empty fallback is such a file."""
    assert from_file(tmp_path, text) == Config(config_file=str(tmp_path / "config.yaml"))


def test_what_only_this_plugin_has_can_be_in_the_file_too(tmp_path):
    """The file is all that `cluster.plugin.config` can give it."""
    text = "version: v1\nflags: {plugin: {healthInterval: 2, recoverySeconds: 0.5, metricsAddress: ':9400', logLevel: debug}}"
    config = from_file(tmp_path, text)
    assert (config.health_interval, config.recovery_seconds) == (2.0, 0.5)
    assert (config.metrics_address, config.log_level) == (":9400", "debug")


@pytest.mark.parametrize(
    ("arguments", "environ", "field", "value"),
    [
        (["--pass-device-specs"], {}, "pass_device_specs", True),
        (["--pass-device-specs=false"], {"PASS_DEVICE_SPECS": "true"}, "pass_device_specs", False),
        (["--driver-root", "/run/nvidia/driver"], {}, "dev_root", "/run/nvidia/driver"),
        ([], {"DRIVER_ROOT": "/opt/driver", "NVIDIA_DEV_ROOT": "/"}, "dev_root", ""),
        (
            [],
            {"DEVICE_LIST_STRATEGY": "volume-mounts,envvar"},
            "device_list_strategy",
            ("volume-mounts", "envvar"),
        ),
        ([], {"MIG_STRATEGY": ""}, "mig_strategy", "none"),
    ],
)
def test_nvidias_names_work(arguments, environ, field, value):
    """Long flags, their aliases, and the variables; an empty variable is as if it were not set."""
    assert getattr(read(arguments, environ), field) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: v2\n", "version: expected v1, found 'v2'"),
        ("- a\n", "expected keys: version, flags, resources, sharing"),
        (
            "version: v1\nflags: {migStrategie: none}\n",
            "flags.migStrategie: unknown key; is flags.migStrategy meant?",
        ),
        (
            "version: v1\nflags: {migStrategy: some}\n",
            "flags.migStrategy: 'some' is not one of none, single, mixed",
        ),
        (
            "version: v1\nflags: {failOnInitError: maybe}\n",
            "flags.failOnInitError: 'maybe' is neither true nor false",
        ),
        ("version: v1\nimex: {channelIDs: [0]}\n", "imex.channelIDs: IMEX channels are not supported"),
        ("version: v1\nflags: 3\n", "flags: expected keys, found 3"),
        ("version: v1\nsharing: {timeSlicing: {}}\n", "sharing.timeSlicing.resources: expected a list"),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n",
            r"sharing.timeSlicing.resources[0].replicas: expected a whole number from 2 up, found 1",
        ),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, device: all}]}}\n",
            "sharing.timeSlicing.resources[0].device: unknown key; known are name, replicas, rename, devices",
        ),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replica: 2}]}}\n",
            "replica: unknown key; known are name, replicas, rename, devices; is replicas meant?",
        ),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: gpu, replicas: 3}]}}\n",
            "a resource is there twice",
        ),
        *(
            (
                f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, rename: {name}}}]}}}}\n",
                "sharing.timeSlicing.resources[0].rename: expected a resource",
            )
            for name in ("[a]", "two words", "a/b/c", "kubernetes.io/gpu", "Example.com/gpu", "x." * 32)
        ),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1000000}]}}\n",
            "sharing.timeSlicing.resources[0].replicas: the kubelet takes some 70000 shares",
        ),
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 2, devices: [0:0, 1:0]}]}}\n",
            'sharing.timeSlicing.resources[0].devices: found 60; a MIG device needs quotes, "1:0"',
        ),
        *(
            (
                f"flags: {{plugin: {{metricsAddress: '{address}'}}}}\n",
                f"flags.plugin.metricsAddress: expected [host]:port, found '{address}'",
            )
            for address in (":http", "10.0.0.1", ":65536", "[::1]")
        ),
        ("version: [\n", "expected the node content"),
        ("version: 2026-13-01\n", "month must be in 1..12"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_key(tmp_path, text, message):
    """File, key, what was expected."""
    with pytest.raises(BadConfig) as caught:
        from_file(tmp_path, text)
    assert message in str(caught.value)
    assert str(tmp_path / "config.yaml") in str(caught.value)


def test_one_port_for_metrics_and_probes_is_refused(tmp_path):
    """The second to ask for it would end the plugin."""
    with pytest.raises(BadConfig, match="port 9401 cannot be had twice"):
        from_file(tmp_path, "flags: {plugin: {metricsAddress: ':9401'}}\n", PROBE_ADDRESS="0.0.0.0:9401")


def test_a_file_that_is_not_there_is_named(tmp_path):
    """The path is in the message."""
    with pytest.raises(BadConfig, match="No such file or directory"):
        read([f"--config-file={tmp_path}/no.yaml"], {})


def test_keys_of_nvidias_without_meaning_here_are_said_and_passed_over(tmp_path, caplog):
    """gpu-feature-discovery shares the file."""
    from_file(
        tmp_path, "version: v1\nflags: {gfd: {oneshot: false}, plugin: {containerDriverRoot: /driver-root}}\n"
    )
    file = tmp_path / "config.yaml"
    assert f"{file}: flags.gfd has no meaning for this plugin" in caplog.text
    caplog.clear()
    values(yaml.safe_load(file.read_text()))
    assert not caplog.text  # to who works with the file again, it has been said


def test_flags_of_nvidias_without_meaning_here_are_said_and_passed_over(caplog):
    """As the keys of the same settings are: the arguments of its DaemonSet can stay as they are."""
    flags = [
        "--device-discovery-strategy",
        "nvml",
        "--nvidia-ctk-path=/usr/bin/nvidia-ctk",
        "--mig-strategy=single",
    ]
    assert read(flags, {}) == Config(mig_strategy="single")
    assert "--device-discovery-strategy has no meaning for this plugin" in caplog.text
    assert "--nvidia-ctk-path has no meaning for this plugin" in caplog.text


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FAIL_ON_INIT_ERROR": "yes"}, "FAIL_ON_INIT_ERROR: 'yes' is neither true nor false"),
        (
            {"DEVICE_LIST_STRATEGY": "envvar,cdi"},
            "DEVICE_LIST_STRATEGY: 'cdi' is not one of envvar, volume-mounts",
        ),
        ({"HEALTH_INTERVAL": "-1"}, "HEALTH_INTERVAL: '-1' is not a number of seconds"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ, words):
    """Not the flag: the person looks where they wrote it."""
    with pytest.raises(BadConfig) as caught:
        read([], environ)
    assert words in str(caught.value)
