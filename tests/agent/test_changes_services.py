"""The agent restarts units, loads modules and images: what must be true afterwards, and the way back when it is not."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from gpunode.host import bootstrap, wire
from gpunode.model import KernelModule, LoadImage, Reboot, RemoveImage, Runtime, Service, WriteFile
from tests import tables
from tests.agent.conftest import DAEMON, DOCKER, START, Host, wait_until
from tests.agent.guarded import kill

CRASHING = (
    'count=$(cat "$units/count" 2>/dev/null || echo 0)\n'
    'printf "LoadState=loaded\\nActiveState=activating\\nSubState=auto-restart\\nNRestarts=$count\\n" > "$units/$2"\n'
)
JOURNAL = (
    'echo "I1121 03:00:00 server.go:1 starting"\n'
    "for second in 1 2 3; do\n"
    'echo "E1121 03:00:0$second.689499     423 run.go:72] command failed err=unrecognized feature gate: DevicePlugins"\n'
    "done\n"
    'echo "kubelet.service: Main process exited, code=exited, status=1/FAILURE"\n'
)


def test_a_unit_is_enabled_restarted_and_seen_to_stay(host: Host):
    """systemd reloads its files first, and old failures do not count against the new start."""
    host.unit(DOCKER, START)
    assert host.apply(Service(DOCKER, "why", enable=True, restart=True))[-1]["ok"]
    verbs = [call.split()[1] for call in host.calls() if call.startswith("systemctl")]
    assert (
        verbs.index("daemon-reload")
        < verbs.index("enable")
        < verbs.index("reset-failed")
        < verbs.index("restart")
    )
    assert verbs[-2:] == ["show", "show"]


def test_without_restart_a_running_unit_is_left_running(host: Host):
    """`systemctl start` of what runs does nothing."""
    host.unit(DOCKER)
    assert host.apply(Service(DOCKER, "why", enable=True))[-1]["ok"]
    verbs = [call.split()[1] for call in host.calls()]
    assert "start" in verbs
    assert "restart" not in verbs


def test_a_unit_that_is_for_the_next_boot_is_enabled_and_not_started(host: Host):
    """What it needs is there after the reboot only."""
    assert host.apply(Service("nvidia-fabricmanager.service", "why", enable=True, start=False))[-1]["ok"]
    verbs = [call.split()[1] for call in host.calls() if call.startswith("systemctl")]
    assert "enable" in verbs
    assert not {"start", "restart"} & {*verbs}


def test_a_unit_that_does_one_thing_and_ends_has_worked(host: Host):
    """It is not active afterwards; what worked before must go on working all the same."""
    host.unit(DOCKER)
    host.unit("links.service", ActiveState="inactive", SubState="dead", MainPID=0, Type="oneshot")
    assert host.apply(Service("links.service", "why", enable=True, restart=True))[-1]["ok"]


def test_a_unit_that_has_ended_is_not_watched_for_crashes(host: Host):
    """One that stays up is, for so long."""
    host.unit("links.service", ActiveState="inactive", SubState="dead", MainPID=0, Type="oneshot")
    job = host.job(Service("links.service", "why", restart=True))
    job["settle"] = 600
    assert host.ask(job)[-1]["ok"]


def test_a_unit_that_does_one_thing_and_fails_has_not_worked(host: Host):
    """systemctl waits for its end, and says how it was."""
    host.unit("links.service", "exit 1", ActiveState="inactive", SubState="dead", MainPID=0, Type="oneshot")
    host.program("journalctl", 'echo "failed to get device nodes: no such device"')
    failed = host.fail(Service("links.service", "why", restart=True))
    assert failed["code"] == "unit-failed"
    assert failed["error"] == "links.service did not come back: failed to get device nodes: no such device"


@pytest.mark.parametrize(
    "why", [{"ConditionResult": "no"}, {"ConditionResult": "yes", "Result": "exec-condition"}]
)
def test_a_unit_that_its_condition_skips_has_not_worked(host: Host, why: dict[str, str]):
    """`systemctl restart` succeeds all the same; the journal has the condition, of newer systemds."""
    host.unit("links.service", ActiveState="inactive", SubState="dead", MainPID=0, Type="oneshot", **why)
    host.program("journalctl", "")
    failed = host.fail(Service("links.service", "why", restart=True))
    assert failed["code"] == "unit-failed"
    assert (
        "links.service did not come back: was skipped: a condition of its own is not met" in failed["error"]
    )
    skipped = (
        "Links was skipped because of an unmet condition check (ConditionPathExists=/sys/module/nvidia)."
    )
    host.program("journalctl", f"echo '{skipped}'")
    assert host.fail(Service("links.service", "why", restart=True))["error"].endswith(skipped)


def test_a_unit_that_does_not_come_back_gets_its_file_back(host: Host):
    """The run's own change is undone and the unit runs as before; both are reported, with the journal's reason."""
    host.unit(DOCKER, START)
    host.program(
        "journalctl", 'echo "failed to start daemon: bad"; echo "docker.service: Failed with result x"'
    )
    host.write(DAEMON, "{}", mode=0o600)
    failed = host.fail(
        WriteFile(DAEMON, '"bad"', "why", before="{}"), Service(DOCKER, "why", restart=True, guards=(DAEMON,))
    )
    assert failed["code"] == "unit-failed"
    assert failed["error"] == "docker.service did not come back: failed to start daemon: bad"
    assert failed["restored"] == [DAEMON]
    assert failed["detail"][-1] == "with its files restored, docker.service runs again"
    assert host.read(DAEMON) == "{}"
    assert host.path(DAEMON).stat().st_mode & 0o777 == 0o600
    assert "ActiveState=active" in host.read(f"/state/units/{DOCKER}")


def test_a_new_file_is_taken_away_again(host: Host):
    """What was not there before is not there afterwards, and files of others are not touched."""
    host.unit(DOCKER, START)
    host.program("journalctl", "")
    host.write("/etc/other", "x")
    failed = host.fail(
        WriteFile(DAEMON, '"bad"', "why"), Service(DOCKER, "why", restart=True, guards=(DAEMON, "/etc/other"))
    )
    assert failed["restored"] == [DAEMON]
    assert not host.path(DAEMON).exists()
    assert host.read("/etc/other") == "x"


def test_a_file_changed_twice_goes_back_to_what_it_was_first(host: Host):
    """The original is the one before the run."""
    host.unit(DOCKER, START)
    host.program("journalctl", "")
    host.write(DAEMON, "{}")
    host.fail(
        WriteFile(DAEMON, "1", "why", before="{}"),
        WriteFile(DAEMON, '"bad"', "why", before="1"),
        Service(DOCKER, "why", restart=True, guards=(DAEMON,)),
    )
    assert host.read(DAEMON) == "{}"


def test_a_unit_that_crashes_again_and_again_is_not_up(host: Host):
    """`systemctl restart` of a simple service succeeds; the kubelet's own last error is the reason."""
    host.unit("kubelet.service", CRASHING)
    host.program("journalctl", JOURNAL)
    failed = host.fail(Service("kubelet.service", "why", restart=True))
    reason = "command failed err=unrecognized feature gate: DevicePlugins"
    assert failed["error"] == f"kubelet.service did not come back: {reason}"
    assert failed["detail"] == [reason]
    assert failed["restored"] == []


