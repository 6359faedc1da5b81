"""The agent looks at a host: every section of its facts, and what it does when one cannot be read."""

import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.agent import system
from gpunode.host import answers, bootstrap, wire
from gpunode.links.kubelet import minors, places, start
from gpunode.model import GpuUser, MigDevice, PciDevice, Run, Watch
from tests import tables
from tests.agent.conftest import Host, collect, wait_until

POD = "1b2c3d4e-1111-2222-3333-444455556666"
CONTAINER = "ab" * 32
UID = POD.replace("-", "_")
STATIC = "0f5d6a3b7c8e9d1a2b3c4d5e6f708192"  # a static pod's, without dashes
BINARY = "/usr/bin/nvidia-container-runtime"


def gpu(
    host: Host, address: str, device: str, cls: str, driver: str | None = None, vendor: str = "0x10de"
) -> None:
    folder = f"/sys/bus/pci/devices/{address}"
    host.write(f"{folder}/vendor", vendor + "\n")
    host.write(f"{folder}/device", f"0x{device}\n")
    host.write(f"{folder}/class", f"0x{cls}\n")
    if driver:
        host.path(f"{folder}/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


def test_a_bare_host_has_facts_and_no_errors_but_those_of_missing_programs(host: Host):
    """A host with nothing of gpunode's interest on it is no error."""
    host.write("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME='Debian'\nNAME=Joe's\n")
    before = time.time()
    seen = host.facts()
    assert (seen.hostname, seen.kernel, seen.boot_id, seen.uptime) == (
        "gpu-07",
        "6.1.0-13-amd64",
        "2f0f",
        86400.25,
    )
    assert (seen.os.id, seen.os.version) == ("debian", "12")
    assert seen.pci == ()
    assert seen.docker is seen.containerd is seen.kubelet is seen.running is None
    assert seen.containers == 0
    assert seen.errors == {}
    assert before <= seen.time <= time.time()


def test_a_host_says_which_machine_it_is(host: Host):
    """As its kubelet does, from the same files; a machine without them says nothing."""
    seen = host.facts()
    assert (seen.machine_id, seen.product_uuid) == ("", "")
    host.write("/var/lib/dbus/machine-id", "0b0b\n")
    assert host.facts().machine_id == "0b0b"
    host.write("/etc/machine-id", "0a0a\n")
    host.write("/sys/class/dmi/id/product_uuid", "4C4C4544-0042\n")
    seen = host.facts()
    assert (seen.machine_id, seen.product_uuid) == ("0a0a", "4C4C4544-0042")


def test_of_infiniband_functions_those_that_manage_nvswitches_are_reported(host: Host):
    """Their VPD says so; network cards of the same kind, and Ethernet functions, are left out."""
    for address, cls, vpd in (
        ("0000:05:00.0", "020700", "\x82NVIDIA ConnectX-7 SW_MNG\x90"),
        ("0000:06:00.0", "020700", "\x82NVIDIA ConnectX-7\x90"),
        ("0000:07:00.0", "020000", "SW_MNG"),
        ("0000:08:00.0", "020700", ""),
    ):
        gpu(host, address, "1021", cls, "mlx5_core", vendor="0x15b3")
        if vpd:
            host.write(f"/sys/bus/pci/devices/{address}/vpd", vpd)
    host.write("/sys/module/ib_umad/refcnt", "0\n")
    seen = host.facts()
    assert [(device.address, device.vendor, device.driver) for device in seen.pci] == [
        ("0000:05:00.0", "15b3", "mlx5_core")
    ]
    assert "ib_umad" in seen.modules


def test_all_functions_of_nvidia_devices_are_reported_with_the_driver_bound_to_them(host: Host):
    """Audio functions and foreign vendors differ by class and vendor; who decides needs both."""
    gpu(host, "0000:3b:00.0", "2330", "030200", driver="nouveau")
    gpu(host, "0000:3b:00.1", "22ba", "040300")
    host.write("/sys/bus/pci/devices/0000:3b:00.0/subsystem_device", "0x16c1\n")
    gpu(host, "0000:00:1f.0", "1234", "060100", vendor="0x8086")
    assert host.facts().pci == (
        PciDevice("0000:3b:00.0", "10de", "2330", "030200", "nouveau", "16c1"),
        PciDevice("0000:3b:00.1", "10de", "22ba", "040300", None),
    )


def test_nova_is_seen_by_its_modules_and_as_the_driver_of_a_gpu(host: Host):
    """Its PCI driver is called otherwise than the module."""
    gpu(host, "0000:3b:00.0", "20b2", "030200", driver="NovaCore")
    for name in ("nova_core", "nova_drm"):
        host.write(f"/sys/module/{name}/refcnt", "1\n")
    seen = host.facts()
    assert seen.pci[0].driver == "NovaCore"
    assert seen.modules.keys() == {"nova_core", "nova_drm"}


def test_driver_and_library_versions_come_from_files(host: Host):
    """They are right even when NVML does not work because the two differ."""
    host.write("/sys/module/nvidia/version", "580.95.05\n")
    host.write("/sys/module/nvidia/refcnt", "12\n")
    host.write("/sys/module/nvidia_uvm/refcnt", "2\n")
    banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\nGCC version: 12\n"
    host.write("/proc/driver/nvidia/version", banner)
    host.write("/usr/lib/nvidia/current/libnvidia-ml.so.580.178.04", "")
    host.path("/etc/alternatives").mkdir()
    host.path("/etc/alternatives/ml").symlink_to("/usr/lib/nvidia/current/libnvidia-ml.so.580.178.04")
    host.path("/usr/lib/libnvidia-ml.so.1").symlink_to("../../etc/alternatives/ml")
    host.program("ldconfig", 'echo "	libnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/libnvidia-ml.so.1"')
    host.program("nvidia-smi", "echo Failed to initialize NVML: Driver/library version mismatch; exit 18")
    seen = host.facts()
    assert (seen.modules["nvidia"].version, seen.modules["nvidia"].refcnt) == ("580.95.05", 12)
    assert seen.modules["nvidia_uvm"].version is None
    assert seen.module_banner == banner.splitlines()[0]
    assert seen.library_version == "580.178.04"
    assert seen.smi_error == "Failed to initialize NVML: Driver/library version mismatch"


def test_gpus_are_what_nvidia_smi_lists(host: Host):
    """Its PCI addresses are brought to the form of sysfs."""
    host.program(
        "nvidia-smi",
        'echo "0, GPU-1, Tesla P100-PCIE-16GB, 00000000:3B:00.0, 16384"; echo "1, GPU-2, NVIDIA GB10, 0000000F:01:00.0, [N/A]"',
    )
    first, second = host.facts().gpus
    assert (first.name, first.pci, first.memory_mib) == ("Tesla P100-PCIE-16GB", "0000:3b:00.0", 16384)
    assert (second.index, second.pci, second.memory_mib) == (1, "000f:01:00.0", None)


FABRIC = """
case $1 in
*fabric*) echo asked >> "$GPUNODE_ROOT/state/fabric"; echo "0, state  Completed, status Success"; echo "1, In Progress, N/A" ;;
*mig.mode*)
    echo "0, GPU-1, NVIDIA H100 80GB HBM3, 00000000:3B:00.0, 81559, Disabled, Disabled"
    echo "1, GPU-2, NVIDIA H100 80GB HBM3, 00000000:5E:00.0, 81559, Disabled, Disabled" ;;
*) %s
esac
"""


def test_the_fabric_of_gpus_is_asked_for_where_the_host_has_nvswitches(host: Host):
    """Each call of nvidia-smi may cost a second; drivers before 535 do not know the field."""
    host.program("nvidia-smi", FABRIC % "exit 2")
    assert [gpu.fabric for gpu in host.facts().gpus] == ["", ""]
    assert not host.path("/state/fabric").exists()
    gpu(host, "0000:c3:00.0", "22a3", "068000")
    fabrics = [gpu.fabric for gpu in host.facts().gpus]
    assert fabrics == ["state  Completed, status Success", "In Progress, N/A"]
    host.program("nvidia-smi", (FABRIC % "exit 2").replace("*fabric*)", "*fabric*) exit 2 ;;\n*never*)"))
    seen = host.facts()
    assert ([gpu.fabric for gpu in seen.gpus], seen.smi_error) == (["", ""], None)


SMI = """
case $1 in
-L) %s ;;
*mig.mode*)
    echo "0, GPU-1, NVIDIA H100 80GB HBM3, 00000000:3B:00.0, 81559, Disabled, Enabled"
    echo "1, GPU-2, NVIDIA H100 80GB HBM3, 00000000:5E:00.0, 81559, %s"
esac
"""
LIST = """
    echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"
    echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)"
    echo "  MIG 3g.40gb     Device  0: (UUID: MIG-3)"
    echo "  MIG 1g.10gb+me  Device  1: (UUID: MIG-GPU-2/7/0)"
"""


def test_mig_devices_are_those_that_nvidia_smi_lists_below_their_gpu(host: Host):
    """Each by the UUID that its driver gives it: before branch 470, one made of its GPU's."""
    host.program("nvidia-smi", SMI % (LIST, "Enabled, Enabled"))
    first, second = host.facts().gpus
    assert (first.mig_on, first.mig_pending, first.mig) == (False, True, ())
    assert (second.mig_on, second.mig_pending) == (True, True)
    assert second.mig == (MigDevice(0, "MIG-3", "3g.40gb"), MigDevice(1, "MIG-GPU-2/7/0", "1g.10gb+me"))


PROFILES = """
case $2 in
-lgip)
    echo "|   0  MIG 1g.10gb        19     7/7        9.75       No     14     0     0   |"
    echo "|                                                             1     0     0   |"
    echo "|   1  MIG 1g.10gb+me     20     0/1        9.75       No     14     1     0   |"
    echo "|   1  MIG 7g.80gb         0     0/1        79.12      No     98     5     0   |"
    exit 0
esac
"""


def test_mig_profiles_are_asked_for_where_the_inventory_has_a_layout(host: Host):
    """Each call of nvidia-smi may cost a second."""
    host.program("nvidia-smi", PROFILES + SMI % (LIST, "Enabled, Enabled"))
    seen = host.facts(mig=True)
    assert [gpu.profiles for gpu in seen.gpus] == [("1g.10gb",), ("1g.10gb+me", "7g.80gb")]
    assert [gpu.profiles for gpu in host.facts().gpus] == [(), ()]


def test_mig_devices_are_not_asked_for_where_mig_is_off(host: Host):
    """Each call of nvidia-smi may cost a second."""
    host.program("nvidia-smi", SMI % ("exit 3", "[N/A], [N/A]"))
    seen = host.facts()
    assert [(gpu.mig_on, gpu.mig_pending, gpu.mig) for gpu in seen.gpus] == [
        (False, True, ()),
        (False, False, ()),
    ]
    assert "mig" not in seen.errors


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo Unknown Error; exit 255", "Unknown Error"),
        ("exit 255", "exit status 255"),
        ("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'", "it does not name GPU-2"),
    ],
)
def test_mig_devices_that_could_not_be_listed_are_not_known(host: Host, fails: str, why: str):
    """Which is not that there are none. The GPUs are known all the same."""
    host.program("nvidia-smi", SMI % (fails, "Enabled, Enabled"))
    seen = host.facts()
    assert [gpu.mig for gpu in seen.gpus] == [(), None]
    assert seen.smi_error is None
    assert seen.errors["mig"].startswith("nvidia-smi -L: ")
    assert why in seen.errors["mig"]


