"""Self-test of the stand-in GPUs and packages, on the hosts of a running lab: python3 -m tests.lab.gpu.check

Resets both hosts, takes them through installing, using, breaking and changing drivers, and resets them again.
Uses nvidia-ml-py (module pynvml) of the Python that runs it.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .. import packages
from . import control, mig

PROBES = Path(__file__).parent / "probes"
QUIET = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends"]


class Host(Protocol):
    def exec(self, argv: list[str], *, input: str | None = None, check: bool = True) -> Any: ...


def legacy(host: Host) -> None:
    """P100s: an old branch needs its pin, a new one refuses the GPU, the open flavour too; libraries and module must agree."""
    bare(host, 2)
    refused = host.exec([*QUIET, "install", "cuda-drivers-580"], check=False)
    expect(
        "apt refuses branch 580 without its pin",
        refused.returncode and "but 595" in refused.stdout + refused.stderr,
    )
    install(host, "nvidia-driver-pinning-580")
    host.exec([*QUIET, "install", "cuda-drivers-580"])
    expect("without headers dkms builds nothing", host.exec(["modprobe", "nvidia"], check=False).returncode)
    install(host, headers(host))
    host.exec(["dkms", "autoinstall"])
    install(host, "nvidia-container-toolkit")
    host.exec(["modprobe", "nvidia"])
    facts = nvml(host)
    expect("NVML names two P100", [g["name"] for g in facts["gpus"]] == ["Tesla P100-PCIE-16GB"] * 2)
    expect("P100 has no MIG, no NVLink", all(g["mig_mode"] == g["link"] == "error 3" for g in facts["gpus"]))
    expect("driver 580, CUDA 13.0", (facts["driver"], facts["cuda"]) == ("580.178.04", 13000))
    compute(host, 2)
    containers(host, facts)
    faults(host, facts)
    used = (
        "python3 -c 'import ctypes, signal; print(ctypes.CDLL(\"libcuda.so.1\").cuInit(0), flush=True); signal.pause()' > /root/user & "
        "until grep -q 0 /root/user; do sleep 0.1; done; ls -l /proc/$!/fd; modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
        "modprobe nvidia; kill $!; wait"
    )
    done = host.exec(["sh", "-c", used], check=False)
    expect(
        "a CUDA process holds the device nodes",
        "-> /dev/nvidia-uvm" in done.stdout and "-> /dev/nvidiactl" in done.stdout,
    )
    expect("the module stays while it does", "Module nvidia is in use" in done.stderr)

    host.exec(["rm", "/etc/apt/preferences.d/nvidia-driver-pinning-580"])
    install(host, "cuda-drivers")
    said = host.exec(["nvidia-smi"], check=False)
    expect(
        "new libraries with the old module are a mismatch",
        "Driver/library version mismatch" in said.stdout and said.returncode == 18,
    )
    host.exec(["sh", "-c", "[ ! -d /run/systemd/system ] || systemctl stop nvidia-persistenced"])
    reload = host.exec(
        ["sh", "-c", "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia"],
        check=False,
    )
    expect("branch 595 does not take a P100", reload.returncode and "No such device" in reload.stderr)
    expect("the kernel log says why", "not supported by the" in host.exec(["dmesg"]).stdout)
    host.exec([*QUIET, "purge", "--autoremove", "cuda-drivers", "nvidia-*", "libnvidia-ml1", "libcuda1"])
    expect("purged modules are gone", "not found" in host.exec(["modinfo", "nvidia"], check=False).stderr)
    install(host, "nvidia-driver-pinning-580")
    install(host, "nvidia-open-580")
    expect("the open module does not take a P100", host.exec(["modprobe", "nvidia"], check=False).returncode)
    expect("the kernel log names the GSP", "System Processor (GSP)" in host.exec(["dmesg"]).stdout)


def modern(host: Host) -> None:
    """H100s: open modules, NVLink, MIG."""
    bare(host, 4)
    install(host, headers(host), "nvidia-open", "nvidia-container-toolkit")
    host.exec(["modprobe", "nvidia"])
    facts = nvml(host)
    expect("NVML names four H100", [g["name"] for g in facts["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 4)
    expect("driver 595, CUDA 13.2", (facts["driver"], facts["cuda"]) == ("595.91.07", 13020))
    expect("open flavour", "Open Kernel Module" in host.exec(["cat", "/proc/driver/nvidia/version"]).stdout)
    expect(
        "license of the open module",
        host.exec(["modinfo", "-F", "license", "nvidia"]).stdout == "Dual MIT/GPL\n",
    )
    expect("NVLink is up, MIG is off", all(g["link"] == 1 and g["mig_mode"] == [0, 0] for g in facts["gpus"]))
    compute(host, 4)
    containers(host, facts)
    faults(host, facts)

    gpus = json.loads(host.exec(["cat", "/etc/lab-gpus.json"]).stdout)["gpus"]
    layout = mig.devices(gpus[0], ["3g.40gb", "2g.20gb", "1g.10gb"])
    for command in control.set_mig(0, layout):
        host.exec(command)
    seen = nvml(host)["gpus"][0]
    expect(
        "MIG is on with three devices",
        seen["mig_mode"] == [1, 1] and [m["uuid"] for m in seen["mig"]] == [m["uuid"] for m in layout],
    )
    expect(
        "each has its memory and parent",
        all(
            m["memory_mib"] == d["memory_mib"] and m["parent"] == seen["uuid"]
            for m, d in zip(seen["mig"], layout, strict=True)
        ),
    )
    inside = contained(host, layout[1]["uuid"], "nvidia-smi", "-L").stdout
    expect("a container gets one MIG device", layout[1]["uuid"] in inside and layout[0]["uuid"] not in inside)
    alone = contained(host, layout[1]["uuid"], "python3", "/root/lab-probes/vectoradd.py").stdout
    expect("CUDA uses the MIG device", alone == "vectoradd on 1 GPUs\n")


def bare(host: Host, gpus: int) -> None:
    host.exec(["mkdir", "-p", "/root/lab-probes"])
    module = importlib.util.find_spec("pynvml")
    if module is None or module.origin is None:
        raise SystemExit("this Python has no nvidia-ml-py (module pynvml)")
    for file in (*PROBES.glob("*.py"), Path(module.origin)):
        host.exec(["sh", "-c", 'cat > "$1"', "sh", f"/root/lab-probes/{file.name}"], input=file.read_text())
    host.exec([*QUIET, "update"])
    classes = host.exec(
        ["sh", "-c", "for d in /sys/bus/pci/devices/*; do cat $d/vendor $d/class | paste -s; done"]
    ).stdout
    expect(f"{gpus} GPUs on the bus", classes.count("0x10de\t0x030200") == gpus)
    expect("no driver", host.exec(["sh", "-c", "command -v nvidia-smi"], check=False).returncode)
    expect("no module", "not found" in host.exec(["modprobe", "nvidia"], check=False).stderr)


def compute(host: Host, gpus: int) -> None:
    done = host.exec(["python3", "/root/lab-probes/vectoradd.py"], check=False)
    expect(
        f"vectoradd: {done.stderr.strip() or 'right sums, right errors'}",
        done.stdout == f"vectoradd on {gpus} GPUs\n",
    )


def containers(host: Host, facts: dict[str, Any]) -> None:
    """NVIDIA's runtime gives a container the GPUs it names; the state arrives in it."""
    host.exec(["nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"])
    names = host.exec(["nvidia-ctk", "cdi", "list"]).stdout
    expect("a CDI name for every GPU", all(f"nvidia.com/gpu={g['uuid']}" in names for g in facts["gpus"]))
    host.exec(["rm", "/etc/cdi/nvidia.yaml"])
    last = facts["gpus"][-1]["uuid"]
    inside = contained(host, last, "nvidia-smi", "-L").stdout
    expect("one GPU in a container, the one asked for", inside.count("UUID: GPU-") == 1 and last in inside)
    expect(
        "CUDA sees one there",
        contained(host, last, "python3", "/root/lab-probes/vectoradd.py").stdout == "vectoradd on 1 GPUs\n",
    )
    inside = contained(host, "all", "nvidia-smi", "-L").stdout
    expect("all GPUs in a container", inside.count("UUID: GPU-") == len(facts["gpus"]))
    none = contained(host, "void", "nvidia-smi", "-L", check=False)
    expect("no GPU in a container without any", none.returncode)