def test_a_second_crash_is_the_end_of_waiting(host: Host):
    """The kubelet waits ten seconds between its starts; the agent does not wait for three of them."""
    host.unit("kubelet.service")
    host.program(
        "systemctl",
        'if [ "$1" = show ]; then\n'
        'echo x >> "$GPUNODE_ROOT/state/looks"\n'
        'count=0; while read -r line; do count=$((count + 1)); done < "$GPUNODE_ROOT/state/looks"\n'
        "printf 'LoadState=loaded\\nActiveState=activating\\nSubState=auto-restart\\nNRestarts=%d\\n' $((count / 3))\n"
        "fi",
    )
    host.program("journalctl", JOURNAL)
    job = host.job(Service("kubelet.service", "why", restart=True))
    assert host.ask({**job, "settle": 0.5})[-2]["code"] == "unit-failed"
    looks = host.read("/state/looks").split()
    assert len(looks) <= 13, (
        "a look each tenth of a second, for twice the settle time, and one for the journal; six times are given else"
    )


def test_a_unit_that_has_another_process_each_time_is_not_up(host: Host):
    """Seen active at every look, but never the same process."""
    host.unit("kubelet.service")
    host.program(
        "systemctl", "[ $1 = show ] && printf 'LoadState=loaded\\nActiveState=active\\nMainPID=%d\\n' $$"
    )
    host.program("journalctl", JOURNAL)
    assert host.fail(Service("kubelet.service", "why", restart=True))["code"] == "unit-failed"