def test_a_driver_that_knows_no_mig_is_asked_without_it(host: Host):
    """Before branch 450 such a query fails as a whole."""
    host.program(
        "nvidia-smi",
        "case $1 in\n"
        "*mig*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; echo; exit 2 ;;\n"
        "*) echo '0, GPU-1, Tesla P100-PCIE-16GB, 00000000:3B:00.0, 16384' ;;\n"
        "esac",
    )
    seen = host.facts()
    assert seen.smi_error is None
    assert [(gpu.uuid, gpu.mig_on, gpu.mig) for gpu in seen.gpus] == [("GPU-1", False, ())]


def test_packages_are_those_properly_installed_with_holds(host: Host):
    """Half-configured and removed packages do not count; a foreign architecture is distinguished."""
    host.apt(
        "hi \tnvidia-driver-580\t580.178.04-1\tamd64\n"
        "ii \tnvidia-driver-580\t580.178.04-1\ti386\n"
        "iF \tnvidia-dkms-580\t580.178.04-1\tamd64\n"
        "rc \tnvidia-docker2\t2.13.0-1\tall\n"
    )
    names = ("nvidia-driver-580", "nvidia-dkms-580", "nvidia-docker2", "absent")
    facts = host.facts(packages=names)
    seen = facts.packages
    assert facts.half_installed == ("nvidia-dkms-580",)
    assert set(seen) == {"nvidia-driver-580", "nvidia-driver-580:i386"}
    assert seen["nvidia-driver-580"].held
    assert not seen["nvidia-driver-580:i386"].held


