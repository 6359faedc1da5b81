"""What is wrong with a kubeconfig is said in words, before anything is contacted."""

import base64
import hashlib
import json
import os
import socket
import ssl
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives import serialization

from gpunode.cluster.api import connect, exec_plugin, kubeconfig, refusal
from gpunode.cluster.api.connection import Connection
from gpunode.errors import ClusterError
from gpunode.model import Cluster
from gpunode.sim.apiserver import tls
from tests import tables

GOOD = {
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [
        {"name": "prod", "context": {"cluster": "c", "user": "u"}},
        {"name": "test", "context": {"cluster": "c", "user": "u"}},
    ],
    "current-context": "prod",
}


def written(folder: Path, **changes: object) -> str:
    (folder / "config").write_text(json.dumps(GOOD | changes))
    return str(folder / "config")


def plugin(command: str, *arguments: str, mode: str = "Never", hint: str = "") -> dict[str, object]:
    """A user with a credential plugin."""
    run: dict[str, object] = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command,
        "args": arguments,
    }
    run |= {"interactiveMode": mode, "installHint": hint}
    return user(exec=run)


def answering(**status: object) -> dict[str, object]:
    """A user whose plugin answers so."""
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return plugin("/bin/echo", json.dumps(answer))


def configuration() -> Any:
    """The client library's, which takes as long to import as half of the tests here."""
    from kubernetes.client import Configuration

    return Configuration()


def loaded(folder: Path, **changes: object) -> kubeconfig.Access:
    """What is read of such a kubeconfig."""
    return kubeconfig.load(Cluster(kubeconfig=written(folder, **changes)))


def user(**keys: object) -> dict[str, object]:
    """The user with these keys."""
    return {"users": [{"name": "u", "user": keys}]}


def cluster(server: str = "https://10.0.0.1:6443", **keys: object) -> dict[str, object]:
    """The cluster with these keys; an underscore stands for a dash."""
    named = {name.replace("_", "-"): value for name, value in keys.items()}
    return {"clusters": [{"name": "c", "cluster": {"server": server, **named}}]}


def refused(source: str, context: str | None = None) -> str:
    with pytest.raises(ClusterError) as caught:
        kubeconfig.load(Cluster(kubeconfig=source, context=context))
    return str(caught.value)


def test_the_current_context_is_used_unless_another_is_named(tmp_path):
    """`cluster.context` wins over the file's current-context."""
    source = written(tmp_path)
    assert kubeconfig.load(Cluster(kubeconfig=source)).context == "prod"
    assert kubeconfig.load(Cluster(kubeconfig=source, context="test")).context == "test"


def test_the_environment_names_the_kubeconfig(tmp_path, monkeypatch):
    """$KUBECONFIG may name several files; those that do not exist are passed over."""
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{written(tmp_path)}")
    assert kubeconfig.load(Cluster()).server == "https://10.0.0.1:6443"


def test_a_missing_kubeconfig_says_where_it_was_looked_for(tmp_path, monkeypatch):
    """The path and, unless the user has just named it, the ways to name another; else a similar name beside it."""
    said = refused(str(tmp_path / "none"))
    assert said == f"no kubeconfig at {tmp_path}/none: no such file"
    (tmp_path / "kubeconfig").touch()
    said = refused(str(tmp_path / "kubeconfg"))
    assert said.endswith(f"no such file\n  Did you mean {tmp_path}/kubeconfig?")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match="Name it in the inventory"):
        kubeconfig.load(Cluster())


def test_an_unknown_context_lists_those_there_are(tmp_path):
    """A typing error is mended by looking at the list."""
    said = refused(written(tmp_path), "prdo")
    assert "has no context `prdo`" in said
    assert "prod, test" in said


def test_a_file_that_is_not_yaml_is_named_with_its_line(tmp_path):
    """File and line, so that an editor can go there."""
    (tmp_path / "config").write_text("a: 1\nb: [\n")
    assert f"{tmp_path}/config:3: not YAML" in refused(str(tmp_path / "config"))
    (tmp_path / "config").write_text("a: " + "[" * 200_000)
    assert f"{tmp_path}/config:1: not YAML: lists and mappings nest deeper" in refused(
        str(tmp_path / "config")
    )
    (tmp_path / "config").write_text("a: 2026-13-45")
    assert "does not match its tag: month must be in 1..12" in refused(str(tmp_path / "config"))


