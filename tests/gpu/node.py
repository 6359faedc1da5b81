"""A kubelet without a cluster on this machine: containerd, the kubelet, the plugin's image on this machine's Python.

`python -m tests.gpu.node FOLDER`, as root in a mount namespace of its own (`unshare --mount --propagation private`): the
kubelet's folders, which no option moves, are then this process's. The programs (`PROGRAMS`) come from PATH. It reads lines on
standard input, each a static pod as JSON, and answers each with a line: the pod's output, or the reason why there is none.
Where there is no GPU, the plugin offers one that does not exist: enough to see that all this works.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpunode.links.plugin import image

PROGRAMS = (
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "nvidia-ctk",
    "nvidia-cdi-hook",
)
PLUGIN_IMAGE, PAUSE_IMAGE = "gpunode-test/plugin:1", "gpunode-test/pause:1"
HIDDEN = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/run/containerd",
    "/var/log/pods",
    "/var/log/containers",
    "/run/cdi",
)
ANSWER = 90.0  # seconds for a pod
CGROUP = "/gpunode-test"

CONTAINERD = f"""
version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'native'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE_IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  snapshotter = 'native'
"""
KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "address": "127.0.0.1",
    "port": 10350,
    "healthzPort": 0,
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": CGROUP,
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "enforceNodeAllocatable": [],
    "evictionHard": dict.fromkeys(
        ("imagefs.available", "memory.available", "nodefs.available", "nodefs.inodesFree"), "0%"
    ),
    "failCgroupV1": False,
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "fileCheckFrequency": "1s",
    "syncFrequency": "2s",
}
Answer = TypeVar("Answer")


def wait_for(what: str, condition: Callable[[], Answer | None], seconds: float = ANSWER) -> Answer:
    """What `condition` answers once it answers something. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while (answer := condition()) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {seconds:.0f} s")
        time.sleep(0.1)
    return answer