def test_a_unit_is_active_since_a_time_that_files_can_be_compared_with(host: Host):
    """The kernel's monotonic time becomes seconds since the epoch."""
    since, epoch = time.monotonic() - 100, time.time() - time.monotonic()
    host.unit(
        "docker.service", ActiveEnterTimestampMonotonic=int(since * 1e6), UnitFileState="enabled", NRestarts=2
    )
    host.unit("old.service", ActiveState="failed", SubState="failed", ActiveEnterTimestampMonotonic=5)
    units = host.facts(units=("docker.service", "old.service", "none.service")).units
    docker = units["docker.service"]
    assert docker.active_since is not None
    assert docker.active_since == pytest.approx(epoch + since, abs=2)
    assert (docker.active, docker.enabled, docker.restarts) == ("active", "enabled", 2)
    assert units["old.service"].active_since is None
    assert units["none.service"].load == "not-found"
    assert len([call for call in host.calls() if "show" in call]) == 1


def test_docker_is_asked_only_where_its_socket_is(host: Host):
    """`docker info` on a host without dockerd would wait without output."""
    info = {
        "ServerVersion": "20.10.24",
        "Runtimes": {"runc": {}, "nvidia": {}},
        "DefaultRuntime": "nvidia",
        "CgroupDriver": "cgroupfs",
        "ContainersRunning": 7,
        "LiveRestoreEnabled": True,
    }
    host.program("docker", f"cat <<'E'\n{json.dumps(info)}\nE")
    assert host.facts().docker is None
    host.write("/run/docker.sock", "")
    docker = host.facts().docker
    assert (docker.version, docker.runtimes, docker.containers_running) == ("20.10.24", ("nvidia", "runc"), 7)
    assert docker.live_restore


def test_kernels_that_can_be_booted_are_known_with_their_nvidia_module(host: Host):
    """A rescue image has no modules of its own."""
    for version, modules in {
        "6.1.0-40-amd64": "updates/dkms/nvidia.ko.xz: kernel/drivers/video/backlight.ko\n",
        "6.1.0-41-amd64": "kernel/drivers/net/ethernet/nvidia/forcedeth.ko:\n",
        "6.12.0-1-amd64": "updates/dkms/nvidia-current.ko:\n",
        "6.12.0-2-amd64": "updates/dkms/nvidia-current-open.ko.xz:\n",
        "6.12.0-3-amd64": "updates/dkms/nvidia-tesla-470.ko:\n",
        "6.12.0-4-amd64": "updates/dkms/nvidia-current-open-drm.ko:\n",
        "4.4.0-210-generic": "updates/dkms/nvidia_384.ko:\n",
        "4.15.0-142-generic": "updates/dkms/nvidia_384_uvm.ko:\n",
    }.items():
        host.write(f"/boot/vmlinuz-{version}", "")
        host.write(f"/lib/modules/{version}/modules.dep", modules)
    host.write("/boot/vmlinuz-0-rescue-abc", "")
    assert host.facts().kernels == {
        "6.1.0-40-amd64": True,
        "6.1.0-41-amd64": False,
        "6.12.0-1-amd64": True,
        "6.12.0-2-amd64": True,
        "6.12.0-3-amd64": True,
        "6.12.0-4-amd64": False,
        "4.4.0-210-generic": True,
        "4.15.0-142-generic": False,
    }


@tables.rows("grub-kernels")
def test_the_kernel_that_grub_is_told_to_start_is_known_by_name(
    host: Host, files: dict[str, str], kernel: str | None
):
    """Not by its place in the menu, but the first, nor one that is gone: then it is not known. An entry for the next boot alone comes before all."""
    for version in ("6.1.0-4-amd64", "6.1.0-40-amd64"):
        host.write(f"/boot/vmlinuz-{version}", "")
        host.write(f"/lib/modules/{version}/modules.dep", "")
    for path, text in files.items():
        host.write(path, text)
    assert host.facts().boot_default == kernel


def test_the_files_of_the_running_kernels_nvidia_module_are_known_by_name(host: Host):
    """Not what depends on it, and none of its other modules."""
    release = "6.12.48+deb13-amd64"
    host.write("/proc/sys/kernel/osrelease", release + "\n")
    assert host.facts().module_files == ()
    listed = (
        "updates/dkms/nvidia-current-open.ko.xz: kernel/drivers/video/backlight.ko.xz",
        "updates/dkms/nvidia-current-open-uvm.ko.xz: updates/dkms/nvidia-current-open.ko.xz",
        "extra/nvidia.ko:",
        "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko:",
    )
    host.write(f"/lib/modules/{release}/modules.dep", "\n".join(listed) + "\n")
    assert host.facts().module_files == (
        "extra/nvidia.ko",
        "updates/dkms/nvidia-current-open.ko.xz",
    )


