"""Flags, environment and file: names, precedence, mistakes."""

import os
import re

import pytest

from gpunode.contract.config import BadConfig, Config, Share
from gpunode.contract.config_file import parse
from gpunode.deviceplugin.health import XidPolicy
from gpunode.deviceplugin.settings import read
from tests import cases


def from_file(tmp_path, text: str, *flags: str, **environ: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read([f"--config-file={file}", *flags], environ)


def test_the_defaults_are_those_of_nvidias_plugin():
    """A switch-over without any setting behaves the same."""
    parse = read([], {})
    assert (parse.mig_strategy, parse.fail_on_init_error, parse.pass_device_specs) == ("none", True, False)
    assert (parse.device_list_strategy, parse.device_id_strategy) == (("envvar",), "uuid")
    assert parse.kubelet_socket == "/var/lib/kubelet/device-plugins/kubelet.sock"


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


def test_the_kubelets_socket_can_be_in_the_file(tmp_path):
    """As with NVIDIA's plugin of late."""
    text = "flags: {plugin: {kubeletSocket: /elsewhere/kubelet.sock}}"
    assert from_file(tmp_path, text).kubelet_socket == "/elsewhere/kubelet.sock"


def test_what_only_this_plugin_has_can_be_in_the_file_too(tmp_path):
    """The file is all that `cluster.plugin.config` can give it."""
    text = "version: v1\nflags: {plugin: {healthInterval: 2, recoverySeconds: 0.5, metricsAddress: ':9400', logLevel: debug}}"
    parse = from_file(tmp_path, text)
    assert (parse.health_interval, parse.recovery_seconds) == (2.0, 0.5)
    assert (parse.metrics_address, parse.log_level) == (":9400", "debug")


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


@pytest.mark.parametrize("case", list(cases.cases("plugin-config")), ids=cases.ids)
def test_every_mistake_in_the_file_is_named_with_its_line_column_and_key(tmp_path, case):
    """All at once, in the order of the file, and what was expected."""
    file = tmp_path / "config.yaml"
    file.write_bytes(bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode())
    with pytest.raises(BadConfig) as caught:
        read([f"--config-file={file}"], {})
    assert list(caught.value.mistakes) == [f"{file}:{mistake}" for mistake in case["says"]]
    assert str(caught.value) == "; ".join(caught.value.mistakes)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        *(
            (f"flags: {{failOnInitError: {word}}}\n", "fail_on_init_error", value)
            for value, message in ((True, "true TRUE yes On '1'"), (False, "false no off OFF 'false'"))
            for word in message.split()
        ),
        ("flags: {nvidiaDriverRoot: 1.0}\n", "nvidia_driver_root", "1.0"),
        (
            "flags: {plugin: {deviceListStrategy: 'envvar,cdi-cri'}}",
            "device_list_strategy",
            ("envvar", "cdi-cri"),
        ),
        ("flags:\r\n  migStrategy: single\r\n", "mig_strategy", "single"),
        ("\ufeffflags: {migStrategy: single}\n", "mig_strategy", "single"),
        ("resources: &none []\nflags: {gfd: *none, migStrategy: mixed}\n", "mig_strategy", "mixed"),
        (
            "sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 2, devices: [0:0, 1:0, GPU-a]}]}}\n",
            "shares",
            (Share("nvidia.com/mig-1g.5gb", 2, "nvidia.com/mig-1g.5gb", ("0:0", "1:0", "GPU-a")),),
        ),
    ],
)
def test_the_file_is_read_as_nvidias_plugin_reads_it(tmp_path, text, field, value):
    """YAML 1.1's words for true and false, but not its numbers to the base of 60; texts as they are written."""
    assert getattr(from_file(tmp_path, text), field) == value


def test_one_port_for_metrics_and_probes_is_refused(tmp_path):
    """The second to ask for it would end the plugin."""
    with pytest.raises(BadConfig) as caught:
        from_file(tmp_path, "flags: {plugin: {metricsAddress: ':9401'}}\n", PROBE_ADDRESS="0.0.0.0:9401")
    what = (
        "flags.plugin.metricsAddress: port 9401 cannot be had twice; --probe-address (PROBE_ADDRESS) has it"
    )
    assert str(caught.value) == f"{tmp_path}/config.yaml:1:18: {what}"
    with pytest.raises(BadConfig) as caught:
        read(["--metrics-address=:9401"], {"PROBE_ADDRESS": ":9401"})
    assert str(caught.value) == what


def test_a_flag_fixes_what_does_not_go_together_in_the_file(tmp_path):
    """It wins, so only what is left of the file counts."""
    text = "flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"
    assert from_file(tmp_path, text, "--mig-strategy=none").mps