def test_a_unit_that_is_not_there_is_reported_at_once(host: Host):
    """No waiting for what cannot come."""
    host.program("journalctl", "")
    failed = host.fail(Service("none.service", "why", restart=True))
    assert failed["code"] == "unit-failed"


def modprobe(host: Host) -> str:
    """One that unloads."""
    return f'if [ "$1" = -r ]; then /bin/rmdir "{host.path("/sys/module")}/$2"; fi'


def test_modules_are_unloaded_and_loaded_in_the_order_given(host: Host):
    """A module that is not loaded needs no unloading."""
    host.program("modprobe", modprobe(host))
    for name in ("nvidia", "nvidia_uvm"):
        host.path(f"/sys/module/{name}").mkdir(parents=True)
    change = KernelModule("why", load=("nvidia", "nvidia_uvm"), unload=("nvidia_uvm", "nvidia-drm", "nvidia"))
    assert host.apply(change)[-1]["ok"]
    assert [call for call in host.calls() if call.startswith("modprobe")] == [
        "modprobe -r nvidia_uvm",
        "modprobe -r nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
    ]


def test_a_module_of_another_file_name_is_unloaded(host: Host):
    """Ubuntu's nvidia_384.ko is the module nvidia: kmod 30 looks for nvidia_384 in the kernel, and ends with 0."""
    host.program("modprobe", "")
    host.program("rmmod", "")
    host.path("/sys/module/nvidia").mkdir(parents=True)
    host.apply(KernelModule("why", unload=("nvidia",)))
    assert host.calls()[-2:] == ["modprobe -r nvidia", "rmmod nvidia"]


def test_who_keeps_a_module_is_named(host: Host):
    """The next thing that anybody would have to find out."""
    host.program("modprobe", 'echo "modprobe: FATAL: Module nvidia is in use." >&2; exit 1')
    host.path("/sys/module/nvidia").mkdir(parents=True)
    host.write("/proc/77/cmdline", "/usr/bin/nvidia-persistenced\0")
    host.path("/proc/77/fd").mkdir()
    host.path("/proc/77/fd/4").symlink_to("/dev/nvidia0")
    failed = host.fail(KernelModule("why", unload=("nvidia",)))
    assert failed["code"] == "module-in-use"
    assert failed["error"] == "the kernel module nvidia is in use by nvidia-persistenced (pid 77)"


def stopping(host: Host, program: str) -> list[str]:
    """The calls that matter of a reload with the driver's daemon stopped."""
    host.program("modprobe", program)
    host.program("systemctl", 'case "$*" in "is-active gone.service") exit 3;; esac')
    host.path("/sys/module/nvidia").mkdir(parents=True)
    units = ("nvidia-persistenced.service", "gone.service")
    host.apply(KernelModule("why", load=("nvidia",), unload=("nvidia",), services=units))
    words = ("modprobe", "systemctl stop", "systemctl start")
    return [call for call in host.calls() if call.startswith(words)]


