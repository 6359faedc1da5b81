"""Running containers with GPUs, and whether their device cgroups still allow these: v1's lists, and programs as runc and systemd make them."""

import ctypes
import os
import platform
import stat
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.links.pod.on_host import device_rules
from gpunode.links.pod.on_host.device_rules import in_list, result_of
from gpunode.model import GpuContainer
from tests import tables
from tests.agent.conftest import Host

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
CONTAINER, OTHER = "ab" * 32, "cd" * 32
UID = "1b2c3d4e-1111-2222-3333-444455556666"
CGROUP = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
Rule = tuple[int, int | None]


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    return struct.pack("=BBhi", code, target | source << 4, offset, number)


def runc(*rules: Rule, allow: bool = False, access: int = 7) -> bytes:
    """As deviceFilter of opencontainers/cgroups writes it: a block for each rule, then the default."""
    out = [
        instruction(0x61, 2, 1), instruction(0x54, 2, number=0xFFFF),
        instruction(0x61, 3, 1), instruction(0x74, 3, number=16),
        instruction(0x61, 4, 1, 4), instruction(0x61, 5, 1, 8),
    ]  # fmt: skip
    for major, minor in rules:
        block = [instruction(0xBC, 1, 3), instruction(0x54, 1, number=access)] if access != 7 else []
        tests: list[tuple[int, int, int, int]] = [(0x55, 2, 0, 2)]
        tests += [(0x5D, 1, 3, 0)] if access != 7 else []
        tests += [(0x55, 4, 0, major)] + ([] if minor is None else [(0x55, 5, 0, minor)])
        block += [
            instruction(code, target, source, len(tests) - n + 1, number)
            for n, (code, target, source, number) in enumerate(tests)
        ]
        out += [*block, instruction(0xB4, 0, number=int(not allow)), instruction(0x95)]
    return b"".join([*out, instruction(0xB4, 0, number=int(allow)), instruction(0x95)])


def systemd(*rules: Rule, access: int = 7) -> bytes:
    """As bpf-devices.c of systemd writes it: rules jump to the shared end that allows."""
    head = [
        instruction(0x69, 2, 1), instruction(0x61, 3, 1), instruction(0x74, 3, number=16),
        instruction(0x61, 4, 1, 4), instruction(0x61, 5, 1, 8),
    ]  # fmt: skip
    body: list[bytes] = []
    for major, minor in rules:
        last = [] if minor is None else [instruction(0x55, 5, 0, 1, minor)]
        size = 3 + len(last)
        body += [
            instruction(0xBC, 1, 3), instruction(0x54, 1, number=access),
            instruction(0x5D, 1, 3, size), instruction(0x55, 2, 0, size - 1, 2),
            instruction(0x55, 4, 0, size - 2, major), *last, b"pass",
        ]  # fmt: skip
    end = len(body)
    body = [instruction(0x05, offset=end - n + 1) if item == b"pass" else item for n, item in enumerate(body)]
    tail = [instruction(0xB7, 0, number=0), instruction(0x05, offset=1), instruction(0xB7, 0, number=1)]
    return b"".join([*head, *body, *tail, instruction(0x95)])


@tables.rows("cgroup-device-lists")
def test_a_list_of_cgroup_v1_allows_what_one_of_its_lines_does(text: str, allowed: bool):
    """A program opens a GPU to read and to write, and the kernel wants one line for both."""
    assert in_list(text, 195, 0) is allowed


@pytest.mark.parametrize("write", [runc, systemd])
@pytest.mark.parametrize(
    ("rules", "access", "allowed"),
    [
        (((195, 0),), 7, True),
        (((195, 0),), 6, True),
        (((195, 0),), 1, False),
        (((195, 0),), 2, False),
        (((1, 3), (195, None)), 7, True),
        (((1, 3), (1, 8), (136, None)), 7, False),
        (((195, 255), (511, 0)), 6, False),
        ((), 7, False),
    ],
)
def test_a_program_of_runc_or_systemd_is_understood(
    write: object, rules: Sequence[Rule], access: int, allowed: bool
):
    """Without the device's rule it refuses; of one that allows mknod alone, or reading alone, too."""
    assert callable(write)
    assert result_of(write(*rules, access=access), 195, 0) is allowed


