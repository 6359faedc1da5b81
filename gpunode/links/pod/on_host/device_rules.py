"""What a device cgroup allows: the list of cgroup v1, and the programs of v2. Those are read, not run: a process would have to join the
cgroup to ask, and opening a device file may start a GPU."""

import operator
import os
import re
import struct
from typing import Any, Callable, Dict, List, Optional


def in_list(text: str, major: int, minor: int) -> bool:
    """By a devices.list. source: the kernel's Documentation/admin-guide/cgroup-v1/devices.rst"""
    for line in text.splitlines():
        match = re.match(r"([ac]) (\d+|\*):(\d+|\*) (\w+)", line)
        if match and match.group(2) in ("*", str(major)) and match.group(3) in ("*", str(minor)):
            if {"r", "w"} <= set(match.group(4)):
                return True
    return False


# source: linux/bpf.h; devicefilter.go of opencontainers/cgroups, ebpf.c of crun, bpf-devices.c of systemd
CALLS = {"x86_64": 321, "aarch64": 280}  # bpf(2)
GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, PROG_QUERY = 13, 15, 16
CGROUP_DEVICE, EFFECTIVE = 6, 1  # programs of the cgroups above it, too
READ_WRITE, CHARACTER = 6, 2
MOST, SPACE = 64, 1 << 16  # programs, and bytes of one


def read_programs(folder: str) -> Optional[List[bytes]]:
    """The programs that decide about a cgroup's devices, [] where none does; None where they cannot be read."""
    import ctypes  # dear, and only needed here

    number = CALLS.get(os.uname().machine)
    if number is None or not os.path.isdir(folder):
        return None
    library = ctypes.CDLL(None)

    def bpf(command: int, *fields: Any) -> bytes:
        attributes = ctypes.create_string_buffer(struct.pack(*fields), 64)
        status: int = library.syscall(number, command, attributes, len(attributes))
        if status < 0:
            raise OSError
        return struct.pack("=i", status) + attributes.raw

    def read_program(key: int) -> bytes:
        descriptor: int = struct.unpack_from("=i", bpf(GET_FD_BY_ID, "=I", key))[0]
        try:
            code = ctypes.create_string_buffer(SPACE)
            info = ctypes.create_string_buffer(struct.pack("=20xI8xQ", SPACE, ctypes.addressof(code)), 40)
            bpf(OBJ_GET_INFO_BY_FD, "=IIQ", descriptor, len(info), ctypes.addressof(info))
            return code.raw[: struct.unpack_from("=I", info.raw, 20)[0]]
        finally:
            os.close(descriptor)

    keys = (ctypes.c_uint32 * MOST)()
    place = os.open(folder, os.O_RDONLY)
    try:
        answer = bpf(PROG_QUERY, "=IIIIQI", place, CGROUP_DEVICE, EFFECTIVE, 0, ctypes.addressof(keys), MOST)
        return [read_program(keys[n]) for n in range(struct.unpack_from("=I", answer, 4 + 24)[0])]
    except OSError:
        return None
    finally:
        os.close(place)


def all_allow(programs: List[bytes], major: int, minor: int) -> Optional[bool]:
    results = [result_of(program, major, minor) for program in programs]
    return None if None in results else all(results)


COMPUTE: Dict[int, Callable[[int, int], int]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: lambda a, b: a << b % 64,
    0x70: lambda a, b: a >> b % 64,
}
COMPARE: Dict[int, Callable[[int, int], Any]] = {
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: operator.and_,
    0x50: operator.ne,
    0xA0: operator.lt,
    0xB0: operator.le,
}
LOADS = {0x61: "=I", 0x69: "=H", 0x71: "=B"}
ALU32, JUMP, JUMP32, ALU64 = 4, 5, 6, 7
GO, EXIT, MOVE, REGISTER = 0x05, 0x95, 0xB0, 8


def result_of(program: bytes, major: int, minor: int) -> Optional[bool]:
    """What a program answers that asks for a character device's reading and writing. None: it does more than compare
    (calls, maps, its stack), so that this cannot tell."""
    context = struct.pack("=III", READ_WRITE << 16 | CHARACTER, major, minor)
    registers: Dict[int, Optional[int]] = {1: None}  # None: the address of the context
    at = 0
    for _ in range(len(program) // 8):  # no program jumps back
        if not 0 <= at <= len(program) - 8:
            return None
        code, pair, offset, number = struct.unpack_from("=BBhi", program, at)
        target, source, kind, what = pair & 15, pair >> 4, code & 7, code & 0xF0
        at += 8
        if code == EXIT:
            answer = registers.get(0)
            return None if answer is None else bool(answer & 1)
        if code in LOADS and registers.get(source, 0) is None and 0 <= offset <= 8:
            registers[target] = struct.unpack_from(LOADS[code], context, offset)[0]
            continue
        mask = 0xFFFFFFFF if kind in (ALU32, JUMP32) else 0xFFFFFFFFFFFFFFFF
        value, before = registers.get(source) if code & REGISTER else number, registers.get(target)
        if code == GO:
            at += 8 * offset
        elif value is None:
            return None
        elif kind in (ALU32, ALU64) and what == MOVE:
            registers[target] = value & mask
        elif before is None:
            return None
        elif kind in (ALU32, ALU64) and what in COMPUTE:
            registers[target] = COMPUTE[what](before & mask, value & mask) & mask
        elif kind in (JUMP, JUMP32) and what in COMPARE:
            at += 8 * offset if COMPARE[what](before & mask, value & mask) else 0
        else:
            return None
    return None