def test_containers_of_nvidia_docker_1_are_named(host: Host):
    """By their volumes, where its plugin is installed."""
    mounts = {"/usr/local/nvidia": {"Driver": "nvidia-docker", "Name": "nvidia_driver_384.81"}}
    for name, config in {"a": {"Name": "/trainer", "MountPoints": mounts}, "b": {"Name": "/web"}}.items():
        host.write(f"/data/containers/{name}/config.v2.json", json.dumps(config))
    info = json.dumps({"ServerVersion": "17.09.1-ce", "DockerRootDir": "/data"})
    host.program("docker", f"cat <<'E'\n{info}\nE")
    host.write("/run/docker.sock", "")
    docker = host.facts().docker
    assert docker.v1_containers == ()
    host.program("nvidia-docker-plugin", "")
    docker = host.facts().docker
    assert docker.v1_containers == ("trainer",)


def test_containerd_that_does_not_read_its_files_says_why(host: Host):
    """The version is known all the same."""
    host.program(
        "containerd",
        'if [ "$1" = --version ]; then echo containerd x v2.2.0 abc; else echo "containerd: bad toml at line 3" >&2; exit 1; fi',
    )
    containerd = host.facts().containerd
    assert (containerd.version, containerd.dump) == ("2.2.0", "")
    assert containerd.error == "containerd: bad toml at line 3"


def test_a_kubelet_that_runs_is_known_by_its_arguments(host: Host):
    """Its real arguments, not those in its current files."""
    host.program("kubelet", "echo Kubernetes v1.23.17")
    host.unit("kubelet.service", MainPID=812)
    host.write("/etc/systemd/system/kubelet.service", "[Service]\n")
    host.write("/proc/812/cmdline", "/usr/bin/kubelet\0--network-plugin=cni\0")
    kubelet = host.facts().kubelet
    assert kubelet.version == "1.23.17"
    assert kubelet.arguments == ("/usr/bin/kubelet", "--network-plugin=cni")
    assert kubelet.unit_text == "[Service]\n"
    assert kubelet.journal == ()


def test_the_kubelet_of_k3s_is_known_by_its_service(host: Host):
    """Its version, its unit with the files that this names, and the binary that it looks for."""
    host.program("k3s", "echo 'k3s version v1.33.5+k3s1 (ab12cd34)'; echo 'go version go1.24.6'")
    host.unit("kubelet.service", LoadState="not-found", ActiveState="inactive", MainPID=0)
    host.unit("k3s-agent.service", MainPID=812)
    host.write("/etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent\n")
    host.write("/etc/rancher/k3s/config.yaml", "kubelet-arg: [feature-gates=A=true]\n")
    host.write("/proc/812/cmdline", "/usr/local/bin/k3s agent\0")
    host.write(BINARY, b"\x7fELF\xff", mode=0o755)
    seen = host.facts(files=(*places.watch().files, BINARY), units=places.watch().units)
    assert seen.kubelet.version == "1.33.5+k3s1"
    assert places.read(seen).gates == {"A": True}
    assert seen.files[BINARY].content is None
    assert seen.files[BINARY].ctime


def test_the_kubelet_of_microk8s_is_known_by_its_service(host: Host):
    """The snap has its version, and a file of arguments its gates."""
    host.program("snap", 'echo "Name  Version"; echo "$2  v1.32.9  8355  1.32/stable  canonical**  classic"')
    host.unit("snap.microk8s.daemon-kubelite.service", MainPID=812)
    unit = "[Service]\nExecStart=/usr/bin/snap run microk8s.daemon-kubelite\n"
    host.write("/etc/systemd/system/snap.microk8s.daemon-kubelite.service", unit)
    host.write(
        "/var/snap/microk8s/8355/args/kubelet", "--root-dir=${SNAP_COMMON}/k\n--feature-gates=A=true\n"
    )
    host.path("/var/snap/microk8s/current").symlink_to("8355")
    seen = host.facts(files=places.watch().files, units=places.watch().units)
    assert seen.kubelet.version == "1.32.9"
    start = places.read(seen)
    assert start.argv[1] == "--root-dir=/var/snap/microk8s/common/k"
    assert start.gates == {"A": True}


@pytest.mark.parametrize(
    ("program", "unit", "prints", "version", "minor"),
    [
        ("k0s", "k0sworker", "v1.36.1+k0s.0", "1.36.1+k0s.0", 36),
        ("microshift", "microshift", "MicroShift Version: 4.18.4", "4.18.4", 31),  # OpenShift's
    ],
)
def test_the_kubelet_of_a_product_is_known_by_its_service(
    host: Host, program: str, unit: str, prints: str, version: str, minor: int
):
    host.program(program, f'[ "$1" = version ] && echo "{prints}"; echo "Base OCP Version: 4.18.4"')
    host.unit(f"{unit}.service", MainPID=812)
    kubelet = host.facts(units=places.watch().units).kubelet
    assert (kubelet.version, minors.minor(kubelet.version)) == (version, minor)


def test_a_kubelet_that_does_not_run_is_heard_without_systemds_chatter(host: Host):
    """Its own last words are the reason; 'Scheduled restart job' is not."""
    host.program("kubelet", "echo Kubernetes v1.36.3")
    host.unit("kubelet.service", ActiveState="activating", SubState="auto-restart", MainPID=0)
    host.program(
        "journalctl",
        'echo "E1121 run.go:72 unrecognized feature gate: DevicePlugins"; echo "kubelet.service: Scheduled restart job, restart counter is at 7."',
    )
    kubelet = host.facts().kubelet
    assert kubelet.arguments == ()
    assert kubelet.journal == ("E1121 run.go:72 unrecognized feature gate: DevicePlugins",)