def test_daemons_that_an_unload_stops_are_started_by_the_next_load(host: Host):
    """In between they would load the old modules again."""
    host.program("modprobe", modprobe(host))
    host.program("systemctl", "")
    host.path("/sys/module/nvidia").mkdir(parents=True)
    units = ("nvidia-persistenced.service",)
    host.apply(KernelModule("why", unload=("nvidia",), services=units))
    host.apply(KernelModule("why", load=("nvidia",), services=units))
    words = ("modprobe", "systemctl stop", "systemctl start")
    assert [call for call in host.calls() if call.startswith(words)] == [
        "systemctl stop nvidia-persistenced.service",
        "modprobe -r nvidia",
        "modprobe nvidia",
        "systemctl start nvidia-persistenced.service",
    ]


@pytest.mark.parametrize("at", ["-r", "nvidia_uvm"], ids=["before the unload", "after the load"])
def test_daemons_that_a_killed_apply_has_stopped_are_known_until_their_start(host: Host, at: str):
    wait = 'touch "$GPUNODE_ROOT/state/here"; until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done'
    host.program("modprobe", f'if [ "$1" = {at} ]; then {wait}; fi\n{modprobe(host)}')
    host.program("systemctl", "")
    host.path("/sys/module/nvidia").mkdir(parents=True)
    units, loaded = ("nvidia-persistenced.service",), ("nvidia", "nvidia_uvm")
    host.start(host.job(KernelModule("why", load=loaded, unload=("nvidia",), services=units)))
    wait_until(host.path("/state/here").exists)
    kill(host)
    assert host.facts().stopped == units
    assert host.apply(KernelModule("why", services=units))[-1]["ok"]
    assert host.calls()[-1] == "systemctl start nvidia-persistenced.service"
    assert host.facts().stopped == ()


@pytest.mark.parametrize("fails", [False, True])
def test_an_apply_starts_only_the_daemons_that_its_plan_shows(host: Host, *, fails: bool):
    """What an earlier one has noted stays noted, and is never without a whole note."""
    host.write("/run/gpunode/stopped", "nvidia-dcgm.service")
    host.path("/state/before").hardlink_to(host.path("/run/gpunode/stopped"))
    calls = stopping(host, "exit 1" if fails else modprobe(host))
    assert "systemctl start nvidia-persistenced.service" in calls
    assert "systemctl start nvidia-dcgm.service" not in calls
    assert host.read("/state/before") == host.read("/run/gpunode/stopped") == "nvidia-dcgm.service"


def test_daemons_of_the_driver_are_stopped_for_a_reload(host: Host):
    """And started again, those that ran."""
    assert stopping(host, modprobe(host)) == [
        "systemctl stop nvidia-persistenced.service",
        "modprobe -r nvidia",
        "modprobe nvidia",
        "systemctl start nvidia-persistenced.service",
    ]


def use_gpu(host: Host, command: str) -> None:
    """A process with a GPU's device file open."""
    host.write("/dev/nvidia0", "")
    host.write("/proc/77/cmdline", f"{command}\0")
    host.path("/proc/77/fd").mkdir()
    host.path("/proc/77/fd/4").symlink_to("/dev/nvidia0")


IN_USE = 'echo "modprobe: FATAL: Module nvidia is in use." >&2; exit 1'
COMES = (
    'mkdir -p "$GPUNODE_ROOT/proc/77/fd"; printf python3 > "$GPUNODE_ROOT/proc/77/cmdline"\n'
    'ln -s /dev/nvidia0 "$GPUNODE_ROOT/proc/77/fd/4"\n'
)


@pytest.mark.parametrize(
    ("modprobe", "started"),
    [
        (IN_USE, False),
        (COMES + IN_USE, True),
        ('[ "$1" = -r ] || { echo "No such device" >&2; exit 1; }', True),
        ('[ "$1" = -r ] || kill -TERM $PPID', True),
    ],
    ids=["the kernel holds it", "somebody began", "it does not load", "aborted"],
)
def test_a_reload_that_fails_leaves_daemons_stopped_only_for_a_reboot(
    host: Host, modprobe: str, started: bool
):
    """Where nobody but the kernel holds the module: else the next plan would be the same reload."""
    host.write("/dev/nvidia0", "")
    assert ("systemctl start nvidia-persistenced.service" in stopping(host, modprobe)) == started