@tables.rows("kubeconfigs")
def test_a_kubeconfig_with_holes_is_refused(tmp_path, changes: dict[str, object], words: str):
    """Each hole is named: no context, no user, a name that YAML read otherwise, no server, files that are not there."""
    assert words in refused(written(tmp_path, **changes))


def test_an_http_proxy_is_gone_through(tmp_path):
    """As kubectl goes."""
    access = loaded(tmp_path, **cluster(proxy_url="http://proxy:3128"))
    assert access.configuration.proxy == "http://proxy:3128"


def test_a_folder_or_a_binary_is_no_kubeconfig(tmp_path):
    """A path that is not a text file at all."""
    assert "is a directory" in refused(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\x7fELF\xd0\x00")
    assert "cannot be read as a kubeconfig" in refused(str(tmp_path / "binary"))
    (tmp_path / "text").write_text("hello")
    assert "is not a kubeconfig" in refused(str(tmp_path / "text"))


def test_keys_in_a_kubeconfig_are_left_in_no_file(tmp_path, monkeypatch):
    """Certificates and keys that stand in the file are read, and nothing of them lies in $TMPDIR afterwards.

    Not for the second connection of a process either: the client library keeps the names of files that are gone.
    """
    _, authority = tls.server(tmp_path / "server.pem")
    secret = (tmp_path / "server.pem").read_text()
    keys = {"client-certificate-data": base64_of(authority), "client-key-data": base64_of(secret)}
    trust = cluster(certificate_authority_data=base64_of(authority))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for _ in range(2):
        access = loaded(tmp_path, **trust, **user(**keys))
        assert len(access.tls.get_ca_certs()) == 1
        assert list((tmp_path / "temporary").iterdir()) == []


def test_a_certificate_that_is_none_is_reported_as_such(tmp_path):
    """Before anything is contacted."""
    said = refused(written(tmp_path, **cluster(certificate_authority_data=base64_of("none"))))
    assert "context `prod` cannot be used: the certificate-authority is no certificate in PEM" in said


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        ("pem", "locked", "the client key has a passphrase, which gpunode does not ask for"),
        ("pem", "other", "the client key belongs to another certificate"),
        ("pem", "none", "the client key is no private key in PEM"),
        ("key", "pem", "the client certificate is no certificate in PEM"),
    ],
)
def test_what_is_wrong_with_a_clients_certificate_or_key_is_named(
    tmp_path, certificate: str, key: str, why: str
):
    """OpenSSL would ask for a passphrase at the terminal, and names neither file."""
    made = {"none": "none", "pem": tls.server(tmp_path / "a.pem")[1], "key": (tmp_path / "a.pem").read_text()}
    tls.server(tmp_path / "b.pem")
    made["other"] = (tmp_path / "b.pem").read_text()
    made["key"] = made["key"][: made["key"].index("-----BEGIN CERTIFICATE")]
    secret = serialization.load_pem_private_key(made["key"].encode(), None)
    locked = serialization.BestAvailableEncryption(b"x")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made["locked"] = secret.private_bytes(*form, locked).decode()
    keys = {"client-certificate-data": base64_of(made[certificate]), "client-key-data": base64_of(made[key])}
    said = refused(written(tmp_path, **user(**keys)))
    assert f"context `prod` cannot be used: {why}" in said


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_several_files_are_one_kubeconfig_and_paths_are_relative_to_their_own(tmp_path, monkeypatch):
    """As kubectl merges $KUBECONFIG: the first current-context counts, and so does the first of two entries of a name."""
    (tmp_path / "far").mkdir()
    _, pem = tls.server(tmp_path / "far" / "server.pem")
    (tmp_path / "far" / "ca.crt").write_text(pem)
    cluster = {"server": "https://10.0.0.2:6443", "certificate-authority": "ca.crt"}
    far = {
        "clusters": [{"name": "far", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "x"}}],
    }
    far |= {
        "contexts": [{"name": "far", "context": {"cluster": "far", "user": "u"}}],
        "current-context": "far",
    }
    (tmp_path / "far" / "config").write_text(json.dumps(far))
    monkeypatch.setenv("KUBECONFIG", f"{written(tmp_path)}:{tmp_path}/none:{tmp_path}/far/config")
    assert kubeconfig.load(Cluster()).context == "prod"
    access = kubeconfig.load(Cluster(context="far"))
    assert len(access.tls.get_ca_certs()) == 1
    assert access.configuration.api_key["BearerToken"] == "Bearer t"


