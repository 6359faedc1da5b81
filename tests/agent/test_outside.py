"""A restart that works is kept when gpunode connects to the host again, or else its API server answers; else it is undone."""

import base64
import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpunode.agent import system
from gpunode.agent.failures import HINTS, Failure
from gpunode.agent.record import Run
from gpunode.engine.on_host import confirmation
from gpunode.host import wire
from gpunode.model import Reboot, Unconfirmed, WriteFile
from gpunode.sim.apiserver import tls
from tests.agent.conftest import DAEMON, DOCKER, Host, wait_until
from tests.agent.guarded import BOOT_UNIT, GUARDED, RECORD, RESTART, as_unit, goes_down, told, worker, write

MARK = f"{RECORD}/unconfirmed-1.json"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"
SOON, LATE = (
    0.4,
    60.0,
)  # seconds until a host gives up, where nothing else can end it, and where a test does not wait for it


@contextlib.contextmanager
def serving(answer: bytes, secure: ssl.SSLContext | None, away: int) -> Iterator[int]:
    """A port that gives every connection this answer, over TLS if `secure`, and none to the first `away`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for number in itertools.count():
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                with plain, contextlib.suppress(OSError):
                    if number < away:
                        continue
                    plain.settimeout(5)
                    connection = secure.wrap_socket(plain, server_side=True) if secure else plain
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def kubeconfig(host: Host, port: int, ca: str, path: str = KUBECONFIG, extra: str = "") -> None:
    """As kubeadm writes it."""
    data = base64.b64encode(ca.encode()).decode()
    host.write(
        path,
        "apiVersion: v1\nclusters:\n- cluster:\n"
        f"    certificate-authority-data: {data}\n{extra}    server: https://127.0.0.1:{port}\n  name: default\n",
    )


def unreachable(host: Host, folder: Path) -> None:
    """A kubeconfig of an API server that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    kubeconfig(host, port, tls.server(folder / "api.pem")[1])


def http(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()


OK = http("200 OK")


@pytest.fixture
def api(docker: Host, tmp_path) -> Iterator[Callable[..., None]]:
    """Puts an API server beside the host, and its kubeconfig onto it."""
    with contextlib.ExitStack() as stack:

        def made(
            answer: bytes = OK, *, secured: bool = True, ca: str = "", away: int = 0, **given: str
        ) -> None:
            secure, own = tls.server(tmp_path / "api.pem")
            port = stack.enter_context(serving(answer, secure if secured else None, away))
            kubeconfig(docker, port, ca or own, **given)

        yield made


@pytest.fixture
def this(docker: Host, monkeypatch) -> Run:
    """The agent's functions in this process, on the host's folder; their time passes only while they sleep."""
    monkeypatch.setattr(system, "ROOT", str(docker.root))
    monkeypatch.setattr(system, "ENV", docker.environment)
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), time=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr(confirmation, "time", clock)
    run = Run("run1")
    run.store(b"", docker.job(confirm=8))
    return run


def asked(host: Host) -> int:
    """How often the apply has asked to be confirmed."""
    path = host.path(f"{RECORD}/messages.jsonl")
    return path.read_text().count('"confirm"') if path.exists() else 0


def waits(host: Host) -> None:
    """Begin a guarded restart and wait until it asks to be confirmed."""
    host.start(host.job(write('{"a": 1}'), GUARDED, confirm=LATE))
    wait_until(lambda: asked(host) == 1)


def kept(host: Host) -> bool:
    """Whether the change stays, with nothing armed that would undo it; else that it is undone."""
    stays = host.read(DAEMON) == '{"a": 1}'
    assert host.calls().count(RESTART) == (1 if stays else 2)
    assert not host.path(f"{RECORD}/guard.json").exists()
    assert not host.path(BOOT_UNIT).exists()
    return stays


@pytest.mark.parametrize("joined", [False, True])
def test_a_new_connection_confirms(docker: Host, tmp_path, joined: bool):
    """It says which restart it was opened after; the change is done then, and nothing is marked. It decides alone, also
    where the host does not reach its API server."""
    if joined:
        unreachable(docker, tmp_path)
    job = docker.job(write('{"a": 1}'), GUARDED, confirm=LATE)
    first = docker.start(job)
    wait_until(lambda: asked(docker) == 1)
    messages = docker.ask(wire.follow_job("run1", confirms=1))
    assert [message["type"] for message in messages] == ["start", "done", "start", "confirm", "done", "end"]
    assert messages[3] == {"type": "confirm", "n": 1, "unit": DOCKER, "seconds": LATE}
    assert messages[4]["detail"] == {"outside": "confirmed"}
    assert kept(docker)
    assert docker.probe()["unconfirmed"] == []
    first.kill()