def faults(host: Host, facts: dict[str, Any]) -> None:
    """Xid, loss and return, a wait inside a container, errors on demand."""
    second = facts["gpus"][1]
    for inside in (False, True):
        event = waiting(host, inside, control.xid(1, 48))
        where = "a container" if inside else "the host"
        expect(f"an Xid arrives in {where}", event == [second["uuid"], 8, 48])
    expect("the kernel log has the Xid", "NVRM: Xid" in host.exec(["dmesg"]).stdout)
    for command in control.lose(1):
        host.exec(command)
    expect("a lost GPU is lost, the others are there", nvml(host)["lost"] == [1])
    expect("nvidia-smi says it too", "GPU is lost" in host.exec(["nvidia-smi"], check=False).stdout)
    expect(
        "CUDA cannot use it", host.exec(["python3", "/root/lab-probes/vectoradd.py"], check=False).returncode
    )
    for command in control.bring_back(1):
        host.exec(command)
    expect("it is back", nvml(host)["lost"] == [])
    host.exec(control.fail("nvmlDeviceGetMemoryInfo", 999))
    expect(
        "an error on demand",
        host.exec(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"]).stdout.startswith(
            "[Unknown Error]"
        ),
    )
    host.exec([control.TOOL, "unset", "fault"])
    host.exec(control.hang())
    expect("a hang hangs", host.exec(["timeout", "1", "nvidia-smi"], check=False).returncode == 124)
    host.exec(control.resume())
    expect("and ends", host.exec(["timeout", "5", "nvidia-smi"], check=False).returncode == 0)