def test_the_first_file_that_is_wrong_is_named(tmp_path, monkeypatch):
    """Of several."""
    (tmp_path / "wrong").write_text("[]")
    monkeypatch.setenv("KUBECONFIG", f"{written(tmp_path)}:{tmp_path}/wrong")
    with pytest.raises(ClusterError) as caught:
        kubeconfig.load(Cluster())
    assert f"{tmp_path}/wrong is not a kubeconfig" in caught.value.message


def test_an_unverified_server_is_one(tmp_path):
    """Only where the file says so."""
    for changes, mode in ((cluster(insecure_skip_tls_verify=True), ssl.CERT_NONE), ({}, ssl.CERT_REQUIRED)):
        access = loaded(tmp_path, **changes)
        assert access.tls.verify_mode == mode


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"args": 5}, "`args` of user `u`'s exec section is not a list"),
        ({"args": "get token"}, "`args` of user `u`'s exec section is not a list"),
        ({"env": {"A": "b"}}, "`env` of user `u`'s exec section is not a list"),
        ({"command": ["aws"]}, "`command` of user `u`'s exec section is not text"),
        ("aws eks get-token", "the exec section of user `u` is not a mapping"),
    ],
)
def test_a_credential_plugin_that_is_written_wrong_is_not_started(tmp_path, run: object, words: str):
    """A sentence names the key."""
    if isinstance(run, dict):
        run = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/none/aws"} | run
    source = written(tmp_path, **user(exec=run))
    assert refused(source).startswith(f"{source}: {words}")


def test_a_file_of_another_user_is_reported_with_the_way_to_read_it(tmp_path, monkeypatch):
    """As k3s' is root's; the copy is the user's alone."""

    def denied(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "my cluster").mkdir()
    source = written(tmp_path / "my cluster")
    monkeypatch.setattr(kubeconfig.localfile, "read", denied)
    said = refused(source)
    assert f"{source} cannot be read as a kubeconfig: permission denied" in said
    assert f"`sudo install -m 600 -o \"$USER\" '{source}' gpus.kubeconfig`" in said


def jwt(**claims: object) -> str:
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({}, claims, {})
    )


@pytest.mark.parametrize(
    ("token", "ended"),
    [
        (jwt(exp=1_600_000_000), "Its token ended on 2020-09-13 12:26 UTC."),
        (jwt(exp=9_600_000_000), ""),
        (jwt(exp="soon"), ""),
        (jwt(), ""),
        ("opaque", ""),
        ("a.b.c", ""),
    ],
)
def test_a_token_that_has_ended_is_known(tmp_path, token: str, ended: str):
    """The API server decides: it is said only where that one does not accept it."""
    access = loaded(tmp_path, **user(token=token))
    assert access.ended == ended
    hint = refusal.status_error(access, {"code": 401, "message": "Unauthorized"}).hint
    assert hint.startswith(ended or "Those of context `prod`")