@pytest.mark.parametrize(("command", "calls"), [("python3", 0), ("nv-fabricmanager", 4)])
def test_no_daemon_is_stopped_where_somebody_began_to_use_the_gpus(host: Host, command: str, calls: int):
    """Without the fabric manager CUDA's jobs abort, and their modules would not be unloaded anyway."""
    use_gpu(host, command)
    assert len(stopping(host, modprobe(host))) == calls


def test_who_began_to_use_the_gpus_before_a_reload_is_named(host: Host):
    """It goes on."""
    use_gpu(host, "python3")
    failed = host.fail(KernelModule("why", unload=("nvidia",)))
    assert failed["code"] == "gpus-in-use"
    assert (
        failed["error"]
        == "the kernel modules stay loaded: since the plan these use the GPUs: python3 (pid 77)"
    )


def test_a_module_that_nobody_has_built_is_named_with_what_builds_it(host: Host):
    """Its package is installed, and the script that runs dkms was cut off."""
    host.program("modprobe", 'echo "modprobe: FATAL: Module nvidia not found in directory" >&2; exit 1')
    host.program("dkms", 'echo "nvidia/595.91.07: added"')
    host.write("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
    host.write("/lib/modules/6.1.0-40-amd64/modules.dep", "kernel/drivers/video/backlight.ko:\n")
    failed = host.fail(KernelModule("why", load=("nvidia",)))
    assert (failed["code"], failed["detail"][0]) == ("module-missing", "nvidia/595.91.07: added")
    assert "kernel 6.1.0-40-amd64 has no nvidia module" in failed["error"]


def test_why_a_module_does_not_load_comes_with_the_kernels_words(host: Host):
    """modprobe prints only `No such device`."""
    host.program(
        "modprobe", "echo \"modprobe: ERROR: could not insert 'nvidia': No such device\" >&2; exit 1"
    )
    host.program(
        "dmesg", 'echo "[1] usb 1-1: new device"; echo "[2] NVRM: GPU 0000:3b:00.0 is not supported by open"'
    )
    failed = host.fail(KernelModule("why", load=("nvidia",)))
    assert failed["code"] == "module-failed"
    assert failed["detail"][-1] == "[2] NVRM: GPU 0000:3b:00.0 is not supported by open"
    assert "usb" not in str(failed["detail"])


CONFIG = '{"config": {"digest": "sha256:feed"}}'  # in the manifest of an image


@pytest.fixture
def image(tmp_path) -> LoadImage:
    archive = tmp_path / "plugin.tar"
    archive.write_bytes(b"layer" * 400_000)
    return LoadImage("gpunode/plugin:1", "sha256:feed", str(archive), "docker", "why")


def docker(host: Host, identity: str, load: str = "") -> None:
    host.write("/run/docker.sock", "")
    host.program(
        "docker",
        f'case "$1" in load) cat > "$GPUNODE_ROOT/state/loaded"; {load or "true"};; image) echo {identity};; esac',
    )


def test_an_image_arrives_whole_and_is_the_one_asked_for(host: Host, image: LoadImage):
    """Two megabytes on standard input after the job; the spooled copy is gone afterwards."""
    docker(host, "sha256:feed")
    payload = Path(image.archive).read_bytes()
    assert host.apply(image, payload=payload)[-1]["ok"]
    loaded = host.path("/state/loaded").read_bytes()
    assert hashlib.sha256(loaded).digest() == hashlib.sha256(payload).digest()
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))


@pytest.mark.parametrize(
    ("name", "socket", "called"),
    [
        ("containerd", "/run/containerd/containerd.sock", "ctr"),
        ("k3s", "/run/k3s/containerd/containerd.sock", "k3s ctr"),
        ("microk8s", "/var/snap/microk8s/common/run/containerd.sock", "microk8s ctr"),
    ],
)
def test_an_image_goes_into_the_namespace_of_kubernetes(
    host: Host, image: LoadImage, name: Runtime, socket: str, called: str
):
    """containerd's default one is invisible to the kubelet. A distribution's own ctr knows its socket."""
    host.write(socket, "")
    ls = "docker.io/gpunode/plugin:1 type sha256:1 9 MiB"
    host.program(
        called.partition(" ")[0],
        f"case \"$*\" in *import*) cat > /dev/null;; *' ls') echo '{ls}';; *get*) echo '{CONFIG}';; esac",
    )
    change = LoadImage(image.reference, image.image_id, image.archive, name, "why")
    assert host.apply(change, payload=Path(image.archive).read_bytes())[-1]["ok"]
    assert f"{called} --namespace k8s.io images import -" in host.calls()