def waiting(host: Host, inside: bool, command: list[str]) -> Any:
    """What a process that waits for events gets when the command runs."""
    probe = ["python3", "/root/lab-probes/nvml.py", "10"]
    if inside:
        probe = ["python3", "/root/lab-probes/contain.py", "all", *probe]
    words = " ".join(f"'{word}'" for word in probe)
    script = f'{words} > /root/event & until grep -q waiting /root/event; do sleep 0.1; done; "$@"; wait; tail -n 1 /root/event'
    return json.loads(
        host.exec(["sh", "-c", "rm -f /root/event; touch /root/event; " + script, "sh", *command]).stdout
    )["event"]


def nvml(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.exec(["python3", "/root/lab-probes/nvml.py"]).stdout))


def contained(host: Host, devices: str, *command: str, check: bool = True) -> Any:
    return host.exec(["python3", "/root/lab-probes/contain.py", devices, *command], check=check)


def install(host: Host, *names: str) -> None:
    host.exec([*QUIET, "install", *names])


def headers(host: Host) -> str:
    return f"linux-headers-{host.exec(['uname', '-r']).stdout.strip()}"


def expect(what: str, holds: Any) -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        raise SystemExit(1)


def prepare(host: Host, uri: str, key: str) -> None:
    """The repositories on a host, as gpunode would add them."""
    host.exec(["sh", "-c", "cat > /usr/share/keyrings/lab.asc"], input=key)
    lines = [
        f"deb [signed-by=/usr/share/keyrings/lab.asc] {uri}/{path} ./\n" for path in packages.REPOSITORIES
    ]
    host.exec(["sh", "-c", "cat > /etc/apt/sources.list.d/lab-check.list"], input="".join(lines))


def main() -> int:
    from .. import api

    lab = api.load()
    checks: dict[str, Callable[[Host], None]] = {"legacy": legacy, "modern": modern}
    for name, check in checks.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        start = time.monotonic()
        print(f"{name}: {check.__doc__}")
        node = lab.node(name)
        node.reset()
        prepare(node, lab.table["apt"]["uri"], Path(lab.table["apt"]["key"]).read_text())
        check(node)
        node.reset()
        print(f"{name}: {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