def test_a_client_certificate_that_has_ended_is_known(tmp_path, monkeypatch):
    """kubeadm's ends after a year."""

    class Later(datetime):
        at = 2099

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Later":
            return cls(cls.at, 1, 1, tzinfo=tz)

    _, pem = tls.server(tmp_path / "client.pem")
    key = (tmp_path / "client.pem").read_text()
    keys = {"client-certificate-data": base64_of(pem), "client-key-data": base64_of(key)}
    source = written(tmp_path, **user(**keys))
    assert kubeconfig.load(Cluster(kubeconfig=source)).ended == ""
    monkeypatch.setattr(kubeconfig, "datetime", Later)
    access = kubeconfig.load(Cluster(kubeconfig=source))
    assert "Its client certificate ended on 20" in access.ended
    with pytest.raises(ClusterError) as caught, refusal.translate_errors(access):
        raise ssl.SSLError(1, "[SSL] EOF")
    assert caught.value.hint.startswith(f"{access.ended} Log in again")
    Later.at = 1999
    assert (
        "Its client certificate is not valid before 20" in kubeconfig.load(Cluster(kubeconfig=source)).ended
    )


def test_a_plugin_that_fails_in_a_terminal_has_written_why(tmp_path, monkeypatch):
    """There it may ask, so it has the terminal for all that it writes."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    said = refused(written(tmp_path, **plugin("/bin/false", mode="IfAvailable")))
    assert "its credential plugin failed: it ended with status 1: its output is above" in said


def test_a_plugin_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    """File, context and command are named, and what to do."""
    monkeypatch.setattr(exec_plugin, "PATIENCE", 2.0)
    os.mkfifo(tmp_path / "held")
    end = os.open(tmp_path / "held", os.O_RDWR)
    source = written(tmp_path, **plugin("/bin/sh", "-c", f"sleep 600 9<>{tmp_path}/held & wait"))
    said = refused(source)
    assert f"{source}: context `prod` has a credential plugin that has not answered within 2 seconds" in said
    assert "sleep 600" in said
    assert "Run it by hand" in said
    os.close(end)
    until = time.monotonic() + 60
    while _is_read(tmp_path / "held"):
        assert time.monotonic() < until, "what it started still runs"
        time.sleep(0.05)


@pytest.mark.parametrize("script", ["yes", "yes >&2", "cat /dev/zero"])
def test_a_plugin_that_prints_without_an_end_is_ended(tmp_path, script: str):
    assert "its credential plugin failed: it prints more than 8 MiB" in refused(
        written(tmp_path, **plugin("/bin/sh", "-c", script))
    )


def test_of_a_plugins_errors_the_end_is_repeated(tmp_path):
    script = "yes x | head -c 100000 >&2; echo the reason >&2; exit 1"
    said = refused(written(tmp_path, **plugin("/bin/sh", "-c", script)))
    assert "the reason" in said
    assert len(said) < 4000


def _is_read(fifo: Path) -> bool:
    """Whether a process reads it."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_a_plugin_that_asks_without_a_terminal_reads_an_end(tmp_path):
    """Not gpunode's own input, which a caller may hold open."""
    read, write = os.pipe()
    mine = os.dup(0)
    os.dup2(read, 0)
    try:
        said = refused(written(tmp_path, **plugin("/bin/sh", "-c", "printf Password: >&2; read -r answer")))
    finally:
        os.dup2(mine, 0)
        for each in (read, write, mine):
            os.close(each)
    assert "failed: it ended with status 1: Password:" in said
    assert "gpunode gives it no input: if it asks for a login, log in first" in said


def test_what_a_plugin_answers_is_used_and_asked_for_again_before_it_ends(tmp_path):
    """A token in each request's header; a relative program is beside its kubeconfig, and learns the cluster where it wants to."""
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    status = {"token": "TOKEN", "expirationTimestamp": "2020-01-01T00:00:00.123456789Z"}
    text = json.dumps(answer | {"status": status})
    script = tmp_path / "login"
    script.write_text(
        f'#!/bin/sh\necho x >>{tmp_path}/asked\nprintf %s "$KUBERNETES_EXEC_INFO" >{tmp_path}/info\n'
        f"echo '{text}' | sed s/TOKEN/\"$WHO$(wc -l <{tmp_path}/asked | tr -d ' ')\"/\n"
    )
    script.chmod(0o755)
    changes = plugin("./login")
    users: Any = changes["users"]
    users[0]["user"]["exec"] |= {"env": [{"name": "WHO", "value": "me"}], "provideClusterInfo": True}
    access = loaded(tmp_path, **changes)
    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://10.0.0.1:6443"}}
    assert access.login._credential.token == "me1"
    assert access.login.renew().token == "me2"


