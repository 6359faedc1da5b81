"""What runs on a host: it looks (`probe`), changes (`apply`), tells how a running apply goes on (`follow`), ends it (`abort`).

One file, the standard library only, Python 3.6 syntax, nothing of gpunode imported: it is sent over the connection
(wire.py) and leaves no program on the host. A job is one JSON object; the answer is one JSON object a line between
`@gpunode-begin NONCE` and `@gpunode-end NONCE`.

Every path is taken below GPUNODE_ROOT (default `/`) and every command is found by PATH. A job may say how many
seconds a restarted unit must stay up (`settle`) and after how many its files are put back if nobody has seen that it
does (`restore`), how many to wait for apt's locks (`apt_wait`) and for the facts
(`patience`), and after how many of silence to say `alive` (`beat`).

An apply is done by a process of its own, a transient systemd unit where there is systemd, which writes its messages
to a file; the process that the connection started only follows that file, so a lost connection stops nothing.

    /run/gpunode/lock              held by the apply under way, through its reboot; says whose it is
    /run/gpunode/RUN/              program, job, messages.jsonl and apt.log of a running apply, gone when it has ended
    /var/lib/gpunode/runs/RUN/     messages.jsonl, journal.jsonl with the originals in files/, output.log of apt;
                                   of the last KEPT_RUNS applies

The files that a restart reads are guarded: before the first of them is written, RUN/guard.json says what worked and which
files are to be put back, unless all of that works after the restart, too. While it is there, whoever comes first puts them
back: the apply itself, a timer, gpunode-restore.service at a boot, or the next apply.
"""

import concurrent.futures
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

ROOT = os.environ.get("GPUNODE_ROOT", "").rstrip("/")
LIVE = "/run/gpunode"  # for root alone: who can open the lock's file can hold the lock
LOCK = LIVE + "/lock"
RECORDS = "/var/lib/gpunode/runs"
CONTAINERD_FILE = "/etc/containerd/config.toml"
CONTENT_LIMIT = 256 * 1024
CHUNK = 1024 * 1024
PROBE_SECONDS = 60
BEAT_SECONDS = 10  # so often who follows a silent apply hears that it goes on
KEPT_RUNS = 50  # records of earlier applies, with the originals of what they changed
RESTORE_SECONDS = 180  # the timer that puts guarded files back when a restart was never found to be good
APT_SILENCE = 1800  # a package manager that says nothing for so long hangs; building a module takes minutes
ABORT_SECONDS = 240  # for an apply to put back what it must, and end
REBOOT_SECONDS = 900  # for the machine to go down

Message = Dict[str, Any]


# --- Files and commands ------------------------------------------------------------------------------


def below(path: str) -> str:
    """Where an absolute path of the host really is."""
    return ROOT + path


def resolve(path: str) -> str:
    """The host's path with every symbolic link followed, as it is below ROOT."""
    todo, done = path.split("/")[::-1], ""
    for _ in range(4000):
        if not todo:
            return done or "/"
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done).rstrip("/")
        elif os.path.islink(below(done + "/" + part)):
            target = os.readlink(below(done + "/" + part))
            todo.extend(target.split("/")[::-1])
            done = "" if target.startswith("/") else done
        else:
            done += "/" + part
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def text_of(path: str) -> Optional[str]:
    """A small file's text, None when it cannot be read."""
    try:
        with open(below(path), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def line_of(path: str) -> str:
    """The first line of a file, empty when there is none."""
    return (text_of(path) or "").split("\n", 1)[0].strip()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def environment() -> Dict[str, str]:
    """For commands: their words in English, no questions, and sbin in PATH, which a non-login shell may lack."""
    env = dict(
        os.environ,
        LC_ALL="C",
        LANGUAGE="C",
        DEBIAN_FRONTEND="noninteractive",
        APT_LISTCHANGES_FRONTEND="none",
        NEEDRESTART_MODE="l",  # `a` would restart containerd and the kubelet under the pods
        NEEDRESTART_SUSPEND="1",
    )
    if not ROOT:
        env["PATH"] = (
            env.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"
        )
    return env


ENV = environment()


class Answer(NamedTuple):
    status: int  # 127: no such command; 124: it did not answer in time
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it said, errors first."""
        return (self.err.strip() or self.out.strip()) or "exit status %d" % self.status


def run(*argv: str, timeout: Optional[float] = 30, stdin: Any = subprocess.DEVNULL) -> Answer:
    """Run a command to its end; never raises for what the command does."""
    program = have(argv[0])
    if program is None:
        return Answer(127, "", argv[0] + ": not found")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        (program, *argv[1:]), stdin=stdin, stdout=pipe, stderr=pipe, env=ENV, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=2)
        except subprocess.TimeoutExpired:  # it hangs in the kernel, as nvidia-smi does on a GPU that is gone
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
            process.poll()
        return Answer(124, "", "%s did not answer within %d seconds" % (argv[0], timeout or 0))
    except BaseException:  # an abort
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    return Answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def have(command: str) -> Optional[str]:
    return shutil.which(command, path=ENV["PATH"])


def last(text: str, count: int) -> List[str]:
    """The last lines of a text that say anything."""
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


# --- Looking -----------------------------------------------------------------------------------------


def probe(watch: Dict[str, List[str]], own: Optional[str] = None, patience: float = PROBE_SECONDS) -> Message:
    """All facts. A section that fails, or has no answer in time, is None, and `errors` says why.

    `own` is the apply that asks, if one does.
    """
    deadline = time.monotonic() + patience
    units = begin(read_units, watch["units"])
    modules, users, kubelet = begin(read_modules), begin(read_gpu_users), begin(read_kubelet, units)
    sections = {
        "os": begin(read_os),
        "arch": begin(read_arch),
        "cgroup": begin(read_cgroup),
        "secure_boot": begin(read_secure_boot),
        "pci": begin(read_pci),
        "modules": modules,
        "library_version": begin(read_library_version),
        "smi": begin(read_smi, modules, users),
        "packages": begin(read_packages, watch["packages"]),
        "units": units,
        "docker": begin(read_docker),
        "containerd": begin(read_containerd),
        "kubelet": kubelet,
        "gpu_users": users,
        "images": begin(read_images, watch["images"]),
        "files": begin(read_watched, watch["files"], kubelet),
    }  # type: Dict[str, concurrent.futures.Future[Any]]
    facts = {
        "time": time.time(),
        "hostname": line_of("/proc/sys/kernel/hostname"),
        "kernel": line_of("/proc/sys/kernel/osrelease"),
        "boot_id": line_of("/proc/sys/kernel/random/boot_id"),
        "machine_id": line_of("/etc/machine-id") or line_of("/var/lib/dbus/machine-id"),
        "product_uuid": line_of("/sys/class/dmi/id/product_uuid"),
        "uptime": float((line_of("/proc/uptime") or "0").split()[0]),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "module_banner": line_of("/proc/driver/nvidia/version") or None,
        "running": None,
        "errors": {},
    }  # type: Message
    holder = lock_holder()
    if holder and holder["run"] != own:
        facts["running"] = holder
    for name, section in sections.items():
        try:
            facts[name] = section.result(max(0.0, deadline - time.monotonic()))
        except concurrent.futures.TimeoutError:
            facts[name] = None
            facts["errors"][name] = "no answer within %g seconds" % patience
        except Exception as error:
            facts[name] = None
            facts["errors"][name] = "%s: %s" % (type(error).__name__, error)
    return facts


def read_watched(
    patterns: List[str], kubelet: "concurrent.futures.Future[Optional[Dict[str, Any]]]"
) -> Dict[str, Dict[str, Any]]:
    """The files that are asked for, and those that this host's kubelet is started with, wherever they are."""
    found = read_files(patterns)
    try:
        seen = kubelet.result()
    except Exception:
        return found  # told as the kubelet's own error
    if seen is None:
        return found
    texts = [seen["unit_text"], " ".join(seen["arguments"])]
    for path in re.findall(r"(?m)^# (/\S+/kubelet\.service(?:\.d/\S+\.conf)?)\s*$", seen["unit_text"]):
        found.setdefault(path, read_file(path))
    for pattern in re.findall(r"(?m)^\s*EnvironmentFile\s*=\s*-?(/.*\S)\s*$", seen["unit_text"]):
        there = read_files(
            [re.sub("%[Np]", "kubelet", pattern)]
        )  # systemd, too, takes what a pattern matches
        found.update({path: file for path, file in there.items() if path not in found})
        texts.extend(file.get("content", "") for file in there.values())
    said = "\n".join(texts)
    for kind, path, name in re.findall(
        r"(?<![\w-])--?config(-dir)?[= ]\s*[\"']*(?:(/[^\s\"'\\]+)|\$\{?(\w+))", said
    ):
        for target in [path] if path else re.findall(r"\b%s=[\"']*(/[^\s\"'\\]+)" % name, said):
            for each in glob_of(target + "/**/*.conf") if kind else [target]:
                found.setdefault(each, read_file(each))
    return found


def begin(read: Callable[..., Any], *arguments: Any) -> "concurrent.futures.Future[Any]":
    """Read in a thread that nothing waits for at the end: it may hang in the kernel, on a dead file server say."""
    future = concurrent.futures.Future()  # type: concurrent.futures.Future[Any]

    def work() -> None:
        try:
            future.set_result(read(*arguments))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def read_os() -> Dict[str, str]:
    found = {}
    text = text_of("/etc/os-release") or text_of("/usr/lib/os-release") or ""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            found[key.strip()] = " ".join(shlex.split(value))
    return found


def read_arch() -> str:
    """By Debian's name, whatever the distribution."""
    answer = run("dpkg", "--print-architecture")
    machine = os.uname().machine
    return answer.out.strip() or {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def read_cgroup() -> str:
    if os.path.exists(below("/sys/fs/cgroup/cgroup.controllers")):
        return "v2"
    return "hybrid" if os.path.isdir(below("/sys/fs/cgroup/unified")) else "v1"


def read_secure_boot() -> Optional[bool]:
    """None where nothing says: no firmware folder (a container), or no such variable."""
    if not os.path.isdir(below("/sys/firmware/efi")):
        return False if os.path.isdir(below("/sys/firmware")) else None
    for path in glob.glob(below("/sys/firmware/efi/efivars/SecureBoot-*")):
        with open(path, "rb") as file:
            return file.read()[4:5] == b"\1"
    return None


def read_pci() -> List[Dict[str, Any]]:
    """Every function of an NVIDIA device: GPUs, and their audio and USB functions, and NVSwitches."""
    found = []
    base = "/sys/bus/pci/devices"
    for address in sorted(os.listdir(below(base))) if os.path.isdir(below(base)) else []:
        device = base + "/" + address
        if line_of(device + "/vendor") != "0x10de":
            continue
        driver = below(device + "/driver")
        found.append(
            {
                "address": address,
                "vendor": "10de",
                "device": line_of(device + "/device")[2:],
                "cls": line_of(device + "/class")[2:],
                "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
                "numa_node": int(line_of(device + "/numa_node") or -1),
            }
        )
    return found


def read_modules() -> Dict[str, Dict[str, Any]]:
    found = {}
    for path in glob.glob(below("/sys/module/nvidia*")) + glob.glob(below("/sys/module/nouveau")):
        name = path[len(below("/sys/module/")) :]
        count = line_of("/sys/module/%s/refcnt" % name)
        found[name] = {"version": line_of("/sys/module/%s/version" % name) or None, "refcnt": int(count or 0)}
    return found


def read_library_version() -> Optional[str]:
    """The suffix of the real file behind the 64-bit libnvidia-ml.so.1."""
    for line in run("ldconfig", "-p").out.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith("libnvidia-ml.so.1 ") and "64" in name:
            found = re.search(r"\.so\.(\d+\.[\d.]+)$", resolve(path))
            return found.group(1) if found else None
    return None


def read_smi(*before: "concurrent.futures.Future[Any]") -> Optional[Dict[str, Any]]:
    """The GPUs as nvidia-smi sees them, asked when `before` is done: it uses the GPUs and their module itself.

    `list` is `nvidia-smi -L`, asked for only where MIG is on: each call may take a second or more. None: it failed.
    """
    concurrent.futures.wait(before)
    if have("nvidia-smi") is None:
        return None
    answer = query_gpus(SMI_FIELDS + SMI_MIG)
    if answer.status and "is not a valid field" in answer.out + answer.err:
        answer = query_gpus(SMI_FIELDS)  # before driver branch 450, which brought MIG
    if answer.status:
        return {"gpus": [], "error": "\n".join(last(answer.out + answer.err, 10)) or answer.words}
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) in (len(SMI_FIELDS), len(SMI_FIELDS + SMI_MIG))]
    found = {"gpus": rows, "error": None, "list": "", "list_error": None}  # type: Dict[str, Any]
    if any("Enabled" in row[len(SMI_FIELDS) :] for row in rows):
        listed = run("nvidia-smi", "-L", timeout=15)
        found["list"] = None if listed.status else listed.out
        found["list_error"] = (
            (last(listed.out + listed.err, 1) or [listed.words])[-1] if listed.status else None
        )
    return found


