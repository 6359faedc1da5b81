"""What the driver's Xid events require, and their short names: for the plugin's health, for `gpunode explain` and the reference.

What each Xid requires is from NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), as of
autumn 2026, column "Resolution Bucket (Immediate Action)", in our words:

- IGNORE, RESTART_APP, and 45's workflow -> APPLICATION
- RESET_GPU, and the workflows of 48, 74 and 144 to 150 that may end in it -> RESET
- RESTART_BM, RESTART_VM -> REBOOT
- CHECK_MECHANICALS -> HARDWARE

Two differ from the catalogue: 109 is RESET_GPU there, but NVIDIA's own device plugin ignores it, because applications
can cause it at will. 154 reports a changed recovery action, which the plugin's probe reads anyway.
An Xid in none of these sets counts as RESET.
"""

from enum import Enum


class Verdict(Enum):
    """What an Xid requires."""

    APPLICATION = "an application's fault or none; the GPU is fine"
    RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the host"
    REBOOT = "reboot the host"
    HARDWARE = "check the hardware: power, seating; the board may have to be replaced"


NUMBERS: dict[Verdict, frozenset[int]] = {
    Verdict.APPLICATION: frozenset(
        {8, 11, 13, 14, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63, *range(66, 73), 75, 76, 77, 80}
        | {*range(82, 87), 88, 89, 92, 93, 94, *range(96, 110), 121, *range(126, 136), 137, 139, 141}
        | {152, 153, 154, 157, 160, 161, 162, 163}
    ),
    Verdict.RESET: frozenset(
        {46, 48, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158}
    ),
    Verdict.REBOOT: frozenset({79, 151}),
    Verdict.HARDWARE: frozenset({54}),
}
NAMES = {
    8: "GPU stopped processing",
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "corrupted push buffer",
    43: "GPU stopped processing a channel",
    44: "fault during context switch",
    45: "preemptive cleanup",
    46: "GPU timeout",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    63: "memory row or page remapped",
    64: "memory row or page could not be remapped",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP firmware does not answer",
    120: "GSP firmware error",
    136: "link training failed",
    137: "NVLink privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    151: "key rotation error",
    154: "recovery action changed",
    158: "GPU fatal timeout",
}


def verdict(xid: int) -> Verdict:
    return next((kind for kind, numbers in NUMBERS.items() if xid in numbers), Verdict.RESET)


def xid_name(xid: int) -> str:
    if xid in NAMES:
        return NAMES[xid]
    known = any(xid in numbers for numbers in NUMBERS.values())
    return "see NVIDIA's Xid catalogue" if known else "not in the Xid catalogue that this plugin knows"