def write_image(to: Path, name: str, layer: bytes, config: Mapping[str, Any]) -> None:
    """An archive of one layer, as `docker save` writes it."""
    digest = hashlib.sha256(layer).hexdigest()
    root = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    document = {"architecture": "amd64", "os": "linux", "config": config, "rootfs": root}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(to, "w") as tar:
        for path, content in (
            ("config.json", json.dumps(document).encode()),
            ("layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def python_layer() -> bytes:
    """This machine's /usr/bin/python3 with its library and what both are linked with."""
    ask = "import sys, sysconfig; print(f'python3.{sys.version_info.minor}', sysconfig.get_path('stdlib'))"
    name, library = subprocess.run(
        ["/usr/bin/python3", "-c", ask], capture_output=True, text=True, check=True
    ).stdout.split()
    modules = [
        path
        for path in Path(library).rglob("*")
        if path.is_file() and not {"test", "dist-packages"} & set(path.parts)
    ]
    linked = subprocess.run(
        ["ldd", f"/usr/bin/{name}", *(str(path) for path in modules if ".so" in path.suffixes)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    libraries = {Path(word) for word in linked if word.startswith("/") and not word.endswith(":")}
    # the parts that glibc had before 2.34: the driver's libraries name them
    libc = next(path for path in libraries if path.name == "libc.so.6")
    old = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libutil.so.1")
    libraries |= {libc.with_name(name) for name in old}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as tar:
        for path in (*modules, *libraries, Path(f"/usr/bin/{name}")):
            # the loader's own path is fixed; others are found in the folders that every loader knows
            tar.add(
                path, str(path).lstrip("/") if path in modules or "ld-linux" in path.name else _place(path)
            )
        for link, target in (("usr/bin/python3", name), ("bin", "usr/bin"), ("tmp/.", "")):
            member = tarfile.TarInfo(link)
            member.type, member.linkname = (tarfile.SYMTYPE, target) if target else (tarfile.DIRTYPE, "")
            member.mode = 0o777
            tar.addfile(member)
    return out.getvalue()


def _place(path: Path) -> str:
    return (
        str(path).lstrip("/") if path.parent == Path("/usr/bin") else f"usr/lib/x86_64-linux-gnu/{path.name}"
    )


def make_images(folder: Path, pause: Path, wheels: Path | None) -> Iterable[Path]:
    base, plugin, holder = folder / "base.tar", folder / "plugin.tar", folder / "pause.tar"
    write_image(base, "base:1", python_layer(), {})
    print(image.write(str(base), plugin, name=PLUGIN_IMAGE, arch="amd64", folder=wheels), file=sys.stderr)
    write_image(holder, PAUSE_IMAGE, image.make_layer({"pause": b""}), {})  # its place
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(pause, "pause")
    write_image(holder, PAUSE_IMAGE, out.getvalue(), {"Entrypoint": ["/pause"]})
    return plugin, holder


@contextlib.contextmanager
def node(folder: Path, images: Iterable[Path]) -> Iterator[None]:
    """containerd with the images, and the kubelet; their logs are in `folder`."""
    for place in HIDDEN:
        Path(place).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "node", place], check=True)
    (folder / "containerd.toml").write_text(CONTAINERD)
    pods = folder / "manifests"
    pods.mkdir()
    (folder / "kubelet.json").write_text(json.dumps({**KUBELET, "staticPodPath": str(pods)}))
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        Path("/sys/fs/cgroup", CGROUP[1:]).mkdir(exist_ok=True)
    else:
        for controller in Path("/sys/fs/cgroup").iterdir():
            if controller.is_dir():
                (controller / CGROUP[1:]).mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> None:
            log = stack.enter_context((folder / f"{command[0]}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("containerd", "--config", str(folder / "containerd.toml"))
        wait_for("containerd answers", lambda: True if _ctr("version") else None, 30)
        for archive in images:
            subprocess.run(
                [
                    "ctr",
                    "-n",
                    "k8s.io",
                    "images",
                    "import",
                    "--local",
                    "--snapshotter",
                    "native",
                    str(archive),
                ],
                check=True,
                stdout=sys.stderr,
            )
        start("kubelet", "--config", str(folder / "kubelet.json"), "--hostname-override", "gpu-test", "--v=2")
        wait_for(
            "the kubelet listens to plugins",
            lambda: True if Path("/var/lib/kubelet/device-plugins/kubelet.sock").exists() else None,
        )
        yield
        for path in pods.iterdir():
            path.unlink()


def _ctr(*arguments: str) -> bool:
    return subprocess.run(["ctr", *arguments], capture_output=True, check=False).returncode == 0


def run_pod(folder: Path, pod: Mapping[str, Any]) -> str:
    """The output of the static pod's container, once it has ended. Raises TimeoutError."""
    name = pod["metadata"]["name"]
    (folder / "manifests" / f"{name}.json").write_text(json.dumps(pod))

    def output() -> str | None:
        for log in Path("/var/log/pods").glob(f"default_{name}-gpu-test_*/*/*.log"):
            text = log.read_text()
            if "END-OF-POD" in text:
                return text
        return None

    try:
        return wait_for(f"the pod {name} ends", output)
    finally:
        (folder / "manifests" / f"{name}.json").unlink()


def static_pod(name: str, command: str, resources: Mapping[str, str]) -> dict[str, Any]:
    """Of the plugin's image; `command` is for a Python's -c, and its last line of output ends the pod."""
    container = {
        "name": "main",
        "image": PLUGIN_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", f"import atexit; atexit.register(print, 'END-OF-POD')\n{command}"],
        "resources": {"limits": dict(resources)},
        "securityContext": {"runAsUser": 0},
    }
    spec = {
        "containers": [container],
        "hostNetwork": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


@contextlib.contextmanager
def plugin(folder: Path, command: Sequence[str]) -> Iterator[None]:
    """The plugin as a process of this machine, once the kubelet has its devices."""
    checkpoint = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")

    def registered() -> bool | None:
        if process.poll() is not None:
            raise RuntimeError((folder / "plugin.log").read_text())
        with contextlib.suppress(OSError, ValueError):
            return (
                bool(json.loads(checkpoint.read_text())["Data"]["RegisteredDevices"]["nvidia.com/gpu"])
                or None
            )
        return None

    with (folder / "plugin.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for("the kubelet has the plugin's devices", registered)
            yield
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    wheels = os.environ.get("WHEELS")
    images = make_images(place, Path(shutil.which("pause") or "pause"), Path(wheels) if wheels else None)
    with node(place, images):
        if real := Path("/dev/nvidiactl").exists():
            specification = ["nvidia-ctk", "cdi", "generate", "--output=/run/cdi/nvidia.yaml"]
            subprocess.run(specification, check=True, stdout=sys.stderr)
        command = (
            ["gpunode.deviceplugin", "--device-list-strategy=cdi-cri"]
            if real
            else ["tests.deviceplugin.process", "GPU-a"]
        )
        with plugin(place, [sys.executable, "-m", *command]):
            print("ready", flush=True)
            for line in sys.stdin:
                try:
                    answer = run_pod(place, json.loads(line))
                except TimeoutError as error:
                    answer = f"TIMEOUT {error}"
                print(json.dumps(answer), flush=True)