SMI_FIELDS = ["index", "uuid", "name", "pci.bus_id", "memory.total"]
SMI_MIG = ["mig.mode.current", "mig.mode.pending"]


def query_gpus(fields: List[str]) -> Answer:
    """A line for each GPU."""
    return run("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits", timeout=15)


def read_packages(patterns: List[str], broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The packages that are properly installed, of those asked for; with `broken` also those half installed."""
    found = {}  # type: Dict[str, Dict[str, Any]]
    if not patterns:
        return found
    if have("dpkg-query") is None:
        shape = "%{NAME}\t%{VERSION}-%{RELEASE}\n"
        lines = run("rpm", "-qa", "--qf", shape, *patterns).out.splitlines()
        return {
            name: {"version": version, "held": False}
            for name, version in (line.split("\t") for line in lines)
        }
    shape = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
    native = read_arch()
    for line in run("dpkg-query", "-W", "-f", shape, *patterns).out.splitlines():
        status, name, version, arch = line.split("\t")
        if status[1] == "i" or (broken and status[1] not in "nc"):
            key = name if arch in (native, "all") else name + ":" + arch
            found[key] = {"version": version, "held": status[0] == "h"}
    return found


UNIT_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,ActiveEnterTimestampMonotonic,NRestarts,MainPID"
)


def show_units(names: Iterable[str]) -> List[Dict[str, str]]:
    """`systemctl show` of all units at once, in the order asked for."""
    answer = run("systemctl", "show", "--no-pager", "-p", UNIT_PROPERTIES, "--", *names)
    if answer.status:
        raise OSError(answer.words)
    blocks = answer.out.strip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def read_units(names: List[str]) -> Dict[str, Dict[str, Any]]:
    names = list(dict.fromkeys([*names, "kubelet.service"]))
    found = {}
    booted = time.time() - time.monotonic()
    for name, shown in zip(names, show_units(names)):  # noqa: B905 - Python 3.10 has `strict`
        since = int(shown.get("ActiveEnterTimestampMonotonic") or 0)
        active = shown.get("ActiveState") in ("active", "reloading")
        found[name] = {
            "load": shown.get("LoadState", ""),
            "active": shown.get("ActiveState", ""),
            "sub": shown.get("SubState", ""),
            "enabled": shown.get("UnitFileState", ""),
            "active_since": booted + since / 1e6 if active and since else None,
            "restarts": int(shown.get("NRestarts") or 0),
            "pid": int(shown.get("MainPID") or 0),
        }
    return found


def read_docker() -> Optional[Dict[str, Any]]:
    if not os.path.exists(below("/run/docker.sock")) or have("docker") is None:
        return None
    answer = run("docker", "info", "--format", "{{json .}}", timeout=10)
    try:
        info = json.loads(answer.out)
    except ValueError:
        raise OSError(answer.words) from None
    if not info.get("ServerVersion"):
        return None  # the socket is there, the daemon is not
    return {
        "version": info["ServerVersion"],
        "runtimes": sorted(info.get("Runtimes") or {}),
        "default_runtime": info.get("DefaultRuntime", ""),
        "cgroup_driver": info.get("CgroupDriver", ""),
        "containers_running": info.get("ContainersRunning", 0),
        "live_restore": info.get("LiveRestoreEnabled") is True,
    }


def read_containerd() -> Optional[Dict[str, Any]]:
    version = run("containerd", "--version")
    if version.status:
        return None
    dump = containerd_dump()
    return {
        "version": (version.out.split() or [""] * 3)[2].lstrip("v"),
        "dump": "" if dump.status else dump.out,
        "error": "\n".join(last(dump.words, 5)) if dump.status else None,
    }


def containerd_dump() -> Answer:
    """What containerd makes of its files. Without one, 1.x runs with its defaults and yet does not dump them."""
    answer = run("containerd", "config", "dump")
    if answer.status and not os.path.lexists(below(CONTAINERD_FILE)):
        return run("containerd", "config", "default")
    return answer


def read_kubelet(units: "concurrent.futures.Future[Dict[str, Dict[str, Any]]]") -> Optional[Dict[str, Any]]:
    version = run("kubelet", "--version")
    if version.status == 127:
        return None
    text = run("systemctl", "cat", "--no-pager", "kubelet.service").out
    unit = units.result()["kubelet.service"]
    raw = text_of("/proc/%d/cmdline" % unit["pid"]) if unit["pid"] else None
    return {
        "version": (version.out.split() or [""])[-1].lstrip("v"),
        "arguments": (raw or "").rstrip("\0").split("\0") if raw else [],
        "unit_text": text,
        "journal": [] if unit["active"] == "active" else journal("kubelet.service", 15),
    }


CHATTER = re.compile(
    r"Scheduled restart job|Main process exited|Failed with result|Start request repeated|Control process exited"
    r"|^(Started|Starting|Stopped|Stopping) |^Failed to start |Deactivated successfully|Consumed .* CPU time"
)


def journal(unit: str, count: int, since: Optional[float] = None) -> List[str]:
    """The unit's last lines in the journal; systemd's own remarks only where there is nothing else."""
    newer = ["--since", "@%d" % since] if since else []
    lines = last(run("journalctl", "-u", unit, "-o", "cat", "--no-pager", "-n", "200", *newer).out, 200)
    return ([line for line in lines if not CHATTER.search(line)] or lines)[-count:]


CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")


def read_gpu_users() -> List[Dict[str, Any]]:
    """Processes with a GPU's device file open, or a device file or driver library mapped."""
    if not glob.glob(below("/dev/nvidia*")) and not os.path.isdir(below("/sys/module/nvidia")):
        return []
    found = []
    for name in os.listdir(below("/proc")):
        if not name.isdigit() or not uses_gpu("/proc/" + name):
            continue
        cgroup = text_of("/proc/%s/cgroup" % name) or ""
        container, pod = CONTAINER.findall(cgroup), POD.findall(cgroup)
        found.append(
            {
                "pid": int(name),
                "command": command_of(int(name)),
                "container": container[-1] if container else None,
                "pod": pod[-1].replace("_", "-") if pod else None,
            }
        )
    return sorted(found, key=lambda user: int(user["pid"]))


def uses_gpu(process: str) -> bool:
    if any(target.startswith("/dev/nvidia") for target in links(process + "/fd")):
        return True
    return re.search(r"/dev/nvidia|/lib(cuda|nvidia-ml)\.so", text_of(process + "/maps") or "") is not None


def links(folder: str) -> Iterator[str]:
    """Where the symbolic links of a folder point; those that go away meanwhile are left out."""
    try:
        names = os.listdir(below(folder))
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(below(folder + "/" + name))
        except OSError:
            continue


def command_of(pid: int) -> str:
    """What a process is called: its program and, for an interpreter, the script. Never other arguments: secrets."""
    words = (text_of("/proc/%d/cmdline" % pid) or "").split("\0")
    if not words[0]:
        return line_of("/proc/%d/comm" % pid) or "?"
    names = [os.path.basename(word) for word in words[:2] if word]
    script = len(names) > 1 and not words[1].startswith("-")
    return " ".join(names) if script and re.match(r"(python|perl|ruby|bash|sh\b)", names[0]) else names[0]


def read_images(references: List[str]) -> Dict[str, Dict[str, str]]:
    """The image ids (digests of their configs) of the references that docker and containerd have."""
    found = {"docker": {}, "containerd": {}}  # type: Dict[str, Dict[str, str]]
    for reference in references:
        for runtime, image in (
            ("docker", docker_image(reference)),
            ("containerd", containerd_image(reference)),
        ):
            if image:
                found[runtime][reference] = image
    return found


def docker_image(reference: str) -> Optional[str]:
    if not os.path.exists(below("/run/docker.sock")):
        return None
    answer = run("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return None if answer.status else answer.out.strip()


def containerd_image(reference: str) -> Optional[str]:
    if not os.path.exists(below("/run/containerd/containerd.sock")) or have("ctr") is None:
        return None
    first, slash, _ = reference.partition("/")
    if not slash:
        reference = "docker.io/library/" + reference
    elif "." not in first and ":" not in first and first != "localhost":
        reference = "docker.io/" + reference
    if ":" not in reference.rsplit("/", 1)[1]:
        reference += ":latest"
    images = run("ctr", "-n", "k8s.io", "images", "ls").out
    listed = re.search(r"^%s\s.*?(sha256:\w+)" % re.escape(reference), images, re.M)
    if listed is None:
        return None
    manifest = containerd_content(listed.group(1))
    if "manifests" in manifest:
        arch = read_arch()
        for entry in manifest["manifests"]:
            platform = entry.get("platform") or {"os": "linux", "architecture": arch}
            if (platform["os"], platform["architecture"]) == ("linux", arch):
                manifest = containerd_content(entry["digest"])
                break
    return str(manifest["config"]["digest"]) if "config" in manifest else None


def containerd_content(digest: str) -> Message:
    return dict(json.loads(run("ctr", "-n", "k8s.io", "content", "get", digest).out))


def read_files(patterns: List[str]) -> Dict[str, Dict[str, Any]]:
    """Files by path. A plain path is always answered; a pattern only by what it matches."""
    found = {}
    for pattern in patterns:
        for path in glob_of(pattern) if glob.has_magic(pattern) else [pattern]:
            found[path] = read_file(path)
    return found


def glob_of(pattern: str) -> List[str]:
    """The host's paths that a pattern matches."""
    return sorted(path[len(ROOT) :] for path in glob.glob(below(pattern), recursive=True))


def read_file(path: str) -> Dict[str, Any]:
    try:
        real = below(resolve(path))
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode):
            return {"exists": True, "error": "not a regular file"}
        digest, data = hashlib.sha256(), b""
        with open(real, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK), b""):
                digest.update(chunk)
                data = data + chunk if status.st_size <= CONTENT_LIMIT else b""
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False}
    except OSError as error:
        return {"exists": True, "error": error.strerror}
    found = {"exists": True, "sha256": digest.hexdigest(), "mode": stat.S_IMODE(status.st_mode)}  # type: Message
    found["mtime"] = status.st_mtime
    if status.st_size > CONTENT_LIMIT:
        return dict(found, error="larger than %d KiB" % (CONTENT_LIMIT // 1024))
    try:
        return dict(found, content=data.decode("utf-8"))
    except UnicodeDecodeError:
        return dict(found, error="not UTF-8")


# --- The lock and the record of a run ------------------------------------------------------------------


def lock_holder() -> Optional[Dict[str, Any]]:
    """Who is applying now: {run, by, since, pid}; None when nobody is."""
    try:
        with open(below(LOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        try:
            return dict(json.loads(text_of(LOCK) or ""))
        except ValueError:
            return None  # just taken, not yet said by whom
    except OSError:
        return None  # there never was an apply


class Failure(Exception):
    """A change that could not be made; `code` is for programs, `error` one sentence for people."""

    def __init__(
        self, code: str, error: str, detail: Iterable[str] = (), restored: Iterable[str] = ()
    ) -> None:
        super(Failure, self).__init__(error)
        self.code, self.error = code, error
        self.detail, self.restored = list(detail), list(restored)

    def message(self, n: int) -> Message:
        return {
            "type": "failed",
            "n": n,
            "code": self.code,
            "error": self.error,
            "detail": self.detail,
            "restored": self.restored,
        }


def from_os_error(error: OSError) -> Failure:
    codes = {errno.ENOSPC: "disk-full", errno.EDQUOT: "disk-full", errno.EROFS: "read-only"}
    path = str(error.filename or "")
    where = path[len(ROOT) :] + ": " if path else ""
    return Failure(codes.get(error.errno or 0, "os-error"), where + (error.strerror or str(error)))


class Run:
    """One apply: its job, its messages, and what it may have to put back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = LIVE + "/" + name
        self.record = RECORDS + "/" + name
        self.places = (self.live + "/messages.jsonl", self.record + "/messages.jsonl")
        self.recorded = True
        self.n = 0
        self.warnings = []  # type: List[str]
        self.heard = 0.0  # when apt last said anything

    def store(self, program: bytes, job: Message) -> None:
        for folder in (self.live, self.record + "/files"):
            os.makedirs(below(folder), 0o700)
            for part in (folder, os.path.dirname(folder)):
                os.chmod(below(part), 0o700)
        for path, data in (("/agent.py", program), ("/job.json", json.dumps(job).encode())):
            with open(below(self.live + path), "wb") as file:
                file.write(data)

    def forget(self) -> None:
        """Take away all that only a running apply needs, but its messages."""
        spared = below(self.places[0])
        for path in glob.glob(below(self.live + "/*")) + glob.glob(below(self.record + "/payload-*")):
            if path != spared:
                os.unlink(path)

    def close(self) -> None:
        """Nothing more will be said: the record alone tells it from now on, unless it could not hold all of it."""
        if self.recorded:
            shutil.rmtree(below(self.live), ignore_errors=True)

    def guard(self) -> Optional[Message]:
        """What is to be put back, and when: {unit, paths, worked, pid, boot, settle, by}; None when nothing is."""
        text = text_of(self.record + "/guard.json")
        return None if text is None else dict(json.loads(text))

    def disarm(self, aside: str = "") -> None:
        """Nothing is to be put back any more. The record goes first: the rest does nothing without it."""
        guard = below(self.record + "/guard.json")
        if os.path.exists(guard):
            os.rename(guard, aside) if aside else os.unlink(guard)
            sync(os.path.dirname(guard))
        for path in (BOOT_LINK, BOOT_UNIT, self.record + "/agent.py"):
            if os.path.lexists(below(path)):
                os.unlink(below(path))
        if systemd():
            run("systemctl", "stop", "gpunode-restore-%s.timer" % self.name)

    def load(self) -> Message:
        return dict(json.loads(text_of(self.live + "/job.json") or ""))

    def send(self, message: Message) -> None:
        """Told in /run, which no full disk silences, and recorded in /var, which outlives the machine's going down.

        Facts are not recorded: they hold what other files of the host say, passwords among it.
        """
        text = json.dumps(message)
        line = (text if message["type"] == "facts" else without_passwords(text)).encode() + b"\n"
        with open(below(self.places[0]), "ab") as file:
            file.write(line)
        try:
            if self.recorded and message["type"] != "facts":
                with open(below(self.places[1]), "ab") as file:
                    file.write(line)
        except OSError:
            self.recorded = False  # for good: a line that is half there must stay the last one

    def told(self) -> Optional[BinaryIO]:
        """The messages to read; None when there never were any."""
        for place in self.places:
            try:
                return open(below(place), "rb")
            except FileNotFoundError:
                continue  # it is in the record alone when the apply has ended
        return None

    def story(self) -> List[Message]:
        """The messages so far."""
        file = self.told()
        if file is None:
            return []
        with file:
            return [json.loads(line) for line in whole_lines(file)]

    def progress(self, text: str, percent: Optional[float] = None) -> None:
        message = {"type": "progress", "n": self.n, "text": text}  # type: Message
        if percent is not None:
            message["percent"] = percent
        self.send(message)

    def payload(self, index: int) -> str:
        return below("%s/payload-%d" % (self.record, index))

    def touched(self) -> Dict[str, Message]:
        """What this run has touched, each as it was before its first change, with all that was then written there."""
        found = {}  # type: Dict[str, Message]
        for line in (text_of(self.record + "/journal.jsonl") or "").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # torn, so the write that it would be about was never begun
            found.setdefault(entry["path"], dict(entry, wrote=[]))["wrote"].append(entry["wrote"])
        return found

    def keep(self, path: str, wrote: Optional[str]) -> None:
        """Write down what is at `path`, keep it, and what will be there, before it is changed. On disk when this returns."""
        entry = {"path": path, "file": None, "was": state_of(path), "wrote": wrote}  # type: Message
        if os.path.islink(below(path)):
            entry["link"] = os.readlink(below(path))
        elif os.path.exists(below(path)):
            status = os.stat(below(path))
            entry["file"] = "files/%d" % len(os.listdir(below(self.record + "/files")))
            entry.update(mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid)
            shutil.copyfile(below(path), below(self.record + "/" + entry["file"]))
            sync(below(self.record + "/" + entry["file"]))
        with open(below(self.record + "/journal.jsonl"), "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
        for made in ("/journal.jsonl", "/files", "", "/..", "/../..", "/../../.."):
            sync(below(self.record + made))

    def restore(self, paths: Iterable[str]) -> Tuple[List[str], List[str]]:
        """Put back those of `paths` that are still what this run wrote; returns them, and a sentence for each other one."""
        touched = self.touched()
        done, kept = [], []
        for path in paths:
            entry = touched.get(path)
            now = state_of(path)
            if entry is None or now == entry["was"]:
                continue
            original = below(self.record + "/" + entry["file"]) if entry["file"] else None
            if now not in entry["wrote"]:
                was = entry.get("link") or ("not there" if original is None else "what is in " + original)
                kept.append("%s was edited meanwhile and stays so; before gpunode it was %s" % (path, was))
                continue
            if original:
                with open(original, "rb") as file:
                    put(path, file.read(), entry["mode"], (entry["uid"], entry["gid"]), self.name)
            else:
                if now is not None:
                    os.unlink(below(path))
                if entry.get("link"):
                    os.symlink(entry["link"], below(path))
                sync(os.path.dirname(below(path)))
            done.append(path)
        return done, kept


def sync(path: str) -> None:
    """Have a file's data, or a folder's names, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def state_of(path: str) -> Optional[str]:
    """What is at a path, to be compared with: a file's digest or a link's target, None when there is nothing."""
    if os.path.islink(below(path)):
        return "-> " + os.readlink(below(path))
    found = current(path)
    return None if found is None else sha256(found)


def put(
    path: str,
    data: bytes,
    mode: int,
    owner: Optional[Tuple[int, int]],
    run_name: str,
    check: Optional[Callable[[str], None]] = None,
) -> None:
    """Write a file so that it is there wholly or not at all. `check` sees the new file before it takes the name."""
    real = below(path)
    temporary = "%s/.%s.gpunode-%s" % (os.path.dirname(real), os.path.basename(real), run_name)
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of this run when it was killed, or the machine went down
    try:
        with open(
            temporary, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)
        ) as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner:
                os.fchown(file.fileno(), owner[0], owner[1])
            copy_labels(real, temporary)
            os.fsync(file.fileno())
        if check:
            check(temporary)
        os.rename(temporary, real)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync(os.path.dirname(real))


def copy_labels(source: str, target: str) -> None:
    """Extended attributes (the SELinux label, ACLs) of a file that is about to be replaced."""
    if sys.platform != "linux" or not hasattr(os, "listxattr"):
        return  # Python has them there only, and a simulated host may be on another system
    try:
        names = os.listxattr(source)
    except OSError:
        return  # there is no such file yet, or its file system has none
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError:
            continue  # some are the kernel's own


# --- Changing files ------------------------------------------------------------------------------------


def current(path: str) -> Optional[bytes]:
    try:
        with open(below(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def refuse_if_changed(path: str, found: Optional[bytes], expected: Optional[str]) -> None:
    if (sha256(found) if found is not None else None) == expected:
        return
    if found is None:
        what = "is gone"
    elif expected is None:
        what = "exists now"
    else:
        what = "has other contents now"
    raise Failure(
        "changed-underneath", "%s %s than when this was planned: nothing was changed" % (path, what)
    )


def write_file(this: Run, change: Message) -> Message:
    path, data = change["path"], change["content"].encode("utf-8")
    real = resolve(path)
    found = current(real)
    if found == data:
        return {"unchanged": True}
    refuse_if_changed(path, found, change["before_sha256"])
    os.makedirs(os.path.dirname(below(real)), exist_ok=True)
    mode, owner = change["mode"], None
    if found is not None:
        status = os.stat(below(real))
        mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    this.keep(real, sha256(data))
    arm(this, real)
    checks = {"docker": check_docker, "containerd": check_containerd, "systemd": check_systemd}
    check = checks.get(change.get("check") or "")
    expected = change.get("expected")
    put(real, data, mode, owner, this.name, (lambda name: check(path, name, expected)) if check else None)
    return {}


def check_docker(path: str, temporary: str, expected: Optional[Message]) -> None:
    try:
        old, new = text_of(resolve(path)) or "", text_of(temporary[len(ROOT) :]) or ""
        wrong = docker_differences(old if old.strip() else "{}", new, expected)
    except ValueError as error:
        raise Failure("check-failed", "%s would not be JSON: %s" % (path, error)) from None
    if wrong:
        raise unexpected("dockerd", path, wrong)
    answer = run("dockerd", "--validate", "--config-file", temporary)
    if answer.status in (0, 127) or "unknown flag: --validate" in answer.err:  # docker has it since 23.0
        return
    rejected(path, temporary, "dockerd", answer)


def docker_differences(before: str, after: str, expected: Optional[Message]) -> List[str]:
    """In what two daemon.json differ beyond what is expected."""
    old, new = json.loads(before.lstrip("\ufeff")), json.loads(after.lstrip("\ufeff"))
    if expected is None:
        return []
    wrong = []
    default = expected["default"] or old.get("default-runtime")
    if new.get("default-runtime") != default:
        wrong.append("its default runtime would be %s, not %s" % (new.get("default-runtime"), default))
    if expected["runtime"] not in (new.get("runtimes") or {}):
        wrong.append("it would not have the runtime " + expected["runtime"])

    def rest(text: str) -> List[Any]:
        """Its members but the expected ones; pairs, since a key may be there twice."""
        left = []
        for key, value in json.loads(text.lstrip("\ufeff"), object_pairs_hook=list):
            if key == "runtimes":
                value = [runtime for runtime in value or [] if runtime[0] != expected["runtime"]]
            if key != "default-runtime" and (key, value) != ("runtimes", []):
                left.append((key, value))
        return left

    olds, news = rest(before), rest(after)
    return wrong + [
        "%s would be another" % pair[0] for pair in olds + news if (pair in olds) != (pair in news)
    ]


def check_systemd(path: str, temporary: str, _expected: Optional[Message]) -> None:
    """Of the new file systemd must make what it made of the old one, but for feature gates."""
    is_unit = re.search(r"\.service(\.d/[^/]+\.conf)?$", path)
    asked = read_unit if is_unit else read_environment
    before, after = asked(below(resolve(path))), asked(temporary)
    if before is None or after is None:
        return  # no systemd, or one that is too old to be asked
    old, new = without_gates(before), without_gates(after)
    if old != new:
        lost, got = [word for word in old if word not in new], [word for word in new if word not in old]
        wrong = ["it would lose " + word.split("=")[0] for word in lost]  # what comes after may be a secret
        wrong += ["it would get " + word.split("=")[0] for word in got]
        raise unexpected("systemd", path, wrong or ["its words would be in another order"])


def read_unit(file: str) -> Optional[str]:
    """What systemd makes of a unit or a drop-in, told under a name of its own; None if it cannot be asked."""
    name = "gpunode-check-%d.service" % os.getpid()
    copy = below("/run/systemd/system/" + name)
    if not os.path.isdir(os.path.dirname(copy)):
        return None
    if not os.path.exists(file):
        return ""
    try:
        shutil.copyfile(file, copy)
        answer = run("systemctl", "show", "-p", "Environment,EnvironmentFiles,ExecStart", "--", name)
    finally:
        if os.path.exists(copy):
            os.unlink(copy)
    commands = re.sub(r"\{ path=\S* ; argv\[\]=(.*?) ; ignore_errors=.*?\}", r"\1", answer.out)
    return None if answer.status else commands


def read_environment(file: str) -> Optional[str]:
    """What systemd sets for a service with this environment file; None if it cannot be asked."""
    if not os.path.isdir(below("/run/systemd/system")):
        return None
    given = ["-p", "EnvironmentFile=-" + file]
    answer = run("systemd-run", "--quiet", "--wait", "--pipe", "--collect", *given, "env")
    own = r"(?m)^(INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|MEMORY_PRESSURE_WATCH)=.*\n"
    return None if answer.status else re.sub(own, "", answer.out)


def without_gates(told: str) -> List[str]:
    """The words of what systemd tells, without quotes, feature gates and what is empty then."""
    plain = re.sub(r"--?feature-gates[= ]\S*", "", re.sub(r"[\"'\\]", "", told))
    words = re.sub(r"(?<![^\s=])(\w+=)", r" \1 ", plain).split()
    empty = re.compile(r"\w*=$").match
    following = [*words[1:], "="]
    return [word for word, after in zip(words, following) if not (empty(word) and empty(after))]  # noqa: B905


def check_containerd(path: str, temporary: str, expected: Optional[Message]) -> None:
    before = containerd_dump()
    answer, whole = containerd_with(path, temporary)
    if answer.status == 127:
        return
    if answer.status:
        rejected(path, temporary, "containerd", answer)
    if expected is not None and whole and not before.status:
        wrong = containerd_differences(
            containerd_settings(before.out), containerd_settings(answer.out), expected
        )
        if wrong:
            raise unexpected("containerd", path, wrong)


def containerd_with(path: str, temporary: str) -> Tuple[Answer, bool]:
    """The dump with this file in the place of that one, and whether it is of all files and not of this one alone.

    The file is laid over the one that is there, where only this command sees it: the main file may import itself, and
    one that it imports says nothing of the whole by itself.
    """
    real = below(resolve(path))
    if os.path.exists(real):
        script = 'mount --bind "$1" "$2" || exit 126; shift 2; exec "$@"'
        answer = run(
            "unshare", "-m", "sh", "-c", script, "sh", temporary, real, "containerd", "config", "dump"
        )
        if answer.status not in (126, 127) and not answer.err.startswith("unshare: "):
            return answer, True
    return run("containerd", "--config", temporary, "config", "dump"), path == CONTAINERD_FILE


def containerd_settings(dump: str) -> Dict[Tuple[str, ...], str]:
    """A dump, which has a line for each setting, by table and key; without those that are not set.

    The CRI plugin's tables are `cri`, whatever this containerd calls it; options, which have no case, in small letters.
    """
    found = {}
    table = ()  # type: Tuple[str, ...]
    for line in dump.splitlines():
        header = re.match(r"\s*\[+(.*?)\]+\s*$", line)
        key, equals, value = line.partition("=")
        value = value.strip().replace("'", '"')
        if header and not equals:
            parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([^.\s]+)", header.group(1))
            table = tuple("".join(part) for part in parts)
            if (
                len(table) > 2
                and table[0] == "plugins"
                and "cri" in table[1].split(".")
                and table[2] == "containerd"
            ):
                table = ("cri", *table[3:])
        elif equals and not key.lstrip().startswith("#") and value not in ('""', "0", "false", "[]", "{}"):
            key = key.strip().strip("\"'")
            where = (*table, key.lower() if "options" in table else key)
            found[where] = value
    return found


def containerd_differences(
    old: Dict[Tuple[str, ...], str], new: Dict[Tuple[str, ...], str], expected: Message
) -> List[str]:
    """In what two dumps differ beyond what is expected."""
    own, runc = ("cri", "runtimes", expected["runtime"]), ("cri", "runtimes", "runc")

    def default(settings: Dict[Tuple[str, ...], str]) -> str:
        if ("cri", "default_runtime", "runtime_type") in settings:  # it comes before the name
            return "default"
        return settings.get(("cri", "default_runtime_name"), "runc").strip('"')

    wrong = []
    if default(new) != (expected["default"] or default(old)):
        wrong.append("its default runtime would be %s" % default(new))
    if new.get((*own, "options", "binaryname")) != '"/usr/bin/nvidia-container-runtime"':
        wrong.append("its runtime %s would not be NVIDIA's" % expected["runtime"])
    if new.get((*own, "runtime_type")) != '"io.containerd.runc.v2"':
        wrong.append(
            "its runtime %s would have the type %s" % (own[2], new.get((*own, "runtime_type"), "none"))
        )
    may = [("imports",), ("cri", "default_runtime_name"), ("cri", "default_runtime", "runtime_type")]
    for key in sorted(set(old) | set(new)):
        added = key[:3] == runc and (*runc, "runtime_type") not in old
        if old.get(key) != new.get(key) and key not in may and key[:3] != own and not added:
            wrong.append(
                "%s would be %s instead of %s" % (".".join(key), new.get(key, "unset"), old.get(key, "unset"))
            )
    return wrong


def unexpected(program: str, path: str, wrong: List[str]) -> Failure:
    sentence = "%s would make something else of the new %s than was planned: %s" % (program, path, wrong[0])
    return Failure("check-failed", sentence, wrong[:8])


def rejected(path: str, temporary: str, program: str, answer: Answer) -> None:
    words = [line.replace(temporary, path) for line in last(answer.words, 8)]
    raise Failure("check-failed", "%s does not accept the new %s: %s" % (program, path, words[-1]), words)


def remove_file(this: Run, change: Message) -> Message:
    path = change["path"]
    found = current(resolve(path))
    if found is None and not os.path.lexists(below(path)):
        return {"unchanged": True}
    refuse_if_changed(path, found, change["before_sha256"])
    parent = resolve(os.path.dirname(path))
    real = parent.rstrip("/") + "/" + os.path.basename(path)
    this.keep(real, None)
    arm(this, real)
    os.unlink(below(real))
    return {}


# --- Packages ------------------------------------------------------------------------------------------

APT = (
    "-q -y -o DPkg::Lock::Timeout=60 -o Dpkg::Use-Pty=0 -o APT::Color=0"
    " -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
).split()
APT_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
SAID = r"^(?:E|W|Error|Warning): "


def packages(this: Run, change: Message) -> Message:
    if have("apt-get") is None:
        raise Failure(
            "unsupported-package-manager", "this host has no apt-get, and gpunode knows no other yet"
        )
    if change["refresh"]:
        refresh(this)
    install = list(change["install"])
    names = [entry.split("=", 1)[0] for entry in install]
    installed = read_packages(change["remove"], broken=True) if change["remove"] else {}
    remove = [name for name in sorted(installed) if name not in names]
    if install or remove:
        finish_interrupted(this)
        wanted = install + [name + "-" for name in remove]
        dry_run(this, wanted, install, remove)
        status, text = apt_get(this, "install", "--allow-downgrades", "--allow-change-held-packages", *wanted)
        if status:
            raise install_failure(this, text, install)
    if change["hold"]:
        wait_for_apt(this)
        answer = run("apt-mark", "hold", *change["hold"], timeout=180)
        if answer.status:
            raise Failure("apt-failed", "apt-mark hold: " + last(answer.words, 1)[0], last(answer.words, 5))
    there = read_packages(names)
    return {"packages": {name: there[name]["version"] for name in there}}


def apt_get(this: Run, *arguments: str) -> Tuple[int, str]:
    """apt-get, when nobody else uses it: its status, and its words without passwords."""
    wait_for_apt(this)
    read_end, write_end = os.pipe()
    reader = threading.Thread(target=follow_apt, args=(this, os.fdopen(read_end, "rb")))
    reader.daemon = True
    reader.start()
    try:
        status, text = attend(
            this, ["apt-get", *APT, "-o", "APT::Status-Fd=%d" % write_end, *arguments], (write_end,)
        )
    finally:
        os.close(write_end)
    reader.join(1)
    if status and re.search(r"Could not get lock|Unable to (acquire|lock)", text):
        held = re.search(r"held by process (\d+)", text)
        raise apt_locked(int(held.group(1)) if held else None)
    return status, text


def attend(this: Run, command: List[str], pass_fds: Tuple[int, ...] = ()) -> Tuple[int, str]:
    """Run a package manager for as long as it says something; its status, and its words without passwords.

    They are in memory, for root alone, until it has ended; then they go into output.log.
    """
    patience = this.load().get("apt_silence", APT_SILENCE)
    path = below(this.live + "/apt.log")
    with open(path, "wb") as log:  # a file, not a pipe: a daemon that a package starts may keep it open
        process = subprocess.Popen(
            command,
            executable=have(command[0]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=ENV,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    size, this.heard = 0, time.monotonic()
    try:
        while process.poll() is None:
            if os.path.getsize(path) != size:
                size, this.heard = os.path.getsize(path), time.monotonic()
            if time.monotonic() - this.heard > patience:
                raise hangs(process, patience)
            time.sleep(0.05)
    finally:  # also of an abort
        end(process)
        with open(path, "rb") as log:
            text = without_passwords(log.read().decode("utf-8", "replace"))
        try:
            with open(below(this.record + "/output.log"), "ab") as kept:
                kept.write(text.encode())
        except OSError:
            pass  # a full disk; what it says is told
    return process.returncode, text


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program and all that it started, if it has not ended; dpkg is given time to write down how far it is."""
    if process.poll() is not None:
        return  # what a package has started goes on
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 10
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # apt-get may end before what it has started
                time.sleep(0.05)
        except ProcessLookupError:
            return


def hangs(process: "subprocess.Popen[bytes]", patience: float) -> Failure:
    """The failure of a package manager that says nothing, with the processes that it waits for, one by the other."""
    names, pid, children = [], 0, [str(process.pid)]  # type: List[str], int, List[str]
    while children:
        pid = int(children[-1])
        names.append(command_of(pid))
        children = (text_of("/proc/%d/task/%d/children" % (pid, pid)) or "").split()
    sentence = (
        "nothing came from the package manager for %d minutes, so it was ended; it waited for %s (pid %d)"
    )
    return Failure("packages-hang", sentence % (patience // 60, " > ".join(names), pid))


def without_passwords(text: str) -> str:
    """What apt prints of repositories whose URIs hold a name and a password, without both."""
    return re.sub(r"(\w://)[^/\s'\"]*@", r"\1", text)


def follow_apt(this: Run, stream: BinaryIO) -> None:
    """Turn apt's status lines (`pmstatus:PACKAGE:PERCENT:WORDS`) into at most two progress messages a second."""
    sent, said = 0.0, ("", "")
    for line in stream:
        this.heard = time.monotonic()
        # A package's name may hold a colon, before its architecture.
        found = re.match(r"[dp][lm]status:.*?:([\d.]+):(.*)", line.decode("utf-8", "replace"))
        if found and found.groups() != said and time.monotonic() - sent > 0.5:
            sent, said = time.monotonic(), (found.group(1), found.group(2))
            this.progress(found.group(2), round(float(found.group(1)), 1))


def wait_for_apt(this: Run) -> None:
    """Wait until nobody else holds apt's or dpkg's locks; says every few seconds who does."""
    deadline = time.monotonic() + this.load().get("apt_wait", 120)
    said = 0.0
    while True:
        pid = next((holder for holder in map(posix_holder, APT_LOCKS) if holder), None)
        if pid is None:
            return
        if time.monotonic() > deadline:
            raise apt_locked(pid)
        if time.monotonic() - said > 5:
            said = time.monotonic()
            this.progress("waiting for apt: %s (pid %d) is using it" % (command_of(pid), pid))
        time.sleep(0.25)


def posix_holder(path: str) -> Optional[int]:
    """The process that holds the lock on a file, without trying to take it."""
    try:
        descriptor = os.open(below(path), os.O_RDWR)
    except OSError:
        return None
    try:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(descriptor)


def apt_locked(pid: Optional[int]) -> Failure:
    who = "%s (pid %d)" % (command_of(pid), pid) if pid else "another program"
    return Failure("apt-locked", "apt is in use by " + who)


def refresh(this: Run) -> None:
    """`apt-get update`. Trouble with a repository that is not gpunode's is a warning: hosts have old ones."""
    patience = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")
    status, text = apt_get(this, *patience, "update")
    own = own_repositories()
    problems = update_problems(text)
    for code, uri, words in problems:
        if code == "conflicting-signed-by":
            raise Failure(
                code, "apt has %s in two lists with different keys" % uri, [words, *lists_with(uri)]
            )
        if code == "sources-broken":
            raise Failure(code, "apt cannot read its list of sources: " + words)
        sentence = {
            "repository-unreachable": "apt could not fetch from %s: %s",
            "repository-unsigned": "apt does not trust the signature of %s: %s",
            "repository-expired": "the index of %s %s",
        }[code] % (uri, words)
        if any((uri + "/").startswith(mine + "/") for mine in own):
            raise Failure(code, sentence, last(text, 12))
        this.warnings.append(sentence)
        this.progress(sentence)
    if status and not problems:
        raise Failure(
            "apt-failed", "apt-get update failed: " + (last(text, 1) or ["no words"])[-1], last(text, 12)
        )


def own_repositories() -> List[str]:
    found = []
    for path in glob.glob(below("/etc/apt/sources.list.d/gpunode-*")):
        found += re.findall(r"\w+://[^\s\"']+", text_of(path[len(ROOT) :]) or "")
    return [uri.rstrip("/") for uri in found]


def lists_with(uri: str) -> List[str]:
    """apt's source files that name this repository."""
    files = glob.glob(below("/etc/apt/sources.list")) + sorted(glob.glob(below("/etc/apt/sources.list.d/*")))
    names = [path[len(ROOT) :] for path in files]
    return [name for name in names if uri.rstrip("/") in (text_of(name) or "")]


def update_problems(text: str) -> List[Tuple[str, str, str]]:
    """What `apt-get update` complained of: (code, URI, words), one for each repository."""
    found = {}  # type: Dict[str, Tuple[str, str, str]]
    conflict = re.search(
        SAID + r"(Conflicting values set for option Signed-By regarding source (\S+).*)", text, re.M
    )
    if conflict:
        return [("conflicting-signed-by", conflict.group(2), conflict.group(1))]
    broken = re.search(SAID + r"((?:Malformed|Type '|Unable to parse|The list of sources).*)", text, re.M)
    if broken:
        return [("sources-broken", "", broken.group(1))]
    for uri, words in re.findall(SAID + r".*?GPG error: (\S+) [^:]*: (.*)", text, re.M):
        found.setdefault(site(uri), ("repository-unsigned", site(uri), words))
    for uri, words in re.findall(
        SAID + r"Release file for (\S+) (is (?:expired|not valid yet).*)", text, re.M
    ):
        found.setdefault(site(uri), ("repository-expired", site(uri), words))
    for uri, words in re.findall(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M):
        unsigned = re.search(r"signature|PUBKEY|signed|SHA1", words)
        code = "repository-unsigned" if unsigned else "repository-unreachable"
        found.setdefault(site(uri), (code, site(uri), words))
    for uri, words in re.findall(SAID + r"The repository '(\S+)[^']*' (.*)", text, re.M):
        code = "repository-unreachable" if "Release file" in words else "repository-unsigned"
        found.setdefault(site(uri), (code, site(uri), words))
    return list(found.values())


def site(uri: str) -> str:
    """A repository's own URI out of that of a file in it."""
    return re.sub(r"/(dists/.*|\./.*|(In)?Release(\.gpg)?|Packages(\.\w+)?|by-hash/.*)?$", "", uri)


def finish_interrupted(this: Run) -> None:
    """What a dpkg that was killed left half done; apt installs nothing before that."""
    if not glob.glob(below("/var/lib/dpkg/updates/[0-9]*")):
        return
    wait_for_apt(this)
    this.progress("dpkg was interrupted earlier; finishing what it had begun")
    status, text = attend(this, ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
    if status:
        raise dpkg_failure(text)


def dry_run(this: Run, wanted: List[str], install: List[str], remove: List[str]) -> None:
    """Refuse what nobody said yes to: removing or downgrading other packages, or filling the disk."""
    allow = ("--allow-downgrades", "--allow-change-held-packages")
    status, text = apt_get(this, "install", "--print-uris", *allow, *wanted)
    if status:
        raise install_failure(this, text, install)
    pinned = [entry.split("=")[0] for entry in install if "=" in entry]
    for code, heading, agreed in (("remove", "REMOVED", remove), ("downgrade", "DOWNGRADED", pinned)):
        extra = [name for name in listed(text, heading) if name not in agreed]
        if extra:
            sentence = "apt would also %s %s, which was not planned" % (code, " ".join(extra))
            raise Failure("would-" + code, sentence, last(text, 12))
    room(text)


def listed(text: str, heading: str) -> List[str]:
    block = re.search(r"^The following packages will be %s:\n((?:  .*\n?)*)" % heading, text, re.M)
    return [name.rstrip("*") for name in block.group(1).split()] if block else []


def room(text: str) -> None:
    """Compare what apt says that it needs with what is free."""
    needs = {}  # type: Dict[int, Tuple[str, float]]
    for path, pattern in (
        ("/var/cache/apt/archives", r"^Need to get ([\d.,]+ \w*B)"),
        ("/usr", r"^After this operation, ([\d.,]+ \w*B) of additional"),
    ):
        said = re.search(pattern, text, re.M)
        if said is None:
            continue
        number, unit = said.group(1).replace(",", "").split()
        amount = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
        where = path
        while not os.path.exists(below(where)):
            where = os.path.dirname(where)
        device = os.stat(below(where)).st_dev
        needs[device] = (where, amount + needs.get(device, ("", 0.0))[1])
    for where, amount in needs.values():
        system = os.statvfs(below(where))
        free = system.f_bavail * system.f_frsize
        if amount > free:
            # the one rounded up, the other down: a full disk has less than anything needs
            sentence = "the packages need %d MB, and %s has %d MB free" % (
                -(-amount // 1e6),
                where,
                free // 1e6,
            )
            raise Failure("disk-full", sentence)


def install_failure(this: Run, text: str, install: List[str]) -> Failure:
    """Why apt-get install failed, out of its words."""
    detail = last(text, 12) + this.warnings
    if re.search(r"No space left on device|don't have enough free space", text):
        return Failure("disk-full", "the disk is full", detail)
    version = re.search(SAID + r"Version '(\S+)' for '(\S+)' was not found", text, re.M)
    if version:
        there = re.findall(r"\|\s*(\S+)\s*\|", run("apt-cache", "madison", version.group(2)).out)
        have_words = "there is " + ", ".join(list(dict.fromkeys(there))[:8]) if there else "there is none"
        sentence = "no repository has %s %s; %s" % (version.group(2), version.group(1), have_words)
        return Failure("version-missing", sentence, this.warnings)
    missing = re.findall(SAID + r"Unable to locate package (\S+)", text, re.M)
    missing += re.findall(SAID + r"Package '(\S+)' has no installation candidate", text, re.M)
    if missing:
        sentence = "no repository of this host has the package %s" % ", ".join(dict.fromkeys(missing))
        return Failure("package-missing", sentence, this.warnings)
    if "cannot be authenticated" in text:
        return Failure(
            "repository-unsigned", "apt cannot check the signature of what it would install", detail
        )
    fetch = re.search(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M)
    if fetch:
        return Failure("repository-unreachable", "apt could not fetch %s: %s" % fetch.groups(), detail)
    unmet = re.search(r"^The following packages have unmet dependencies:\n((?: .*\n?)+)", text, re.M)
    if unmet:
        lines = last(unmet.group(1), 12)
        return Failure(
            "dependencies", "apt cannot satisfy %s" % " ".join(lines[0].split()), lines + this.warnings
        )
    if re.search(r"dpkg: error|Sub-process \S*dpkg", text):
        return dpkg_failure(text)
    words = re.findall(SAID + "(.*)", text, re.M) or last(text, 1) or ["no words"]
    return Failure("apt-failed", "apt-get install %s failed: %s" % (" ".join(install), words[-1]), detail)


def dpkg_failure(text: str) -> Failure:
    """A package's own script failed: which, and what it last said."""
    block = re.search(r"^Errors were encountered while processing:\n((?: .*\n?)+)", text, re.M)
    names = (
        block.group(1).split() if block else re.findall(r"^dpkg: error processing package (\S+)", text, re.M)
    )
    first = re.search(r"^dpkg: error processing ", text, re.M)
    before = last(text[: first.start()] if first else text, 12)
    log = re.search(r"[Cc]onsult (\S+make\.log)", text)
    if log:
        before += last(text_of(log.group(1)) or "", 12)
    who = " ".join(dict.fromkeys(names)) or "a package"
    headers = re.search(r"kernel headers for kernel (\S+) cannot be found", text)
    if headers:
        sentence = "%s found no headers of the kernel %s to build its module with" % (who, headers.group(1))
        return Failure("headers-missing", sentence, before)
    cause = before[-1].strip() if before else "no words"
    return Failure("dpkg-failed", "%s could not be configured: %s" % (who, cause), before)


# --- Services, modules, images ---------------------------------------------------------------------------


NODE_UNITS = ("docker.service", "containerd.service", "kubelet.service")
HANDLER = re.compile(r"""(?m)^\s*\[plugins\..*\.containerd\.runtimes\.("[^"]+"|'[^']+'|[^.\]"']+)\]\s*$""")


def node_units(unit: str) -> Dict[str, Dict[str, str]]:
    """The unit, and those that make a node, as systemctl shows them."""
    names = list(dict.fromkeys((unit, *NODE_UNITS)))
    return dict(zip(names, show_units(names)))  # noqa: B905 - Python 3.10 has `strict`


def working(units: Dict[str, Dict[str, str]]) -> Dict[str, str]:
    """What of a node works now: units, each with its process; containerd's CRI plugins; runtime handlers."""
    found = {
        name: shown.get("MainPID", "")
        for name, shown in units.items()
        if shown.get("ActiveState") == "active"
    }
    if "containerd.service" in found:
        # With a CRI section that it cannot use, containerd stays up and only this plugin is in error.
        for cells in map(str.split, run("ctr", "plugins", "ls", timeout=10).out.splitlines()):
            if cells[-1:] == ["ok"] and "cri" in cells[0].split(".") + cells[1:2]:
                found["containerd's plugin %s.%s" % (cells[0], cells[1])] = ""
        dump = run("containerd", "config", "dump")
        for name in HANDLER.findall("" if dump.status else dump.out):
            found["containerd's runtime " + name.strip("\"'")] = ""
    try:
        docker = read_docker() if "docker.service" in found else None
    except OSError:
        docker = None
    for name in docker["runtimes"] if docker else ():
        found["docker's runtime " + name] = ""
    return found


def service(this: Run, change: Message) -> Message:
    """Enable and (re)start; then it must stay up, and all that worked before its files were changed must work."""
    unit = change["unit"]
    guard = this.guard()
    if guard is None or guard["unit"] != unit:
        guard = {"worked": what_worked(node_units(unit)), "settle": settling(this)}
    started = time.time()
    run("systemctl", "daemon-reload", timeout=60)
    if change["enable"]:
        answer = run("systemctl", "enable", unit, timeout=60)
        if answer.status:
            raise Failure("unit-failed", "systemctl enable %s: %s" % (unit, last(answer.words, 1)[0]))
    lost = restart(unit, "restart" if change["restart"] else "start", guard)
    if not lost:
        this.disarm()
        return {}
    said = journal(unit, 100, started)
    parts = [name.split()[-1] for name in lost if not name.endswith(".service")]
    about = [line for line in said if any(part in line for part in parts)]
    lines = reasons(about or said) or [lost[unit] if unit in lost else "its journal is silent"]
    if unit in lost:
        sentence = "%s did not come back: %s" % (unit, lines[0])
    else:
        sentence = "%s runs, but does not do what it did: %s (%s)" % (unit, ", ".join(sorted(lost)), lines[0])
    if not set(lost) & set(guard["worked"]):
        this.disarm()
        lines.append("it did not run before either, so its files stay as they are now")
    raise Failure("unit-failed", sentence, lines)


def settling(this: Run) -> float:
    return float(this.load().get("settle", 5))


def what_worked(units: Dict[str, Dict[str, str]]) -> List[str]:
    """What a restart may not end. What did not work before is no reason to put anything back."""
    found = working(units)
    for name, shown in units.items():
        up = time.monotonic() - int(shown.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
        if int(shown.get("NRestarts") or 0) and up < 60:
            found.pop(name, None)  # active between two crashes
    return sorted(found)


def restart(unit: str, verb: str, guard: Message) -> Dict[str, str]:
    """(Re)start a unit; then it and all that worked before must work for `settle` seconds: what does not, and why."""
    settle = guard["settle"]
    run("systemctl", "daemon-reload", timeout=60)
    run("systemctl", "reset-failed", unit)
    answer = run("systemctl", verb, unit, timeout=RESTORE_SECONDS - 60)
    begun = since = time.monotonic()
    wanted = list(dict.fromkeys([unit, *guard["worked"]]))
    before, restarts = {}, None  # type: Dict[str, Optional[str]], Optional[int]
    while True:
        now = time.monotonic()
        why, shown, works = "does not work any more", {}, {}  # type: str, Dict[str, str], Dict[str, str]
        try:
            units = node_units(unit)
            shown, works = units.get(unit, {}), working(units)
        except OSError as error:  # systemctl may fail for a moment, and the unit be well
            why = "is not known to run: %s" % error
        lost = {name: why for name in wanted if name not in works}
        seen = {name: works.get(name) for name in wanted}
        if lost or seen != before:
            before, since = seen, now
        elif now - since >= settle:
            return {}
        count = int(shown.get("NRestarts") or 0)
        restarts = count if restarts is None else restarts
        twice = shown.get("SubState") == "auto-restart" and count > restarts
        late = now - begun > settle * (
            2 if twice else 6
        )  # one crash may pass: what it needs may be starting too
        down = bool(shown) and (
            shown.get("ActiveState") in ("failed", "inactive") or shown.get("LoadState") != "loaded"
        )
        if down or late:
            if shown and unit not in works:
                state = "is %s (%s)" % (shown.get("ActiveState", "unknown"), shown.get("SubState", ""))
                lost[unit] = last(answer.words, 3)[0] if answer.status else state
            return lost or {unit: "has another process again and again"}
        time.sleep(min(0.5, settle / 5.0))


def reasons(lines: List[str]) -> List[str]:
    """The lines of a journal that say what is wrong, the last five, each once and without klog's prefix."""
    strong = [line for line in lines if re.match(r"[EF]\d{4} |(?i:error|fatal|panic|failed|unable)\b", line)]
    weak = [line for line in lines if re.search(r"(?i)error|fail|fatal|invalid|unknown|panic", line)]
    short = [re.sub(r"^[A-Z]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ", "", line) for line in strong or weak or lines]
    return list(dict.fromkeys(short))[-5:]


BOOT_UNIT = "/etc/systemd/system/gpunode-restore.service"
BOOT_LINK = "/etc/systemd/system/multi-user.target.wants/gpunode-restore.service"
BOOT = """\
# Of gpunode, only while it changes what {unit} reads: should the machine go down before that is known to be good.
[Unit]
Description=Put back files of a gpunode apply that was cut off
ConditionPathExists={record}/guard.json
RequiresMountsFor={record}
Before={before}

[Service]
Type=oneshot
ExecStart={command}
TimeoutStartSec=60
"""


def arm(this: Run, path: str) -> None:
    """If a later restart reads the file, have it put back unless that restart is found to be good; before it is written.

    That holds if this process is killed (a timer) or the machine goes down (a unit that runs at boot, before the others).
    """
    job = this.load()
    guarded = [
        (change["unit"], list(map(resolve, change["guards"])))
        for change in job["changes"][this.n + 1 :]
        if change["kind"] == "service"
    ]
    unit, paths = next((pair for pair in guarded if path in pair[1]), ("", []))
    if not unit or this.guard() is not None:  # a step's files come together, right before their restart
        return
    units = node_units(unit)
    guard = {
        "unit": unit,
        "paths": paths,
        "worked": what_worked(units),
        "pid": units.get(unit, {}).get("MainPID"),
        "boot": line_of("/proc/sys/kernel/random/boot_id"),
        "settle": settling(this),
        "by": job["by"],
    }
    shutil.copyfile(below(this.live + "/agent.py"), below(this.record + "/agent.py"))
    sync(below(this.record + "/agent.py"))
    put(this.record + "/guard.json", json.dumps(guard).encode(), 0o600, None, this.name)
    if os.path.isdir(below("/run/systemd/system")):
        line = " ".join(again(this, "boot"))
        before = " ".join(dict.fromkeys((unit, *NODE_UNITS)))
        text = BOOT.format(unit=unit, record=this.record, before=before, command=line)
        os.makedirs(os.path.dirname(below(BOOT_LINK)), exist_ok=True)
        put(BOOT_UNIT, text.encode(), 0o644, None, this.name)
        if not os.path.lexists(below(BOOT_LINK)):
            os.symlink(BOOT_UNIT, below(BOOT_LINK))
        sync(os.path.dirname(below(BOOT_LINK)))
    if systemd():
        name = "gpunode-restore-" + this.name
        after = "--on-active=%d" % job.get("restore", RESTORE_SECONDS)
        exactly = "--timer-property=AccuracySec=1s"  # else systemd may take a minute more
        answer = run(
            "systemd-run", "--quiet", "--collect", after, exactly, "--unit", name, *again(this, "restore")
        )
        if answer.status:
            sentence = "the timer that would restore %s cannot be set: %s" % (unit, answer.words)
            raise Failure("unit-failed", sentence)


def restore_later(this: Run, wait: bool = True) -> None:
    """What the timer does, and (without `wait`) the unit at boot, before what it restores is started."""
    guard = this.guard()
    if guard is None:
        return
    holder = {"run": this.name, "by": guard["by"], "since": time.time(), "pid": os.getpid()}
    lock = take_lock(holder, wait)  # its own apply, if it lives, ends before that
    guard = this.guard()
    if lock is not None and guard is not None:
        restored, words = put_back(this, guard, start=wait)
        for line in ["put back " + path for path in restored] + words:
            print("gpunode: " + line)
        this.forget()
        this.close()


def put_back(this: Run, guard: Message, start: bool = True) -> Tuple[List[str], List[str]]:
    """Undo what was never found to be good. Returns the files, and sentences on what else there is to say.

    The unit is restarted (if `start`) only if it was since: else it never read what was written. Needs the lock.
    """
    restored, words = this.restore(guard["paths"])
    unit = guard["unit"]
    if restored:
        run("systemctl", "daemon-reload", timeout=60)
    if start and (restored or not words) and not same_process(guard):
        lost = restart(unit, "restart", guard)
        state = lost[unit] if unit in lost else "runs again"
        words.append("with its files put back %s %s" % (unit, state))
        if lost and unit not in lost:
            words.append("still missing: " + ", ".join(sorted(lost)))
    this.disarm()
    return restored, words


def same_process(guard: Message) -> bool:
    """Whether the unit runs as it did before its files were touched."""
    try:
        pid = show_units([guard["unit"]])[0].get("MainPID")
    except OSError:
        return False
    return bool(pid == guard["pid"] and line_of("/proc/sys/kernel/random/boot_id") == guard["boot"])


def kernel_module(_this: Run, change: Message) -> Message:
    for name in change["unload"]:
        if not os.path.isdir(below("/sys/module/" + name.replace("-", "_"))):
            continue
        answer = run("modprobe", "-r", name, timeout=120)
        if answer.status and re.search(r"in use|busy", answer.words):
            users = ["%s (pid %d)" % (user["command"], user["pid"]) for user in read_gpu_users()]
            sentence = "the kernel module %s is in use%s" % (
                name,
                " by " + ", ".join(users[:8]) if users else "",
            )
            raise Failure("module-in-use", sentence, last(answer.words, 3) + users)
        if answer.status:
            raise module_failure(name, "unloaded", answer)
    for name in change["load"]:
        answer = run("modprobe", name, timeout=120)
        if answer.status:
            raise module_failure(name, "loaded", answer)
    return {}


def module_failure(name: str, what: str, answer: Answer) -> Failure:
    kernel = [
        line
        for line in run("dmesg").out.splitlines()
        if re.search(r"NVRM|nvidia|nouveau|Lockdown|module", line)
    ]
    sentence = "the kernel module %s could not be %s: %s" % (name, what, last(answer.words, 1)[0])
    return Failure("module-failed", sentence, last(answer.words, 3) + kernel[-10:])


def load_image(this: Run, change: Message) -> Message:
    path = this.payload(change["payload"])
    docker = change["runtime"] == "docker"
    argv = ("docker", "load") if docker else ("ctr", "-n", "k8s.io", "images", "import", "-")
    with open(path, "rb") as archive:
        answer = run(*argv, stdin=archive, timeout=900)
    os.unlink(path)
    if answer.status:
        full = "no space left" in answer.words
        sentence = "%s does not take the image: %s" % (argv[0], last(answer.words, 1)[0])
        raise Failure("disk-full" if full else "image-failed", sentence, last(answer.words, 8))
    found = (docker_image if docker else containerd_image)(change["reference"])
    if found != change["image_id"]:
        sentence = "after loading, %s is %s and not %s" % (change["reference"], found, change["image_id"])
        raise Failure("image-failed", sentence, last(answer.out, 5))
    return {}


def reboot(_this: Run, _change: Message) -> Message:
    return {}  # done by `work` when everybody has been told


CHANGES = {
    "write_file": write_file,
    "remove_file": remove_file,
    "packages": packages,
    "service": service,
    "kernel_module": kernel_module,
    "load_image": load_image,
    "reboot": reboot,
}  # type: Dict[str, Callable[[Run, Message], Message]]


# --- Running detached ------------------------------------------------------------------------------------


def systemd() -> bool:
    return not ROOT and os.path.isdir("/run/systemd/system")


def again(this: Run, verb: str) -> List[str]:
    """The command line that runs this program once more, for this run."""
    folder = this.live if verb == "work" else this.record  # /run is empty after a boot
    return [sys.executable or "python3", "-I", "-S", below(folder + "/agent.py"), verb, this.name]


def work(this: Run) -> None:
    """Make the changes, from the first to the last or to the first failure; ends with an `end` message."""
    job = this.load()
    holder = {"run": this.name, "by": job["by"], "since": time.time(), "pid": os.getpid()}
    lock = take_lock(holder)
    if lock is None:
        this.send(dict(lock_holder() or holder, type="locked"))
        this.forget()
        this.send({"type": "end", "ok": False})
        this.close()
        return
    ok = mend(this)
    if ok:
        prune(this)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        for this.n, change in enumerate(job["changes"] if ok else []):
            start = time.monotonic()
            this.send({"type": "start", "n": this.n})
            detail = CHANGES[change["kind"]](this, change)
            this.send({"type": "done", "n": this.n, "seconds": time.monotonic() - start, "detail": detail})
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is now put back is not interrupted
        ok = False
        this.send(undo(this, failure(error)).message(this.n))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if job["then"] is not None:
        this.send({"type": "facts", "facts": probe(job["then"], this.name)})
    this.forget()
    this.send({"type": "end", "ok": ok})
    if ok and any(change["kind"] == "reboot" for change in job["changes"]):
        go_down(this)
    this.close()
    lock.close()


def interrupt(_number: int, _frame: Any) -> None:
    """What SIGTERM does, once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def undo(this: Run, why: Failure) -> Failure:
    """The same failure, with what became of guarded files that were written and never found to be good."""
    try:
        guard = this.guard()
        if guard is not None:
            why.restored, words = put_back(this, guard)
            why.detail += words
    except Exception as error:  # the guard stays: for the timer, the next boot, or the next apply
        why.detail.append("the files were not put back: %s" % failure(error).error)
    return why


def go_down(this: Run) -> None:
    """Reboot, and hold the lock until the machine is down."""
    before = line_of("/proc/sys/kernel/random/boot_id")
    time.sleep(1)  # for whoever follows to hear the end
    answer = run("systemctl", "reboot")
    if answer.status > 0:  # below: it was killed by the reboot itself
        sentence = "the host does not reboot: " + last(answer.words, 1)[0]
        this.send(Failure("reboot-failed", sentence, last(answer.words, 5)).message(this.n))
        this.send({"type": "end", "ok": False})  # for who follows now; the first `end` has been heard
        return
    deadline = time.monotonic() + REBOOT_SECONDS
    while line_of("/proc/sys/kernel/random/boot_id") == before and time.monotonic() < deadline:
        time.sleep(0.5)


def mend(this: Run) -> bool:
    """Put back now what timers of killed applies would put back later, under the feet of this one."""
    try:
        for sentence in leftovers():
            this.progress(sentence)
    except Exception as error:
        this.send(failure(error).message(0))
        return False
    return True


def leftovers() -> Iterator[str]:
    """Put back what killed applies left, and tell of it. A record that is of no use is set aside, for a person."""
    for path in sorted(glob.glob(below(RECORDS + "/*/guard.json"))):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            guard = killed.guard()
            restored, words = put_back(killed, guard) if guard is not None else ([], [])
        except Exception as error:
            why = failure(error)
            if why.code in ("disk-full", "read-only"):
                raise
            aside = path + ".unusable"
            killed.disarm(aside)
            where = aside[len(ROOT) :]
            restored, words = [], ["%s says what to put back, and cannot be used: %s" % (where, error)]
            words.append("compare the originals in %s/files with what is there now" % killed.record)
        for file in restored:
            yield "put back %s, which an apply that was killed had changed" % file
        for sentence in words:
            yield sentence
        killed.forget()
        killed.close()


def prune(this: Run) -> None:
    """Forget the oldest records. Needs the lock, and nothing to be put back any more."""
    folder = below(os.path.dirname(this.record))
    others = [name for name in os.listdir(folder) if name != this.name]
    others.sort(key=lambda name: os.stat(os.path.join(folder, name)).st_mtime)
    for name in others[: max(0, len(others) - KEPT_RUNS + 1)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def failure(error: BaseException) -> Failure:
    if isinstance(error, Failure):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failure("aborted", "it was ended, by `gpunode abort` or by the machine going down")
    if isinstance(error, OSError):
        return from_os_error(error)
    return Failure("internal", "a mistake in gpunode's agent: %r" % error, last(traceback.format_exc(), 12))


def take_lock(holder: Message, wait: bool = False) -> Optional[BinaryIO]:
    """The host's lock, with who holds it written into it; None when another has it, unless it is waited for."""
    os.makedirs(below(LIVE), 0o700, exist_ok=True)
    os.chmod(below(LIVE), 0o700)
    lock = open(below(LOCK), "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # somebody may only be looking whether it is held
            continue
        lock.truncate(0)
        lock.write(json.dumps(holder).encode())
        lock.flush()
        return lock
    lock.close()
    return None


def launch(this: Run) -> None:
    """Start `work` so that it outlives this process."""
    command = again(this, "work")
    if systemd():
        answer = run("systemd-run", "--quiet", "--collect", "--unit", "gpunode-" + this.name, *command)
        if answer.status:
            raise OSError(answer.words)
        return
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


def follow(this: Run, beat: float = BEAT_SECONDS) -> Iterator[Message]:
    """The messages of an apply from its first to its last, as they come; `alive` after every `beat` without one."""
    told = this.told()
    if told is None:
        yield {"type": "unknown", "run": this.name}
        yield {"type": "end", "ok": False}
        return
    message = {}  # type: Message
    begun = None  # type: Optional[int]
    said = time.monotonic()
    patience = said + 15  # for the process to start and take the lock
    with told as file:
        while True:
            heard = bool(
                message
            )  # it may take the lock, and say that it begins, right after the look at the lock
            holder = lock_holder()
            alive = bool(holder and holder["run"] == this.name)
            for line in whole_lines(file):
                message = json.loads(line)
                if message["type"] in ("start", "done", "failed"):
                    begun = message["n"] if message["type"] == "start" else None
                said = time.monotonic()
                yield message
            if message.get("type") == "end":
                return
            if not alive and (heard or (not message and time.monotonic() > patience)):
                break
            if time.monotonic() - said > beat:
                said = time.monotonic()
                yield {"type": "alive"}
            time.sleep(0.05)
    crash = last(text_of(this.record + "/crash.log") or "", 12)
    if not message:
        raise OSError("the apply did not start: " + (crash or ["its process said nothing"])[-1])
    if begun is not None:
        words = "the apply was killed, or the machine went down, in the middle of this"
        yield Failure("interrupted", words, crash).message(begun)
    yield {"type": "end", "ok": False}


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines written so far; one that is still being written is left for later."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield line


# --- Main ------------------------------------------------------------------------------------------------


def apply(program: bytes, job: Message, stdin: BinaryIO) -> Iterator[Message]:
    this = Run(job["run"])
    holder = lock_holder()
    if holder:
        yield dict(holder, type="locked")
        yield {"type": "end", "ok": False}
        return
    n = 0
    try:
        this.store(program, job)
        for index, payload in enumerate(job["payloads"]):
            kinds = [(change["kind"], change.get("payload")) for change in job["changes"]]
            n = kinds.index(("load_image", index))
            spool(this.payload(index), payload, stdin)
        open(below(this.places[0]), "wb").close()  # from here on there is something to follow
        launch(this)
    except (Failure, OSError) as error:
        this.forget()
        this.close()
        yield failure(error).message(n)
        yield {"type": "end", "ok": False}
        return
    for message in follow(this, job.get("beat", BEAT_SECONDS)):
        yield message


def abort(patience: float, beat: float) -> Iterator[Message]:
    """End the apply under way. It puts back what it must by itself; one that cannot is killed, and that done here."""
    holder = lock_holder()
    if holder is not None:
        this = Run(holder["run"])
        yield dict(holder, type="aborting", doing=doing(this))
        send_signal(holder["pid"], signal.SIGTERM)
        begun = said = time.monotonic()
        while (lock_holder() or {}).get("run") == this.name:
            if time.monotonic() - begun > patience:
                if systemd():
                    run("systemctl", "kill", "--signal=KILL", "gpunode-%s.service" % this.name)
                send_signal(holder["pid"], signal.SIGKILL)
                begun = time.monotonic()
            if time.monotonic() - said > beat:
                said = time.monotonic()
                yield {"type": "alive"}
            time.sleep(0.1)
        for message in this.story():
            if message["type"] == "failed":
                yield message
    mine = {"run": "abort", "by": "gpunode abort", "since": time.time(), "pid": os.getpid()}
    lock = take_lock(mine)
    if lock is not None:  # else the next apply has begun, which looks after them
        for sentence in leftovers():
            yield {"type": "progress", "text": sentence}
        lock.close()
    yield {"type": "end", "ok": True}


def send_signal(pid: int, number: int) -> None:
    """To a process that may have ended by now."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def doing(this: Run) -> str:
    """What an apply is at: its change, and its last words on it."""
    found = "nothing yet"
    changes = json.loads(text_of(this.live + "/job.json") or "{}").get("changes", [])
    for message in this.story():
        if message["type"] == "start" and message["n"] < len(changes):
            change = changes[message["n"]]
            names = change.get("install", []) + change.get("load", []) + change.get("unload", [])
            what = change.get("path") or change.get("unit") or change.get("reference") or " ".join(names)
            found = "%s %s" % ("restart" if change.get("restart") else change["kind"].replace("_", " "), what)
        elif message["type"] == "progress":
            found = found.split(" (")[0] + " (%s)" % message["text"]
        elif message["type"] == "done":
            found = "nothing, after " + found
    return found.strip()


def spool(path: str, payload: Message, stdin: BinaryIO) -> None:
    digest, left = hashlib.sha256(), payload["size"]
    with open(path, "wb") as file:
        while left:
            chunk = stdin.read(min(CHUNK, left))
            if not chunk:
                raise Failure("payload-damaged", "the image archive did not arrive whole")
            file.write(chunk)
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest() != payload["sha256"]:
        raise Failure("payload-damaged", "the image archive changed on its way")


def main(program: bytes, raw_job: bytes) -> None:
    """Answer the job that the bootstrap has read."""
    job = json.loads(raw_job.decode("utf-8"))
    out = sys.stdout.buffer
    out.write(b"\n@gpunode-begin %s\n" % job["nonce"].encode())
    out.flush()
    if job["op"] == "probe":
        messages = iter(
            [{"type": "facts", "facts": probe(job["watch"], patience=job.get("patience", PROBE_SECONDS))}]
        )
    elif job["op"] == "apply":
        messages = apply(program, job, sys.stdin.buffer)
    elif job["op"] == "abort":
        messages = abort(job.get("patience", ABORT_SECONDS), job.get("beat", BEAT_SECONDS))
    else:
        messages = follow(Run(job["run"]), job.get("beat", BEAT_SECONDS))
    try:
        for message in messages:
            out.write(json.dumps(message).encode() + b"\n")
            out.flush()
        out.write(b"@gpunode-end %s\n" % job["nonce"].encode())
        out.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more; an apply goes on by itself
    except OSError as error:
        sys.stderr.write("gpunode: %s\n" % from_os_error(error).error)
        sys.exit(1)


def detached(verb: str, name: str) -> None:
    this = Run(name)
    crash = os.open(below(this.record + "/crash.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(crash, 2)
    if verb == "work":
        work(this)
    else:
        restore_later(this, wait=verb == "restore")


if __name__ == "__main__":
    detached(sys.argv[1], sys.argv[2])