@pytest.mark.parametrize(("other", "removed"), [("", " sha256:feed"), ("reg.io/copy:1", "")])
def test_an_image_leaves_containerd_by_the_names_that_it_has_there(
    host: Host, image: LoadImage, other: str, removed: str
):
    """ctr completes no name, and takes an unknown one for removed. By its id the kubelet's images have it once more."""
    host.write("/run/containerd/containerd.sock", "")
    names = ["docker.io/gpunode/plugin:1", "sha256:feed", *filter(None, [other])]
    listed = "\n".join(["REF TYPE DIGEST", *(f"{name} type sha256:1 9 MiB" for name in names)])
    host.program("ctr", f"case \"$*\" in *' ls') echo '{listed}';; *get*) echo '{CONFIG}';; esac")
    host.apply(RemoveImage(image.reference, "containerd", "why"))
    assert f"ctr --namespace k8s.io images rm docker.io/gpunode/plugin:1{removed}" in host.calls()


@pytest.mark.parametrize(
    ("program", "words"), [("podman", "podman load"), ("skopeo", "skopeo copy docker-archive:")]
)
def test_an_image_goes_into_the_storage_that_cri_o_shares(
    host: Host, image: LoadImage, program: str, words: str
):
    """CRI-O takes no archive itself."""
    host.write("/run/crio/crio.sock", "")
    host.program(program, "")
    host.program("crictl", """echo '{"status": {"id": "feed"}}'""")
    change = LoadImage(image.reference, image.image_id, image.archive, "crio", "why")
    assert host.apply(change, payload=Path(image.archive).read_bytes())[-1]["ok"]
    assert any(call.startswith(words) for call in host.calls())


def test_a_host_with_cri_o_alone_takes_no_archive(host: Host, image: LoadImage):
    """What is missing is named."""
    change = LoadImage(image.reference, image.image_id, image.archive, "crio", "why")
    failed = host.fail(change, payload=Path(image.archive).read_bytes())
    assert "neither podman nor skopeo" in failed["error"]


@pytest.mark.parametrize(("cut", "words"), [(True, "arrived incomplete"), (False, "changed on its way")])
def test_a_damaged_image_is_not_loaded(host: Host, image: LoadImage, cut: bool, words: str):
    """A cut connection, or an archive that was replaced while it was sent."""
    docker(host, "sha256:feed")
    payload = bytearray(Path(image.archive).read_bytes())
    payload[10] ^= 1
    failed = host.fail(
        WriteFile("/etc/x", "x", "why"), image, payload=bytes(payload[: 1000 if cut else None])
    )
    assert (failed["code"], failed["n"]) == ("payload-damaged", 1)
    assert words in failed["error"]
    assert not host.path("/etc/x").exists()
    assert host.calls() == []
    assert not list(host.path("/var/lib/gpunode/runs").rglob("payload-*"))


