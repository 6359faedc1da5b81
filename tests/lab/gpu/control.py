"""Faults of a node's GPUs, as commands to run in the node as root.

A GPU is named by its number in /etc/lab-gpus.json, which lists them in PCI bus order.
"""

TOOL = "/usr/local/sbin/lab-gpu"


def xid(gpu: int, number: int, instance: tuple[int, int] | None = None) -> list[str]:
    """The driver reports this Xid of the GPU: an NVML event and a line in the node's kernel log.

    `instance`: GPU instance and compute instance id, when it is of one MIG device.
    """
    return [TOOL, "xid", str(gpu), str(number), *(str(number) for number in instance or ())]


def lose(gpu: int) -> list[list[str]]:
    """The GPU falls off the bus: Xid 79, and every call about it says GPU_IS_LOST."""
    return [[TOOL, "set", f"gpus.{gpu}.lost", "1"], xid(gpu, 79)]


def bring_back(gpu: int) -> list[list[str]]:
    """The GPU answers again."""
    return [[TOOL, "unset", f"gpus.{gpu}.{fault}"] for fault in ("lost", "hang", "fault")]


def hang(gpu: int | None = None) -> list[str]:
    """Every NVML call about the GPU (None: every NVML call) blocks until `resume`."""
    return [TOOL, "set", "hang" if gpu is None else f"gpus.{gpu}.hang", "1"]


def resume(gpu: int | None = None) -> list[str]:
    return [TOOL, "unset", "hang" if gpu is None else f"gpus.{gpu}.hang"]


def fail(function: str, code: int, gpu: int | None = None) -> list[str]:
    """The NVML function (its name in the library; nvmlInit for initialisation) answers this error code."""
    return [TOOL, "set", f"fault.{function}" if gpu is None else f"gpus.{gpu}.fault.{function}", str(code)]


def use(gpu: int, pid: int, name: str) -> list[str]:
    """NVML lists a process that uses the GPU, one for each GPU at most."""
    return [TOOL, "set", f"processes.{gpu}", f"{gpu} {pid} 512 {name}"]


def leave(gpu: int) -> list[str]:
    """The process has ended."""
    return [TOOL, "unset", f"processes.{gpu}"]


def set_mig(gpu: int, devices: list[dict[str, object]]) -> list[list[str]]:
    """Turn MIG on with these devices (mig.devices), or off with none; NVML of running processes sees it too."""
    commands = [[TOOL, "unset", f"gpus.{gpu}.mig.devices"]]
    for number, device in enumerate(devices):
        commands += [
            set_fact(gpu, f"mig.devices.{number}.{name}", str(value)) for name, value in device.items()
        ]
    commands += [
        set_fact(gpu, "mig.devices.count", str(len(devices))),
        set_fact(gpu, "mig.enabled", str(int(bool(devices)))),
    ]
    return commands


def set_fact(gpu: int, name: str, value: str) -> list[str]:
    """Change what the GPU says of itself, e.g. `used_mib`, `temperature`, `mig.enabled`."""
    return [TOOL, "set", f"gpus.{gpu}.{name}", value]