def test_a_connection_that_only_follows_confirms_nothing(docker: Host):
    """It may be older than the restart; so may one that confirms an earlier restart."""
    waits(docker)
    for confirms in (None, 0):
        job = wire.follow_job("run1", confirms)
        follower = docker.start({**job, "beat": 0.1})
        assert follower.stdout
        wait_until(lambda: b"alive" in follower.stdout.readline())  # noqa: B023
        follower.kill()
    assert docker.path(f"{RECORD}/guard.json").exists()
    docker.ask(wire.follow_job("run1", confirms=1))
    assert kept(docker)


def test_without_the_operator_an_answer_of_the_api_server_keeps_it_unconfirmed(
    docker: Host, api: Callable[..., None]
):
    """The next run's probe tells; a job that says so confirms. A mark of a newer gpunode is refused by name; an empty one is an error."""
    api(away=2)
    messages = docker.ask(docker.job(write('{"a": 1}'), GUARDED, confirm=10))
    assert messages[-1]["ok"]
    assert messages[-2]["detail"] == {"outside": "api-server-answered"}
    assert kept(docker)
    (unconfirmed,) = docker.facts().unconfirmed
    assert unconfirmed == Unconfirmed("api-server-answered", "run1", DOCKER, "anna@desk", unconfirmed.since)
    mark = json.loads(docker.read(MARK))
    docker.write(MARK, json.dumps({**mark, "version": mark["version"] + 1}))
    seen = docker.probe()
    assert seen["unconfirmed"] is None
    assert f"{MARK} was written by a newer gpunode, in format 2" in seen["errors"]["unconfirmed"]
    docker.write(MARK, "")
    assert "unconfirmed" in docker.probe()["errors"]
    del mark["version"]  # as of before there were versions
    docker.write(MARK, json.dumps(mark))
    assert [entry["run"] for entry in docker.probe()["unconfirmed"]] == ["run1"]
    assert docker.ask(wire.confirm_job(["run1"])) == [{"type": "end", "ok": True}]
    assert docker.facts().unconfirmed == ()
    docker.write(MARK, json.dumps(mark))
    assert docker.ask(wire.follow_job("run1", confirms=1))[-1][
        "ok"
    ]  # of an operator whose line was down for longer
    assert not docker.path(MARK).exists()


def test_the_operator_alone_has_half_of_the_time(this: Run, monkeypatch):
    """Then the API server is asked until it answers: a restart of docker may have ended the load balancer before it."""
    when: list[float] = []

    def answers() -> bool:
        when.append(confirmation.time.monotonic())
        return len(when) == 3

    monkeypatch.setattr(confirmation, "api_server_answers", answers)
    assert confirmation.wait_for_confirmation(this, DOCKER) == {"outside": "api-server-answered"}
    assert when[0] == pytest.approx(4, abs=0.1)
    monkeypatch.setattr(confirmation, "api_server_answers", lambda: False)
    with pytest.raises(Failure, match="nor did an API server answer it"):
        confirmation.wait_for_confirmation(this, DOCKER)


def test_without_either_it_is_put_back(docker: Host):
    """Here on a host of no cluster."""
    *_, failed, end = docker.ask(docker.job(write('{"a": 1}'), GUARDED, confirm=SOON))
    assert (failed["code"], failed["n"], failed["restored"]) == ("cut-off", 1, [DAEMON])
    assert failed["detail"] == [f"with its files restored, {DOCKER} runs again"]
    assert HINTS["cut-off"]
    assert end == {"type": "end", "ok": False}
    assert not kept(docker)
    assert docker.probe()["unconfirmed"] == []


@pytest.mark.parametrize(
    "status", ["200 OK", "401 Unauthorized", "403 Forbidden", "500 Internal Server Error"]
)
@pytest.mark.usefixtures("this")
def test_any_status_is_an_answer_of_the_api_server(api: Callable[..., None], status: str):
    api(http(status))
    assert confirmation.api_server_answers()