def clock(monkeypatch) -> list[datetime]:
    """The time that plugins' answers are judged by."""
    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return now[0]  # type: ignore[return-value]

    monkeypatch.setattr(exec_plugin, "datetime", Clock)
    return now


@pytest.mark.parametrize(
    ("left", "passed", "asked"),
    [(3600, 3000, 1), (3600, 3301, 2), (240, 100, 1), (240, 121, 2), (-5, 0, 2)],
)
def test_a_token_is_kept_for_half_of_its_time_at_least(
    tmp_path, monkeypatch, left: int, passed: int, asked: int
):
    """Five minutes before its end there is another; one that lives for less is not asked for with every request."""
    now = clock(monkeypatch)
    start = now[0]
    run: Any = answering(token="t", expirationTimestamp=(start + timedelta(seconds=left)).isoformat())
    section = run["users"][0]["user"]["exec"]
    script = f'echo >>{tmp_path}/asked; echo "$0"'
    section |= {"command": "/bin/sh", "args": ["-c", script, *section["args"]]}
    access = loaded(tmp_path, **run)
    now[0] += timedelta(seconds=passed)
    access.login.renew()
    assert len((tmp_path / "asked").read_text().splitlines()) == asked


def test_what_a_plugin_answered_holds_to_its_end_where_it_has_no_other(tmp_path, monkeypatch):
    """Nothing of a run fails before that: it is asked again meanwhile."""
    now = clock(monkeypatch)
    first = {"token": "t", "expirationTimestamp": (now[0] + timedelta(seconds=240)).isoformat()}
    login = loaded(tmp_path, **answering_in_turn(tmp_path, first)).login
    assert login is not None
    for passed, asked in ((121, 2), (30, 2), (30, 3)):
        now[0] += timedelta(seconds=passed)
        assert login.renew().token == "t"
        assert len((tmp_path / "asked").read_text().splitlines()) == asked
    with pytest.raises(ClusterError, match="its credential plugin failed"):
        login.renew(refused=login.renew())
    now[0] += timedelta(seconds=60)
    with pytest.raises(ClusterError, match="its credential plugin failed"):
        login.renew()


def test_a_plugin_that_fails_is_waited_for_once():
    """By all threads that want its answer."""
    waiting, asked = threading.Barrier(3), list[object]()

    class Hung:
        tls = valid = None

        def renew(self, _refused: object = None) -> None:
            asked.append(self)
            if len(asked) == 1:
                waiting.wait(60)
            raise ClusterError("hung")

    class Both:
        tls, configuration, known = None, configuration(), Hung()

        @property
        def login(self) -> Hung:
            threading.Thread(target=waiting.wait, args=(60,), daemon=True).start()
            return self.known

    connection: Any = Connection(Both())
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(connection.send, "GET", "/", {}, None, "", 1.0) for _ in range(2)]
        assert [str(each.exception()) for each in made] == ["hung", "hung"]
    assert len(asked) == 1


@pytest.mark.parametrize("ends", [None, timedelta(seconds=60), timedelta(seconds=-1)])
def test_a_credential_that_holds_is_used_while_another_thread_waits_for_the_next(ends: timedelta | None):
    """So the Lease is renewed in time. One that has ended is of no use."""
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        def run(self) -> exec_plugin.Credential:
            asked.set()
            assert answer.wait(60)
            return new

    old, new = (exec_plugin.Credential(token, "", "", None) for token in ("old", "new"))
    old = replace(old, ends=ends and datetime.now(timezone.utc) + ends)
    plugin: Any = Slow()
    login = exec_plugin.Login(plugin, old, None, None)
    access: Any = SimpleNamespace(tls=None, configuration=configuration(), login=login)
    connection: Any = Connection(access)
    with ThreadPoolExecutor(2) as pool:
        renewing = pool.submit(connection._credential, refused=old)
        assert asked.wait(60)
        if ends == timedelta(seconds=-1):
            waiting = pool.submit(connection._credential)
            answer.set()
            assert waiting.result().token == "new"
        else:
            assert connection._credential().token == "old"
            answer.set()
        assert renewing.result().token == "new"