def test_a_privileged_containers_program_allows_all_but_what_it_denies():
    assert result_of(runc(allow=True), 195, 0) is True
    assert result_of(runc((195, 0), allow=True), 195, 0) is False
    assert result_of(runc((195, 0), allow=True), 195, 1) is True


@pytest.mark.parametrize(
    "program",
    [
        b"",
        instruction(0x95),  # ends without an answer
        instruction(0x85, number=14)
        + instruction(0xB7)
        + instruction(0x95),  # calls a function of the kernel
        instruction(0x18, 2, 1, number=3) + instruction(0) + instruction(0x95),  # has a map
        instruction(0xBF, 0, 1) + instruction(0x95),  # answers an address
        instruction(0x05, offset=-1),
        runc((195, 0))[:-24],  # was cut off
        runc((195, 0))[:-5],
    ],
    ids=("empty", "no answer", "call", "map", "address", "backwards", "cut", "cut within"),
)
def test_of_any_other_program_nothing_is_claimed(program: bytes):
    """None, so that the host says that it cannot tell; no program keeps it busy."""
    assert result_of(program, 195, 1) is None


def test_of_several_programs_each_must_allow():
    """The kernel runs those of the cgroups above it, too."""
    yes, no = runc((195, 0)), runc((1, 3))
    assert device_rules.all_allow([], 195, 0) is True
    assert device_rules.all_allow([yes, yes], 195, 0) is True
    assert device_rules.all_allow([yes, no], 195, 0) is False
    assert device_rules.all_allow([yes, b""], 195, 0) is None


# --- In a probe ---------------------------------------------------------------------------------------------


def container(host: Host, pid: int, *names: str, cgroup: str) -> None:
    """A process of a container with these device files."""
    host.write(f"/proc/{pid}/cgroup", cgroup)
    folder = host.path(f"/proc/{pid}/root/dev")
    folder.mkdir(parents=True)
    device_files(folder, *names)


def device_files(folder: Path, *names: str) -> None:
    try:
        for name in names:
            minor = 255 if name.endswith("ctl") else int(name[-1])
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    except PermissionError:
        pytest.skip("this machine makes no device files")


def v1(path: str) -> str:
    return f"12:cpu,cpuacct:{path}\n11:devices:{path}\n1:name=systemd:{path}\n0::/\n"


@ROOT
def test_a_container_whose_list_lost_the_gpus_is_named_with_its_pod(host: Host):
    """By its first process, which its monitor on the host is not. One that may use all devices keeps them; one without GPUs, with the host's /dev, or with all of its
    devices is not named."""
    host.path("/dev").mkdir()
    device_files(host.path("/dev"), "nvidia0", "nvidiactl")
    host.path(f"/var/log/pods/ml_train_{UID}").mkdir(parents=True)
    container(host, 40, "nvidia0", "nvidiactl", cgroup=v1(CGROUP))
    container(host, 41, cgroup=v1(CGROUP))
    host.write("/proc/39/cgroup", v1(f"/system.slice/crio-conmon-{CONTAINER}.scope"))
    host.path("/proc/39/root").symlink_to("../..")
    container(host, 50, "nvidia0", cgroup=v1(f"/docker/{OTHER}"))
    container(host, 60, "null0", cgroup=v1(f"/docker/{'ef' * 32}"))
    container(host, 65, "nvidia0", cgroup=v1(f"/docker/{'34' * 32}"))
    host.write("/proc/65/root/dev/kmsg", "")
    host.write("/proc/70/cgroup", v1(f"/docker/{'12' * 32}"))
    host.path("/proc/70/root").symlink_to("../..")
    host.write(f"/sys/fs/cgroup/devices{CGROUP}/devices.list", "c 1:3 rwm\nc 195:0 rw\n")
    host.write(f"/sys/fs/cgroup/devices/docker/{OTHER}/devices.list", "a *:* rwm\n")
    files = ("/dev/nvidia0", "/dev/nvidiactl")
    assert host.facts().gpu_containers == (
        GpuContainer(CONTAINER, UID, "ml/train", files, ("/dev/nvidiactl",)),
        GpuContainer(OTHER, None, None, files[:1], ()),
    )