def test_gpu_users_are_found_with_their_container_and_pod(host: Host):
    """By open device files and by mapped libraries; arguments are kept quiet, they may hold secrets."""
    host.write("/dev/nvidia0", "")
    pod = POD.replace("-", "_")
    slices = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{CONTAINER}.scope\n"
    host.write("/proc/21/cgroup", slices)
    host.write("/proc/21/cmdline", "/usr/bin/python3\0/opt/train.py\0--token=secret\0")
    host.path("/proc/21/fd").mkdir()
    host.path("/proc/21/fd/5").symlink_to("/dev/nvidia0")
    host.write("/proc/22/cgroup", "0::/system.slice/nvidia-persistenced.service\n")
    host.write("/proc/22/cmdline", "/usr/bin/nvidia-persistenced\0--user\0root\0")
    host.write(
        "/proc/22/maps",
        "7f00 r-xp 00000000 08:01 12 /usr/lib/libnvidia-ml.so.580.178.04\n",
    )
    host.path("/proc/22/fd").mkdir()
    host.path("/proc/23/fd").mkdir(parents=True)
    host.path("/proc/23/fd/0").symlink_to("/dev/null")
    seen = host.facts()
    assert seen.gpu_users == (
        GpuUser(21, "python3 train.py", CONTAINER, POD),
        GpuUser(22, "nvidia-persistenced", None, None),
    )


def test_containers_are_counted_by_their_processes(host: Host):
    """Of any runtime, with or without a GPU, whether a kubelet runs or not; a container with two processes is one."""
    other, task = CONTAINER[::-1], "/run/containerd/io.containerd.runtime.v2.task/default/shell/config.json"
    host.write("/proc/1/cgroup", "0::/init.scope\n")
    host.write("/proc/8/cgroup", "0::/system.slice/containerd.service\n")
    assert host.facts().containers == 0
    host.write(
        "/proc/21/cgroup", f"0::/kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-{CONTAINER}.scope\n"
    )
    host.write(
        "/proc/22/cgroup", f"0::/kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-{CONTAINER}.scope\n"
    )
    host.write("/proc/23/cgroup", f"0::/system.slice/docker-{other}.scope\n")
    host.write("/proc/24/cgroup", f"0::/kubepods/burstable/pod{STATIC}\n")
    host.write(task, "{}")
    host.write("/proc/25/cgroup", "0::/default/shell\n")
    assert host.facts().containers == 4


@pytest.mark.parametrize(
    "cgroup",
    [
        "/lxc.payload.web/system.slice/nginx.service",  # LXC, LXD, Incus
        "/lxc.payload/web/init.scope",  # LXC 3
        "/machine.slice/systemd-nspawn@db.service/payload/init.scope",
        "/machine.slice/machine-qemu\\x2d1\\x2ddb.scope/libvirt/emulator",
    ],
)
def test_a_system_container_and_a_virtual_machine_are_counted(host: Host, cgroup: str):
    """They have no id of a hash; a host with them is not bare. What only watches over them is none."""
    host.write("/proc/8/cgroup", "0::/lxc.monitor.web\n")
    host.write("/proc/21/cgroup", f"0::{cgroup}\n")
    host.write("/proc/22/cgroup", f"12:pids:{cgroup}\n1:name=systemd:{cgroup}\n")
    assert host.facts().containers == 1


@pytest.mark.parametrize(
    "own",
    [
        f"/docker/{'1' * 64}",
        f"/kubepods/burstable/pod{STATIC}/{'2' * 64}",
        "/lxc.payload.gpu",
        "/machine.slice/systemd-nspawn@gpu.service/payload",
    ],
)
def test_a_host_that_is_a_container_itself_has_its_daemons_to_itself(host: Host, own: str):
    """Where its cgroups have no namespace of their own, as with cgroup v1: else a reload of the modules would be a reboot."""
    host.write("/sys/module/nvidia/refcnt", "1\n")
    inner = {"9": "system.slice/nvidia-persistenced.service", "10": f"kubepods/pod{POD}/{CONTAINER}"}
    host.write("/proc/1/cgroup", f"1:name=systemd:{own}/init.scope\n")
    for pid, cgroup in inner.items():
        host.write(f"/proc/{pid}/cgroup", f"1:name=systemd:{own}/{cgroup}\n")
        host.path(f"/proc/{pid}/fd").mkdir()
        host.path(f"/proc/{pid}/fd/3").symlink_to("/dev/nvidiactl")
    seen = host.facts()
    assert [(user.container, user.pod) for user in seen.gpu_users] == [(None, None), (CONTAINER, POD)]
    assert seen.containers == 1


def test_a_machine_whose_name_begins_that_of_its_host_is_counted(host: Host):
    host.write("/proc/1/cgroup", "0::/lxc.payload.gpu-1/init.scope\n")
    host.write("/proc/9/cgroup", "0::/lxc.payload.gpu-1/lxc.payload.gpu/init.scope\n")
    assert host.facts().containers == 1


def test_a_cgroupfs_pod_on_a_hybrid_host_is_found(host: Host):
    """dockershim's layout: /kubepods/QOS/podUID/ID on many lines."""
    host.write("/sys/module/nvidia/refcnt", "1\n")
    host.write(
        "/proc/9/cgroup",
        f"12:pids:/kubepods/besteffort/pod{POD}/{CONTAINER}\n1:name=systemd:/kubepods/besteffort/pod{POD}/{CONTAINER}\n",
    )
    host.path("/proc/9/fd").mkdir()
    host.path("/proc/9/fd/3").symlink_to("/dev/nvidiactl")
    (user,) = host.facts().gpu_users
    assert (user.container, user.pod) == (CONTAINER, POD)


@tables.rows("gpu-users")
def test_a_gpu_user_is_named_as_its_owner_knows_it(
    host: Host, cgroup: str, file: list[str] | None, shown: str
):
    """A pod by namespace and name, a container by its name, as far as any file of the host has it."""
    host.write("/dev/nvidia0", "")
    host.write("/proc/9/cgroup", f"{cgroup}\n")
    host.write("/proc/9/cmdline", "train\0")
    host.path("/proc/9/fd").mkdir()
    host.path("/proc/9/fd/3").symlink_to("/dev/nvidia0")
    host.write("/proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: P100\nDevice Minor: \t 0\n")
    if file:
        host.write(*file)
    (user,) = host.facts().gpu_users
    assert str(user) == f"train (pid 9{', ' if shown else ''}{shown})"
    assert user.gpus == ("0000:3b:00.0",)