def test_an_apply_whose_image_did_not_arrive_never_began(host: Host, image: LoadImage):
    """A second connection gets the failure at once, even while the first one still waits for the rest."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", bootstrap.command(sudo=False, password=False)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=host.environment,
    )
    host.started.append(process)
    assert process.stdin
    process.stdin.write(wire.encode(host.job(image)) + b"half of it")
    process.stdin.flush()
    wait_until(lambda: list(host.path("/var/lib/gpunode").rglob("payload-0")))
    assert [message["type"] for message in host.ask(wire.follow_job("run1"))] == ["unknown", "end"]
    process.stdin.close()
    process.wait(10)
    assert [message["type"] for message in host.ask(wire.follow_job("run1"))] == ["unknown", "end"]


def test_an_image_that_is_another_one_after_loading_is_a_failure(host: Host, image: LoadImage):
    """The archive held another image under this name."""
    docker(host, "sha256:dead")
    failed = host.fail(image, payload=Path(image.archive).read_bytes())
    assert failed["code"] == "image-failed"
    assert "sha256:dead and not sha256:feed" in failed["error"]


def test_a_full_disk_while_loading_is_reported_as_such(host: Host, image: LoadImage):
    """docker's words for it."""
    docker(host, "none", load='echo "write /layer.tar: no space left on device" >&2; exit 1')
    assert host.fail(image, payload=Path(image.archive).read_bytes())["code"] == "disk-full"


def test_a_reboot_is_done_when_everybody_has_been_told(host: Host):
    """After the end message, and only when nothing failed."""
    failing = host.fail(WriteFile("/etc/x", "x", "why", before="y"), Reboot("why"))
    assert failing["code"] == "changed-underneath"
    messages = host.apply(Reboot("why"))
    assert [message["type"] for message in messages] == ["start", "done", "end"]
    wait_until(lambda: "systemctl reboot" in host.calls())
    assert host.calls().count("systemctl reboot") == 1