@ROOT
@pytest.mark.parametrize("cgroup", [v1(CGROUP), f"0::{CGROUP}\n", "1:name=systemd:/docker/" + OTHER])
def test_where_the_rules_cannot_be_read_nothing_is_claimed(host: Host, cgroup: str):
    host.path("/dev").mkdir()
    device_files(host.path("/dev"), "nvidia0")
    container(host, 40, "nvidia0", cgroup=cgroup)
    assert [each.lost for each in host.facts().gpu_containers] == [None]


UNIFIED = next(
    (
        path
        for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        if Path(path, "cgroup.controllers").exists()
    ),
    "",
)


@contextmanager
def attached(program: bytes) -> Iterator[Path]:
    """A cgroup of this machine with this program, as a runtime attaches one."""
    number = device_rules.CALLS.get(platform.machine(), 0)
    library = ctypes.CDLL(None, use_errno=True)
    folder = Path(UNIFIED, f"gpunode-test-{os.getpid()}")
    code, license = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    try:
        load = struct.pack("=IIQQ", 15, len(program) // 8, ctypes.addressof(code), ctypes.addressof(license))
        loaded = library.syscall(number, 5, ctypes.create_string_buffer(load, 128), 128)
        if loaded < 0:
            pytest.skip(f"this machine loads no program: {os.strerror(ctypes.get_errno())}")
        attach = struct.pack("=IIII", place, loaded, device_rules.CGROUP_DEVICE, 2)
        assert library.syscall(number, 8, ctypes.create_string_buffer(attach, 128), 128) == 0
        os.close(loaded)
        yield folder
    finally:
        os.close(place)
        folder.rmdir()


@ROOT
@pytest.mark.skipif(not UNIFIED, reason="no cgroup v2 here")
@pytest.mark.parametrize("write", [runc, systemd])
def test_the_kernel_and_the_reader_agree_about_a_cgroups_programs(host: Host, write: object):
    """A process that joins the cgroup opens the device, or gets EPERM: as the probe says without joining it."""
    assert callable(write)
    rules = [(1, minor) for minor in (3, 5, 8)]
    with attached(write(*rules)) as folder:
        for name, (major, minor) in {"null": (1, 3), "full": (1, 7), "zero": (1, 5)}.items():
            script = f"echo $$ > {folder}/cgroup.procs && exec 3<>/dev/{name}"
            opened = subprocess.run(["sh", "-c", script], capture_output=True, check=False).returncode == 0
            programs = device_rules.read_programs(str(folder))
            assert programs is not None
            assert device_rules.all_allow(programs, major, minor) is opened
            assert opened is (name != "full")
        host.path("/dev").mkdir()
        device_files(host.path("/dev"), "nvidia0")
        container(host, 40, "nvidia0", cgroup=f"0::/{folder.name}/{CONTAINER}\n")
        host.path("/sys/fs").mkdir(parents=True)
        host.path("/sys/fs/cgroup").mkdir()
        host.path(f"/sys/fs/cgroup/{folder.name}").mkdir()
        host.path(f"/sys/fs/cgroup/{folder.name}/{CONTAINER}").symlink_to(folder)
        (seen,) = host.facts().gpu_containers
        assert seen.lost == ("/dev/nvidia0",)