@pytest.mark.parametrize("case", ["refused", "another CA", "no TLS", "no HTTP", "control plane"])
@pytest.mark.usefixtures("this")
def test_a_server_that_does_not_prove_to_be_the_clusters_is_no_answer(
    docker: Host, api: Callable[..., None], tmp_path, case: str
):
    """Nor is one on the host itself."""
    if case == "refused":
        unreachable(docker, tmp_path)
    elif case == "another CA":
        (tmp_path / "other").mkdir()
        api(ca=tls.server(tmp_path / "other/api.pem")[1])
    elif case == "no TLS":
        api(secured=False)
    elif case == "no HTTP":
        api(b"220 mail.example ESMTP\r\n")
    else:
        api()
        assert confirmation.api_server_answers()
        docker.write("/proc/4712/comm", "kube-apiserver\n")
    assert not confirmation.api_server_answers()


@pytest.mark.usefixtures("this")
def test_the_kubelets_own_kubeconfig_is_asked_wherever_it_is(docker: Host, api: Callable[..., None]):
    """The path that it runs with; JSON is YAML, and a certificate has another name than its address."""
    docker.unit("kubelet.service", MainPID=77)
    docker.write("/proc/77/cmdline", "kubelet\0--bootstrap-kubeconfig=/etc/b\0--kubeconfig=/var/lib/k/conf\0")
    docker.write(KUBECONFIG, "clusters: []\n")
    api(path="/var/lib/k/conf", extra="    tls-server-name: 127.0.0.1\n")
    assert confirmation.api_server_answers()


def test_each_guarded_restart_is_confirmed_and_a_reboot_comes_after(docker: Host, api: Callable[..., None]):
    """Two in one apply: what the first kept unconfirmed, the confirmation of the second confirms."""
    other = "/etc/default/kubelet"
    docker.unit(
        "kubelet.service", 'printf "LoadState=loaded\\nActiveState=active\\nMainPID=$$\\n" > "$units/$2"\n'
    )
    api()
    kubelet = type(GUARDED)("kubelet.service", "why", restart=True, guards=(other,))
    job = docker.job(
        write('{"a": 1}'), GUARDED, WriteFile(other, "x", "why"), kubelet, Reboot("why"), confirm=8
    )
    docker.start(job)
    wait_until(docker.path(MARK).exists)
    docker.path(KUBECONFIG).unlink()
    wait_until(lambda: asked(docker) == 2)
    assert "systemctl reboot" not in docker.calls()
    messages = docker.ask(wire.follow_job("run1", confirms=3))
    assert [message["detail"] for message in messages if message["type"] == "done"][1:4:2] == [
        {"outside": "api-server-answered"},
        {"outside": "confirmed"},
    ]
    assert not docker.path(MARK).exists()
    wait_until(lambda: "systemctl reboot" in docker.calls())
    assert kept(docker)


@pytest.mark.parametrize("verb", ["restore", "boot", "next", "abort"])
def test_an_apply_that_is_killed_while_it_waits_is_put_back(docker: Host, verb: str):
    """By the timer, at a boot, by the next apply or by an abort: nobody has confirmed it."""
    waits(docker)
    if verb == "abort":
        assert DAEMON in str(docker.ask(wire.abort_job()))
        assert not kept(docker)
        return
    os.kill(worker(docker), signal.SIGKILL)
    if verb == "next":
        assert f"restored {DAEMON}" in told(docker.apply(WriteFile("/etc/x", "x", "why")))
    else:
        if verb == "boot":
            goes_down(docker)
        assert f"restored {DAEMON}" in as_unit(docker, verb).stdout
    assert docker.read(DAEMON) == "{}"
    assert not docker.path(BOOT_UNIT).exists()


def test_a_restart_that_reads_no_changed_file_waits_for_nobody(docker: Host):
    """There is nothing to put back. Nor does an apply of an older gpunode, whose job has no such time."""
    messages = docker.ask(docker.job(GUARDED, confirm=LATE))
    assert [message["type"] for message in messages] == ["start", "done", "end"]
    job = docker.job(write('{"a": 1}'), GUARDED)
    del job["confirm"]
    assert [message["type"] for message in docker.ask(job)] == ["start", "done", "start", "done", "end"]