def test_what_a_plugin_answers_is_a_secret():
    assert "hunter2" not in repr(exec_plugin.Credential("hunter2", "", "hunter2", None))


def test_a_plugin_that_answers_a_token_and_a_certificate_gives_both(tmp_path):
    """A proxy before the API server may want the certificate."""
    _, pem = tls.server(tmp_path / "client.pem")
    key = (tmp_path / "client.pem").read_text()
    status = {"token": "t", "clientCertificateData": pem, "clientKeyData": key}
    access = loaded(tmp_path, **answering(**status))
    assert access.tls is not None
    assert access.login.renew().token == "t"


def test_a_plugin_that_fails_without_a_word_is_told_so(tmp_path):
    said = refused(written(tmp_path, **plugin("/bin/false")))
    assert "it ended with status 1. gpunode gives it no input" in said


def test_what_a_plugin_prints_may_be_no_text(tmp_path):
    """It is told as any other answer that is none."""
    source = written(tmp_path, **plugin("/bin/sh", "-c", r"printf '\377'"))
    assert "it did not print an ExecCredential" in refused(source)


def test_an_interrupt_ends_the_plugin_too(tmp_path, monkeypatch):
    """It is in a group of its own, which no Ctrl-C reaches."""
    os.mkfifo(tmp_path / "held")
    end = os.open(tmp_path / "held", os.O_RDWR)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exec_plugin, "_read_output", interrupted)
    source = written(tmp_path, **plugin("/bin/sh", "-c", f"exec sleep 600 9<>{tmp_path}/held"))
    with pytest.raises(KeyboardInterrupt):
        kubeconfig.load(Cluster(kubeconfig=source))
    os.close(end)
    assert not _is_read(tmp_path / "held")


def test_a_certificate_that_a_plugin_answers_is_the_clients(tmp_path):
    """In no file afterwards."""
    _, pem = tls.server(tmp_path / "client.pem")
    key = (tmp_path / "client.pem").read_text()
    source = written(tmp_path, **answering(clientCertificateData=pem, clientKeyData=key))
    assert kubeconfig.load(Cluster(kubeconfig=source)).tls is not None
    with pytest.raises(ClusterError, match="the client certificate is no certificate in PEM"):
        loaded(tmp_path, **answering(clientCertificateData="x", clientKeyData="y"))


def answering_in_turn(folder: Path, *statuses: dict[str, str]) -> dict[str, object]:
    """A user whose plugin answers so, another each time; `asked` has a line for each."""
    for number, status in enumerate(statuses, 1):
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (folder / f"{number}.json").write_text(json.dumps(answer))
    return plugin("/bin/sh", "-c", f'cd {folder}; echo >>asked; cat "$(wc -l <asked | tr -d " ").json"')


class Telling(BaseHTTPRequestHandler):
    """An API server whose version is who asks: certificate and token. It accepts nobody twice where `strict`."""

    protocol_version = "HTTP/1.1"
    strict: ClassVar[bool]
    seen: ClassVar[list[str]]

    def do_GET(self) -> None:
        connection: Any = self.connection
        who = fingerprint(connection.getpeercert(True)) + (self.headers["authorization"] or "")
        accepted = not self.strict or who not in self.seen
        self.seen.append(who)
        data = json.dumps({"gitVersion": who} if accepted else {"code": 401, "message": "Unauthorized"})
        self.send_response(200 if accepted else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())

    def log_message(self, *_: Any) -> None:
        pass


def fingerprint(certificate: bytes | None) -> str:
    return hashlib.sha256(certificate).hexdigest() if certificate else ""


