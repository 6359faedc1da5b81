"""A GPU container below Kubernetes: which tool, which image, which command; nothing is pulled."""

from typing import Any

import pytest

from gpunode.host import wire
from gpunode.links.runtime.on_host import container_test as trial
from tests import tables
from tests.agent.conftest import Host

PLUGIN = "gpunode-deviceplugin:1"
UUIDS = ["GPU-0a1b", "GPU-2c3d"]
GPUS = "\n".join(f"GPU {n}: Tesla P100 (UUID: {uuid})" for n, uuid in enumerate(UUIDS))
LISTED = f"""{GPUS}
/dev/nvidia-caps
/dev/nvidia-caps/nvidia-cap1
/dev/nvidia0
/dev/nvidiactl
overlay / overlay rw,relatime,lowerdir=/l/A,workdir=/w 0 0
devtmpfs /dev/nvidia0 devtmpfs rw,nosuid 0 0
/dev/sda1 /usr/bin/nvidia-smi ext4 ro,nosuid,nodev 0 0
/dev/sda1 /usr/lib/x86_64-linux-gnu/libcuda.so.580.178.04 ext4 ro,nosuid,nodev 0 0
/dev/sda1 /etc/hosts ext4 rw 0 0
tmpfs /srv/GPU-4e5f tmpfs rw 0 0"""
K8S = "--namespace=k8s.io"


def tool(host: Host, name: str, *images: str, runs: str = f"echo '{LISTED}'") -> None:
    """It has these images, and does this when it is to run one."""
    for socket in ("/run/docker.sock", "/run/containerd/containerd.sock"):
        host.write(socket, "")
    listed = "\n".join(images)
    host.program(name, f"case \"$*\" in *images*) echo '{listed}' ;; *) {runs}\n;; esac\n")


def ask(host: Host, runtime: str) -> dict[str, Any]:
    (answer,) = host.ask(wire.container_job(runtime, PLUGIN))
    return answer


@tables.rows("trials")
def test_each_tool_has_its_way(host: Host, runtime: str, name: str, command: str):
    """Images are listed, one is run, and its GPUs are read."""
    image = f"docker.io/library/{PLUGIN}"
    tool(host, name, "registry.k8s.io/pause:3.10", "docker.io/nvidia/cuda:12.8.0-base", image)
    answer = ask(host, runtime)
    assert (answer["tool"], answer["image"], answer["uuids"]) == (name, image, UUIDS)
    assert host.calls()[-1] == command.replace("IMAGE", image).replace("LOOK", trial.LOOK)
    assert answer["devices"] == ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0", "/dev/nvidiactl"]
    assert answer["mounts"] == ["/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.178.04"]


@pytest.mark.parametrize("image", ["nvidia/cuda:10.0-base", "nvcr.io/nvidia/k8s/cuda-sample:nbody"])
def test_without_the_plugins_image_it_is_one_named_after_cuda(host: Host, image: str):
    """Whoever pulled it."""
    tool(host, "docker", "barracuda:1", "<none>:<none>", image)
    assert ask(host, "docker")["image"] == image


def test_without_an_image_nothing_is_run_or_pulled(host: Host):
    """The tools that were asked are named."""
    tool(host, "docker", "barracuda:1")
    tool(host, "podman")
    answer = ask(host, "docker")
    assert (answer["tool"], answer["tools"]) == (None, ["docker", "podman"])
    assert all(" images" in call for call in host.calls())


def test_a_tool_that_does_not_list_its_images_says_why(host: Host):
    """It is no host without an image."""
    tool(host, "ctr")
    host.program("ctr", "echo 'ctr: connection refused' >&2; exit 1")
    answer = ask(host, "containerd")
    assert (answer["tool"], answer["tools"], answer["words"]) == (None, [], ["ctr: connection refused"])


def test_another_tool_is_taken_where_the_first_has_no_image(host: Host):
    """The kubelet's own first."""
    tool(host, "ctr", "registry.k8s.io/pause:3.10")
    tool(host, "podman", "localhost/cuda:1")
    assert ask(host, "containerd")["tool"] == "podman"


def test_a_container_that_fails_is_reported_in_its_own_words(host: Host):
    """With its status."""
    tool(host, "docker", PLUGIN, runs="echo 'unknown or invalid runtime name: nvidia' >&2; exit 125")
    answer = ask(host, "docker")
    assert (answer["status"], answer["uuids"]) == (125, [])
    assert answer["words"] == ["unknown or invalid runtime name: nvidia"]


@pytest.mark.parametrize(
    "words",
    [
        'exec: "sh": executable file not found in $PATH: unknown',
        "crun: executable file `sh` not found in $PATH",
    ],
)
def test_an_image_without_a_shell_lists_its_gpus(host: Host, words: str):
    """Its devices and mounts are not known then."""
    runs = f"case \"$*\" in *=sh*) echo '{words}' >&2; exit 127;; esac; echo '{GPUS}'"
    tool(host, "docker", PLUGIN, runs=runs)
    answer = ask(host, "docker")
    assert (answer["status"], answer["uuids"], answer["devices"]) == (0, UUIDS, [])
    assert host.calls()[-1].endswith(f"--entrypoint=nvidia-smi {PLUGIN} -L")


def test_a_container_that_hangs_is_no_host_that_does(host: Host):
    """The agent reports that it is at work; the connection would be closed before the container's time is over."""
    tool(host, "docker", PLUGIN, runs='until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done')
    agent = host.start({**wire.container_job("docker", PLUGIN), "beat": 0.05})
    assert agent.stdout
    assert b'{"type": "alive"}\n' in agent.stdout
    host.write("/state/go", "")
    assert b'"status": 0' in agent.stdout.read()


def test_two_trials_wait_for_each_other(host: Host):
    """Of two operators' verifies: their containers have one name."""
    name, go = '"$GPUNODE_ROOT/state/name"', '"$GPUNODE_ROOT/state/go"'
    waits = f"until [ -e {go} ]; do sleep 0.02; done"
    tool(host, "docker", PLUGIN, runs=f"/bin/mkdir {name} || exit 125; {waits}; /bin/rmdir {name}")
    job = {**wire.container_job("docker", PLUGIN), "beat": 0.05}
    agents = [host.start(job) for _ in range(2)]
    for agent in agents:
        assert agent.stdout
        assert [agent.stdout.readline() for _ in range(12)][-5:] == [b'{"type": "alive"}\n'] * 5
    host.write("/state/go", "")
    for agent in agents:
        assert agent.stdout
        assert b'"status": 0' in agent.stdout.read()


def test_a_lock_that_somebody_keeps_is_no_trial(tmp_path, monkeypatch):
    """Any user can: it is waited for as long as for a container."""
    monkeypatch.setattr(trial, "below", lambda path: str(tmp_path))
    monkeypatch.setattr(trial, "SECONDS", 0.1)
    with trial.locked("/run"):
        answer = trial.run_container("docker", PLUGIN, trial.PROGRAMS[0])
    assert (answer.status, "kept the lock of /run" in answer.message) == (124, True)


def test_ctr_leaves_no_container_of_an_earlier_trial(host: Host):
    """One that did not end kept its name, and every later one failed; 124 is a tool that ran out of time."""
    tool(host, "ctr", PLUGIN, runs='case "$*" in *" run "*) exit 124;; esac')
    assert ask(host, "containerd")["status"] == 124
    delete, task = (
        f"ctr {K8S} {what} gpunode-verify" for what in ("containers delete", "tasks delete --force")
    )
    assert [call for call in host.calls() if "images" not in call and " run " not in call] == [
        delete,
        task,
        delete,
    ]