def test_images_of_containerd_are_known_by_their_config_through_an_index(host: Host):
    """An index is resolved to this machine's platform; names are completed as docker does. Without its content an image is not there."""
    host.write("/run/containerd/containerd.sock", "")
    host.program("dpkg", "echo amd64")
    index = {
        "manifests": [
            {"digest": "sha256:a1", "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": "sha256:a2", "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    }
    host.program(
        "ctr",
        'case "$*" in\n'
        '*"images ls") echo "REF TYPE DIGEST SIZE"; echo "docker.io/gpunode/plugin:1 application/x sha256:1234 9.1 MiB linux/amd64 -"; echo "docker.io/library/other:1 application/x sha256:0ff 9.1 MiB linux/arm64 -";;\n'
        f"*sha256:1234) cat <<'E'\n{json.dumps(index)}\nE\n;;\n"
        '*sha256:a2) echo \'{"config": {"digest": "sha256:feed"}}\';;\n'
        '*) echo "content digest: not found" >&2; exit 1;;\n'
        "esac",
    )
    assert host.facts(images=("gpunode/plugin:1", "gpunode/plugin:2", "other:1")).images == {
        "docker": {},
        "containerd": {"gpunode/plugin:1": "sha256:feed"},
    }


def test_images_are_told_for_each_runtime(host: Host):
    """Which of them the kubelet uses is not the agent's to guess: it may be down."""
    host.write("/run/docker.sock", "")
    host.program("docker", 'case "$1" in image) echo sha256:d0c;; *) echo "{}";; esac')
    assert host.facts(images=("a:1",)).images == {
        "docker": {"a:1": "sha256:d0c"},
        "containerd": {},
    }


def test_files_are_told_whole_absent_or_with_the_reason_why_not(host: Host):
    """Patterns give the paths that they match, plain paths are always in the answer."""
    text = "naïve ☃\r\n"
    host.write("/etc/docker/daemon.json", text, mode=0o640)
    host.write("/etc/docker/key.json", b"\xff\xfe")
    host.write("/etc/docker/large.json", b"x" * (256 * 1024 + 1))
    host.path("/etc/docker/dir.json").mkdir()
    os.mkfifo(host.path("/etc/docker/fifo.json"))
    host.path("/etc/link").symlink_to("/etc/docker/daemon.json")
    files = host.facts(files=("/etc/docker/*.json", "/etc/link", "/none", "/nothing/*")).files
    daemon = files["/etc/docker/daemon.json"]
    assert (daemon.content, daemon.mode) == (text, 0o640)
    assert daemon.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert daemon.mtime == host.path("/etc/docker/daemon.json").stat().st_mtime
    assert files["/etc/link"].content == text
    assert (files["/etc/docker/key.json"].content, files["/etc/docker/key.json"].error) == (None, "not UTF-8")
    large = files["/etc/docker/large.json"]
    assert (large.content, large.error) == (None, "larger than 256 KiB")
    assert large.sha256 == hashlib.sha256(b"x" * (256 * 1024 + 1)).hexdigest()
    assert files["/etc/docker/dir.json"].error == files["/etc/docker/fifo.json"].error == "not a regular file"
    assert not files["/none"].exists
    assert "/nothing/*" not in files


def test_a_huge_file_is_hashed_without_being_sent(host: Host):
    """80 MiB in a watched folder must not come over the wire."""
    path = host.write("/etc/big", b"")
    with path.open("wb") as file:
        file.truncate(80 * 1024 * 1024)
    message = host.probe(files=("/etc/big",))
    assert len(message["files"]["/etc/big"]["sha256"]) == 64
    assert len(json.dumps(message)) < 4000


def test_a_section_that_fails_is_named_and_spoils_no_other(host: Host):
    """The rest of the facts is as good as ever."""
    host.program("systemctl", "echo 'Failed to connect to bus: Host is down' >&2; exit 1")
    host.write("/run/docker.sock", "")
    host.program("docker", "echo 'permission denied' >&2; exit 1")
    gpu(host, "0000:3b:00.0", "2330", "030200")
    seen = host.facts(units=("docker.service",))
    assert seen.errors == {
        "units": "Failed to connect to bus: Host is down",
        "docker": "permission denied",
    }
    assert seen.units == {}
    assert len(seen.pci) == 1


@pytest.mark.parametrize("answer", ["", "rubbish=1", "LoadState=loaded"])
def test_a_systemctl_that_does_not_answer_for_every_unit_is_named(host: Host, answer: str):
    """Not a key that gpunode's own code does not find."""
    host.program("systemctl", f"echo {answer}")
    seen = host.facts(units=("docker.service",))
    why = "`systemctl show` does not answer for each of docker.service, kubelet.service"
    assert seen.errors["units"] == why


def test_a_damaged_number_is_named_by_its_place(host: Host):
    host.write("/proc/uptime", "\x00garbage\n")
    host.write("/sys/module/nvidia/refcnt", "many\n")
    host.program("systemctl", "for _ in 1 2; do echo LoadState=loaded; echo NRestarts=x; echo; done")
    seen = host.facts(units=("docker.service",))
    assert seen.errors == {
        "uptime": "/proc/uptime: expected a number of seconds, got '\\x00garbage'",
        "modules": "/sys/module/nvidia/refcnt: expected a number, got 'many'",
        "units": "NRestarts of docker.service, by systemctl show: expected a number, got 'x'",
    }


@pytest.mark.parametrize("line", ["garbage", "\\t\\t\\t", "ii \\tcuda", "i\\ta\\tb\\tc", "\\000\\377"])
def test_a_damaged_answer_of_dpkg_is_named(host: Host, line: str):
    host.program("dpkg-query", f"printf '{line}\\n'")
    host.program("apt-get", "")
    seen = host.facts(packages=("cuda*",))
    for section in ("packages", "half_installed"):
        assert seen.errors[section].startswith("dpkg-query -W: expected a package's state, got ")
        assert seen.errors[section].endswith("; check /var/lib/dpkg/status")


def test_a_dpkg_that_fails_is_no_host_without_packages(host: Host):
    host.program("dpkg-query", "echo 'dpkg-query: error: near line 3:' >&2; echo ' no name' >&2; exit 2")
    host.program("apt-get", "")
    seen = host.facts(packages=("cuda*",))
    assert seen.errors["packages"] == "dpkg-query: error: near line 3:  no name"


def test_an_apply_under_way_is_seen(host: Host):
    """By the lock, which ends with its process: a stale file means nothing."""
    holder = {"run": "r1", "by": "ben@desk", "since": 1000.5, "pid": 1}
    path = host.write("/run/gpunode/lock", json.dumps(holder))
    assert host.facts().running is None
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert host.facts().running == Run("r1", 1000.5, "ben@desk")


def test_cgroup_and_secure_boot_are_read_from_sysfs(host: Host):
    """Unknown is not off: a container that sees no firmware folder does not claim anything."""
    assert host.facts().secure_boot is None
    host.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    host.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    seen = host.facts()
    assert (seen.cgroup, seen.secure_boot) == ("v2", True)


def test_noise_of_a_shell_around_the_answer_does_no_harm(host: Host):
    """A banner without a newline, a bashrc that talks, a stray password line on standard input."""
    job = wire.probe_job(Watch())
    command = f"printf 'Welcome to gpu-07'; {bootstrap.command(sudo=False, password=False)}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=b"s3cret\n" + wire.encode(job),
        env=host.environment,
        capture_output=True,
        check=True,
    )
    messages, complete = collect(done.stdout.splitlines(keepends=True), job["nonce"])
    assert complete
    assert [message["type"] for message in messages] == ["facts"]
    assert b"s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("python", sorted(Path("/usr/bin").glob("python3.?*[0-9]")), ids=str)
def test_this_machine_answers_a_probe(python: Path, tmp_path):
    """The real agent on every installed Python, from a home folder with odd files in it."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working folder')")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(python)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    job = wire.probe_job(
        Watch(files=("/etc/os-release",), units=("ssh.service",), packages=("bash",), images=("a:1",))
    )
    done = subprocess.run(
        ["/bin/sh", "-c", bootstrap.command(sudo=False, password=False)],
        input=wire.encode(job),
        env={"PATH": path, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (message,), complete = collect(done.stdout.splitlines(keepends=True), job["nonce"])
    assert complete
    seen = answers.parse_facts(message["facts"])
    assert seen.files["/etc/os-release"].content == Path("/etc/os-release").read_text()
    assert seen.kernel == os.uname().release


def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch, tmp_path):
    """nvidia-smi hangs in the kernel when a GPU has fallen off; here what holds its output outlives the signal."""
    holder = tmp_path / "holder"

    def kill_one(pid: int, number: int) -> None:
        wait_until(lambda: holder.exists() and holder.read_text().endswith("\n"))
        os.kill(pid, number)

    monkeypatch.setattr(os, "killpg", kill_one)
    answer = system.run("sh", "-c", f"sleep 600 & echo $! > '{holder}'; exec sleep 600", timeout=0.2)
    os.kill(int(holder.read_text()), signal.SIGKILL)  # it still ran
    assert answer == (124, "", "sh did not answer within 0 seconds")


def test_the_probes_own_nvidia_smi_is_no_user_of_the_gpus(host: Host):
    """It would make a reboot of what could be a reload of the module: it runs after users and modules were read."""
    host.write("/dev/nvidia0", "")
    host.path("/users").mkdir()
    for pid in range(1, 1500):
        host.path(f"/proc/{pid}").mkdir()
        host.path(f"/proc/{pid}/fd").symlink_to("../../users")
    host.write("/sys/module/nvidia/refcnt", "0\n")
    host.program(
        "nvidia-smi",
        'ln -s /dev/nvidia0 "$GPUNODE_ROOT/users/3"; echo 5 > "$GPUNODE_ROOT/sys/module/nvidia/refcnt"',
    )
    seen = host.facts()
    assert host.path("/users/3").is_symlink()
    assert seen.gpu_users == ()
    assert seen.modules["nvidia"].refcnt == 0


def test_a_reading_that_hangs_costs_its_section_and_holds_nothing_up(host: Host):
    """A file on a server that is gone: no timeout of a program ends such an open()."""
    host.path("/etc/os-release").unlink(missing_ok=True)
    os.mkfifo(host.path("/etc/os-release"))
    (message,) = host.ask({**wire.probe_job(Watch()), "patience": 2})
    assert message["facts"]["os"] is None
    assert message["facts"]["errors"]["os"] == "no answer within 2 seconds"
    assert message["facts"]["arch"]


def failed(host: Host, version: str = "1.31.4") -> None:
    """Its kubelet does not run."""
    host.program("kubelet", f"echo Kubernetes v{version}")
    host.unit("kubelet.service", MainPID=0, ActiveState="failed")
    host.program("journalctl", "")


UNIT = """\
[Service]
EnvironmentFile=-/etc/kubernetes/kubelet.env
ExecStart=/usr/local/bin/kubelet $KUBELET_ARGS
"""


def test_the_files_that_a_kubelet_is_started_with_are_read_wherever_they_are(host: Host):
    """kubespray keeps them below /etc/kubernetes; unread they would look empty, and be planned on."""
    failed(host)
    host.write("/etc/systemd/system/kubelet.service", UNIT)
    environment = 'KUBELET_ARGS="--config=/etc/kubernetes/kubelet-config.yaml \\\n--cloud-config=/etc/kubernetes/cloud"\n'
    host.write("/etc/kubernetes/kubelet.env", environment)
    host.write("/etc/kubernetes/kubelet-config.yaml", "featureGates: {DevicePlugins: true}\n")
    seen = host.facts(files=("/etc/a",))
    assert set(seen.files) == {"/etc/a", "/etc/kubernetes/kubelet.env", "/etc/kubernetes/kubelet-config.yaml"}
    assert places.read(seen).config_path == "/etc/kubernetes/kubelet-config.yaml"
    assert places.read(seen).config_gates == {"DevicePlugins": True}


def test_a_unit_and_a_configuration_in_other_places_are_read(host: Host):
    """A linked unit, a configuration that a variable names, and the folder of its drop-ins."""
    failed(host)
    unit = "[Service]\nEnvironmentFile=-/etc/default/%p\nExecStart=/usr/bin/kubelet --config=${CONFIG} --config-dir /etc/k.d\n"
    host.write("/opt/k/kubelet.service", unit)
    host.write("/etc/systemd/system/kubelet.service", f"# /opt/k/kubelet.service\n{unit}")  # `systemctl cat`
    host.write("/etc/default/kubelet", 'CONFIG="/etc/k.yaml"\n')
    host.write("/etc/k.yaml", "featureGates: {A: true, B: true}\n")
    host.write("/etc/k.d/sub/10-b.conf", "featureGates: {B: false}\n")
    host.write("/etc/k.d/20-b.off", "featureGates: {B: true}\n")
    seen = host.facts()
    assert set(seen.files) == {
        "/opt/k/kubelet.service",
        "/etc/default/kubelet",
        "/etc/k.yaml",
        "/etc/k.d/sub/10-b.conf",
    }
    assert places.read(seen).config_gates == {"A": True, "B": False}


def test_the_record_of_a_configuration_from_the_api_is_read(host: Host):
    """It is below the folder that the kubelet's flag names, and not the file itself."""
    failed(host, "1.16.15")
    unit = "[Service]\nExecStart=/usr/bin/kubelet --dynamic-config-dir=/var/lib/kubelet/dyn/\n"
    host.write("/etc/systemd/system/kubelet.service", unit)
    host.write("/var/lib/kubelet/dyn/store/meta/assigned", '{"kind":"SerializedNodeConfigSource"}')
    seen = host.facts()
    assert (
        start.assigned_config(seen, places.read(seen).argv, 16) == "/var/lib/kubelet/dyn/store/meta/assigned"
    )
    assert start.assigned_config(seen, places.read(seen).argv, 24) is None


def test_versions_of_what_starts_containers_are_read(host: Host):
    """Of systemd, the toolkit's program, and each runc that is there; one that does not answer has none."""
    host.program(
        "systemctl", 'case "$1" in --version) echo "systemd 252 (252.39-1~deb12u1)"; echo "+PAM";; esac'
    )
    host.program("nvidia-ctk", 'echo "NVIDIA Container Toolkit CLI version 1.17.4"; echo "commit: 9b69590"')
    host.program("runc", 'echo "runc version 1.1.5+ds1"; echo "commit: 1.1.5+ds1-1"')
    host.write("/var/lib/k0s/bin/runc", "#!/bin/sh\necho runc version 1.3.4\n", mode=0o755)
    host.write("/var/lib/rancher/rke2/bin/runc", "#!/bin/sh\nexit 1\n", mode=0o755)
    assert host.facts().versions == {
        "systemd": "252",
        "nvidia-ctk": "1.17.4",
        "runc": "1.1.5",
        "/var/lib/k0s/bin/runc": "1.3.4",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="device files need root")
def test_devices_without_a_link_are_found(host: Host):
    """By number, as systemd looks for them; files that are no devices have none, and nvidia-ctk makes none for switches."""
    (host.root / "dev/char").mkdir(parents=True)
    switches = ("nvidia-nvswitch0", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia-fs0")
    try:
        for minor, name in enumerate(("nvidia0", "nvidia1", *switches)):
            os.mknod(host.root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    except PermissionError:
        pytest.skip("this machine makes no device files")
    host.write("/dev/nvidia-uvm", "")
    (host.root / "dev/char/195:0").symlink_to("../nvidia0")
    assert host.facts().unlinked == ("/dev/nvidia1",)


def test_a_device_that_goes_away_meanwhile_leaves_the_others_read(host: Host):
    """A link to nowhere looks the same."""
    (host.root / "dev").mkdir()
    (host.root / "dev/nvidia-old").symlink_to("nowhere")
    seen = host.facts()
    assert seen.unlinked == ()
    assert "unlinked" not in seen.errors


def test_environment_files_that_a_pattern_names_are_read(host: Host):
    """systemd takes every file that matches, so each may set gates."""
    failed(host)
    unit = "[Service]\nEnvironmentFile=-/etc/kubelet.d/*.env\nExecStart=/usr/bin/kubelet $A $B\n"
    host.write("/etc/systemd/system/kubelet.service", unit)
    host.write("/etc/kubelet.d/10-a.env", "A=--feature-gates=DevicePlugins=true\n")
    host.write("/etc/kubelet.d/20-b.env", "B=--v=2\n")
    host.write("/etc/kubelet.d/other", "B=--v=9\n")
    seen = host.facts()
    assert places.read(seen).environment_files == ("/etc/kubelet.d/10-a.env", "/etc/kubelet.d/20-b.env")
    assert places.read(seen).argv[1:] == ("--feature-gates=DevicePlugins=true", "--v=2")


def test_the_files_of_the_kubelet_that_runs_are_read_too(host: Host):
    """Its arguments may come from elsewhere than its unit; a missing file is reported."""
    host.program("kubelet", "echo Kubernetes v1.31.4")
    host.unit("kubelet.service", MainPID=9)
    host.write("/proc/9/cmdline", "/usr/bin/kubelet\0--config\0/opt/k/config.yaml\0")
    seen = host.facts()
    assert not seen.files["/opt/k/config.yaml"].exists