def test_a_file_that_is_not_there_is_named(tmp_path):
    """The path is in the message."""
    with pytest.raises(BadConfig, match="No such file or directory"):
        read([f"--config-file={tmp_path}/no.yaml"], {})


def test_keys_of_nvidias_without_meaning_here_are_reported_and_passed_over(tmp_path, caplog):
    """gpu-feature-discovery shares the file."""
    from_file(
        tmp_path,
        "version: v1\nflags: {gfd: {oneshot: false}, plugin: {containerDriverRoot: /driver-root, cdiFeatureFlags: x}}\n",
    )
    file = tmp_path / "config.yaml"
    assert f"{file}: flags.plugin.cdiFeatureFlags has no meaning for this plugin" in caplog.text
    assert f"{file}: flags.gfd has no meaning for this plugin" in caplog.text
    caplog.clear()
    parse(file.read_text())
    assert not caplog.text  # to who works with the file again, it has been said


MEANINGLESS = (  # of NVIDIA's 0.17 to 0.20
    "--driver-root-ctr-path",
    "--container-driver-root",
    "--nvidia-cdi-hook-path",
    "--nvidia-ctk-path",
    "--cdi-feature-flags",
    "--cdi-disable-hooks",
    "--use-node-feature-api",
    "--imex-required",
)


def test_flags_of_nvidias_without_meaning_here_are_reported_and_passed_over(caplog):
    """As the keys of the same settings are: the arguments of its DaemonSet can stay as they are."""
    flags = [
        "--device-discovery-strategy",
        "nvml",
        *(f"{flag}=x" for flag in MEANINGLESS),
        "--imex-channel-ids=",
        "--mig-strategy=single",
    ]
    assert read(flags, {"IMEX_CHANNEL_IDS": "[]"}) == Config(mig_strategy="single")
    for flag in ("--device-discovery-strategy", *MEANINGLESS):
        assert f"{flag} has no meaning for this plugin" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "environ", "place"),
    [
        (["--imex-channel-ids=0"], {}, "--imex-channel-ids"),
        ([], {"IMEX_CHANNEL_IDS": "0"}, "IMEX_CHANNEL_IDS"),
    ],
)
def test_imex_channels_are_refused_wherever_they_are_asked_for(arguments, environ, place):
    """Pods that rely on them would fail one by one."""
    with pytest.raises(BadConfig, match=f"^{place}: IMEX channels are not supported$"):
        read(arguments, environ)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FAIL_ON_INIT_ERROR": "yes"}, "FAIL_ON_INIT_ERROR: 'yes' is neither true nor false"),
        (
            {"DEVICE_LIST_STRATEGY": "envvar,cdi"},
            "DEVICE_LIST_STRATEGY: 'cdi' is not one of envvar, volume-mounts",
        ),
        ({"HEALTH_INTERVAL": "-1"}, "HEALTH_INTERVAL: '-1' is not a number of seconds"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ, message):
    """Not the flag: the person looks where they wrote it."""
    with pytest.raises(BadConfig) as caught:
        read([], environ)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [f":{'9' * 5000}", ":٣", ":-1"])
def test_a_port_that_is_none_is_named(value):
    """Of whatever length: Python refuses to read a number of 5,000 digits."""
    with pytest.raises(BadConfig, match=r"expected \[host\]:port, found ") as caught:
        read([f"--metrics-address={value}"], {})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("variable", ["DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"])
def test_an_xid_that_is_none_is_named(variable):
    with pytest.raises(BadConfig, match=variable) as caught:
        XidPolicy.read({variable: "9" * 5000})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "pipe", "large"])
def test_a_file_that_never_ends_is_refused(tmp_path, path):
    """A pod would be killed for its memory, or wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(BadConfig, match=r"it is no regular file|it has more than 1 MiB"):
        read([f"--config-file={tmp_path / path}"], {})


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (["--mig-strategy=--"], "--mig-strategy: '--'"),
        (["--config-file=--"], "--: "),
        (["--no-such-flag\x1b[31m"], "unrecognized arguments: --no-such-flag"),
        (["--mig-strategy"], "expected one argument"),
        (["--node-name=\udcff", "--node-events"], "no node is called '\\udcff'"),
    ],
)
def test_flags_that_cannot_be_read_are_refused_as_a_configuration_is(flags, refusal):
    """In one line of the log, which escapes control characters; not with a page of usage."""
    with pytest.raises(BadConfig, match=re.escape(refusal)):
        read(flags, {})