@tables.rows("reboots-into-kernels")
def test_a_reboot_is_not_into_a_kernel_that_has_no_nvidia_module(
    host: Host, modules: dict[str, bool], grub: str, rebooted: bool
):
    """dkms may have failed without a word since the plan. What boots next is not known on every host."""
    host.write("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
    for kernel, there in modules.items():
        host.write(f"/boot/vmlinuz-{kernel}", "")
        host.write(f"/lib/modules/{kernel}/modules.dep", "updates/dkms/nvidia.ko:\n" if there else "")
    if grub:
        host.write("/etc/default/grub", f'GRUB_DEFAULT="gnulinux-advanced-1f>gnulinux-{grub}-advanced-1f"\n')
    *_, last, end = [{}, *host.apply(Reboot("why"))]
    assert end["ok"] == rebooted
    if not rebooted:
        assert last["code"] == "module-missing"
        assert last["error"].endswith("boots next and has no nvidia module")
        assert "systemctl reboot" not in host.calls()
        assert host.apply(Reboot("why", bare=True))[-1]["ok"]  # whose plan removes the driver


@tables.rows("built-modules")
def test_the_module_of_the_next_kernel_is_built_before_a_reboot(
    host: Host, status: str, build: str, rebooted: bool, detail: list[str]
):
    """The scripts of the packages build for the running kernel alone."""
    host.write("/proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
    for kernel, listed in (("6.1.0-40-amd64", "extra/nvidia.ko:\n"), ("6.1.0-41-amd64", "")):
        host.write(f"/boot/vmlinuz-{kernel}", "")
        host.write(f"/lib/modules/{kernel}/modules.dep", listed)
    host.program(
        "dkms",
        f'[ "$1" = status ] && {{ echo "{status}"; exit; }}\n'
        f'[ "$*" = "autoinstall -k 6.1.0-41-amd64" ] || exit 1\n'
        f'listed="$GPUNODE_ROOT/lib/modules/$3/modules.dep"; {build}\n',
    )
    *_, failed, end = [{}, *host.apply(Reboot("why"))]
    assert end["ok"] == rebooted
    if not rebooted:
        assert (failed["code"], failed["detail"]) == ("module-missing", detail)


@pytest.mark.parametrize(
    ("ends", "command", "rebooted"),
    [
        (None, "python3", True),
        ((), "python3", False),
        (("77",), "python3", True),
        (("78",), "python3", False),
        ((), "nvidia-persistenced", True),
    ],
)
def test_a_reboot_ends_nobody_who_came_after_the_plan(
    host: Host, ends: tuple[str, ...] | None, command: str, rebooted: bool
):
    """Packages may have taken minutes; the driver's own daemons are nobody."""
    use_gpu(host, command)
    *_, last, end = [{}, *host.apply(Reboot("why", ends))]
    assert end["ok"] == rebooted
    if not rebooted:
        assert last["code"] == "gpus-in-use"
        assert last["error"] == "not rebooted: since the plan these use the GPUs: python3 (pid 77)"
        assert "systemctl reboot" not in host.calls()


@pytest.mark.parametrize(
    ("ends", "cgroup", "restarted"),
    [
        (None, f"0::/docker/{64 * 'a'}", True),
        ((), f"0::/docker/{64 * 'a'}", False),
        (("77",), f"0::/docker/{64 * 'a'}", True),
        (("78",), f"0::/docker/{64 * 'a'}", False),
        ((), "0::/user.slice/session-1.scope", True),
    ],
    ids=["kill", "nobody was there", "it was there", "another was there", "outside of containers"],
)
def test_a_restart_of_docker_ends_no_container_that_came_after_the_plan(
    host: Host, ends: tuple[str, ...] | None, cgroup: str, restarted: bool
):
    """It has read nothing of the new file, which is put back then."""
    host.unit(DOCKER, START)
    before = host.write(DAEMON, "{}\n").read_text()
    host.write("/dev/nvidia0", "")
    host.write("/proc/77/cmdline", "python3\0")
    host.write("/proc/77/cgroup", f"{cgroup}\n")
    host.path("/proc/77/fd").mkdir()
    host.path("/proc/77/fd/4").symlink_to("/dev/nvidia0")
    after = '{"default-runtime": "nvidia"}\n'
    *_, last, end = host.apply(
        WriteFile(DAEMON, after, "why", before=before),
        Service(DOCKER, "why", restart=True, guards=(DAEMON,), ends=ends),
    )
    assert end["ok"] == restarted
    assert (f"systemctl restart {DOCKER}" in host.calls()) == restarted
    assert host.read(DAEMON) == (after if restarted else before)
    if not restarted:
        assert last["code"] == "gpus-in-use"
        assert (
            last["error"] == f"{DOCKER} is not restarted: since the plan these use the GPUs: python3 (pid 77)"
        )


def test_the_end_of_the_fabric_manager_ends_nobody_who_came_after_the_plan(host: Host):
    """It aborts CUDA's jobs outside of containers, too."""
    unit = "nvidia-fabricmanager.service"
    host.unit(unit, START)
    use_gpu(host, "python3")
    for verb, change in (
        ("restart", Service(unit, "why", restart=True, ends=())),
        ("stopp", Service(unit, "why", disable=True, ends=())),
    ):
        failed = host.fail(change)
        assert failed["code"] == "gpus-in-use"
        assert failed["error"].startswith(f"{unit} is not {verb}ed: ")
    assert not {f"systemctl restart {unit}", f"systemctl disable --now {unit}"} & set(host.calls())


def test_systemd_is_not_reloaded_where_that_takes_gpus_from_who_came_after_the_plan(host: Host):
    """The reload alone may, whatever is started after it."""
    host.unit("links.service", ActiveState="inactive", SubState="dead", MainPID=0, Type="oneshot")
    use_gpu(host, "python3")
    host.write("/proc/77/cgroup", f"0::/docker/{64 * 'a'}\n")
    for start in (True, False):
        failed = host.fail(Service("links.service", "why", enable=True, start=start, ends=(), loses=True))
        assert failed["code"] == "gpus-in-use"
    assert not any("daemon-reload" in call or "enable" in call for call in host.calls())


def test_a_reboot_that_is_refused_is_told_to_who_asks_again(host: Host):
    """The `end` is sent before the attempt, so the failure follows it."""
    host.program(
        "systemctl", 'if [ "$1" = reboot ]; then echo "Unit reboot.target is masked." >&2; exit 1; fi'
    )
    host.apply(Reboot("why"))
    wait_until(lambda: host.ask(wire.follow_job("run1"))[-1]["ok"] is False)
    *_, failed, _ = host.ask(wire.follow_job("run1"))
    assert failed["code"] == "reboot-failed"
    assert failed["error"] == "the host does not reboot: Unit reboot.target is masked."