@pytest.mark.parametrize("cause", ["ends", "is refused"])
@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_what_a_plugin_answered_is_renewed_in_a_long_run(tmp_path, kind: str, cause: str):
    """As it ends, and once the API server refuses it; a certificate with connections of its own."""
    (context, authority), *clients = (tls.server(tmp_path / f"{n}.pem") for n in range(3))
    context.verify_mode = ssl.CERT_OPTIONAL
    pems = [pem for _, pem in clients]
    context.load_verify_locations(cadata="".join(pems))
    keys = [(tmp_path / f"{n}.pem").read_text() for n in (1, 2)]
    statuses = [{"token": "t1"}, {"token": "t2"}]
    if kind == "certificate":
        statuses = [
            {"clientCertificateData": pem, "clientKeyData": key} for pem, key in zip(pems, keys, strict=True)
        ]
    if cause == "ends":
        statuses[0]["expirationTimestamp"] = "2020-01-01T00:00:00Z"
    handler = type("Handler", (Telling,), {"strict": cause != "ends", "seen": []})
    server = ThreadingHTTPServer((tls.ADDRESS, 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"https://{tls.ADDRESS}:{server.server_port}"
    trust = cluster(address, certificate_authority_data=base64_of(authority))
    changes = answering_in_turn(tmp_path, *statuses) | trust
    try:
        api = connect(Cluster(kubeconfig=written(tmp_path, **changes)))
        api.version()
        last = api.version()
        api.close()
    finally:
        server.shutdown()
        server.server_close()
    wanted = fingerprint(ssl.PEM_cert_to_DER_cert(pems[1])) if kind == "certificate" else "Bearer t2"
    assert last == wanted
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_a_renewed_certificate_that_is_none_is_the_plugins_fault(tmp_path):
    """It is named with its command."""
    _, pem = tls.server(tmp_path / "client.pem")
    good = {"clientCertificateData": pem, "clientKeyData": (tmp_path / "client.pem").read_text()}
    changes = answering_in_turn(tmp_path, good, {"clientCertificateData": "x", "clientKeyData": "y"})
    login = loaded(tmp_path, **changes).login
    assert login is not None
    with pytest.raises(ClusterError, match="a certificate or key of its answer cannot be read"):
        login.renew(refused=login.renew())


def test_a_plugin_gets_the_bytes_of_an_authority_in_a_file(tmp_path):
    """As client-go gives them: never the file's name. What the kubeconfig has as data counts before a file."""
    script = f'printf %s "$KUBERNETES_EXEC_INFO" >{tmp_path}/info; echo "$0"'
    changes = answering(token="t")
    users: Any = changes["users"]
    answer = users[0]["user"]["exec"]["args"][0]
    users[0]["user"]["exec"] |= {
        "command": "/bin/sh",
        "args": ["-c", script, answer],
        "provideClusterInfo": True,
    }
    _, pem = tls.server(tmp_path / "server.pem")
    (tmp_path / "ca.crt").write_text(pem)
    server = {"server": "https://10.0.0.1:6443"}
    for cluster, data in (
        ({"certificate-authority": "ca.crt"}, pem),
        ({"certificate-authority": "away.crt", "certificate-authority-data": base64_of(pem)}, pem),
    ):
        changes["clusters"] = [{"name": "c", "cluster": {**server, **cluster}}]
        loaded(tmp_path, **changes)
        spec = json.loads((tmp_path / "info").read_text())["spec"]
        assert spec["cluster"] == {**server, "certificate-authority-data": base64_of(data)}
    changes["clusters"] = [{"name": "c", "cluster": {**server, "certificate-authority": "away.crt"}}]
    assert "cluster `c`: its certificate-authority away.crt cannot be read: no such file" in refused(
        written(tmp_path, **changes)
    )


def test_a_proxy_that_is_away_is_not_the_api_server(tmp_path):
    """It is named as what it is, with where it is set."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port = each.getsockname()[1]
    api = connect(Cluster(kubeconfig=written(tmp_path, **cluster(proxy_url=f"http://127.0.0.1:{port}"))))
    with pytest.raises(ClusterError) as caught:
        api.version()
    assert "the proxy of context `prod` leads to no Kubernetes API" in caught.value.message
    assert "proxy-url" in caught.value.hint
