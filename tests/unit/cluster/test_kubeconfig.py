"""What is wrong with a kubeconfig is said in words, before anything is contacted."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path

import pytest

from gpunode.cluster.api import kubeconfig
from gpunode.errors import ClusterError
from gpunode.model import Cluster
from gpunode.sim.apiserver import tls

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


def plugin(command: str, *arguments: str) -> dict[str, object]:
    """A user with a credential plugin."""
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": arguments}
    return {"users": [{"name": "u", "user": {"exec": {**run, "interactiveMode": "Never"}}}]}


def proxied(address: str) -> dict[str, object]:
    """A cluster behind a proxy."""
    return {"clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "proxy-url": address}}]}


def refused(source: str, context: str | None = None) -> str:
    with pytest.raises(ClusterError) as caught:
        kubeconfig.load(Cluster(kubeconfig=source, context=context))
    return str(caught.value)


def test_the_current_context_is_used_unless_another_is_named(tmp_path: Path) -> None:
    """`cluster.context` wins over the file's current-context."""
    source = written(tmp_path)
    assert kubeconfig.load(Cluster(kubeconfig=source)).context == "prod"
    assert kubeconfig.load(Cluster(kubeconfig=source, context="test")).context == "test"


def test_the_environment_names_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG may name several files; those that do not exist are passed over."""
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{written(tmp_path)}")
    assert kubeconfig.load(Cluster()).server == "https://10.0.0.1:6443"


def test_a_missing_kubeconfig_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """The path, and the two ways to name another."""
    said = refused(str(tmp_path / "none"))
    assert f"no kubeconfig at {tmp_path}/none" in said
    assert "cluster.kubeconfig" in said


def test_an_unknown_context_lists_those_there_are(tmp_path: Path) -> None:
    """A typing error is mended by looking at the list."""
    said = refused(written(tmp_path), "prdo")
    assert "has no context `prdo`" in said
    assert "prod, test" in said


def test_a_file_that_is_not_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    """File and line, so that an editor can go there."""
    (tmp_path / "config").write_text("a: 1\nb: [\n")
    assert f"{tmp_path}/config:3: not YAML" in refused(str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"current-context": ""}, "has no current-context"),
        ({"current-context": "", "contexts": []}, "It has no contexts at all: is it a kubeconfig?"),
        ({"users": []}, "names the user `u`, who is not among its users"),
        ({"users": [{"name": False, "user": {}}]}, "has the name False, which is not text"),
        ({"clusters": []}, "Expected object with name c in"),
        ({"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1:6443"}}]}, "is not a URL"),
        (
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://h", "certificate-authority": "/none.crt"}}
                ]
            },
            "File does not exist: /none.crt",
        ),
        (
            {
                "users": [
                    {
                        "name": "u",
                        "user": {
                            "exec": {
                                "apiVersion": "client.authentication.k8s.io/v1",
                                "command": "/bin/false",
                                "interactiveMode": "Never",
                            }
                        },
                    }
                ]
            },
            "the credential plugin of context `prod` failed",
        ),
        (plugin("/none/aws"), "failed: [Errno 2] No such file or directory: '/none/aws'"),
        (
            plugin("/bin/echo", "hello"),
            "the credential plugin of context `prod` failed: exec: failed to decode",
        ),
        (plugin("/bin/echo", '{"kind": "ExecCredential", "status": {}}'), "the credential plugin of context"),
        (
            {"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]},
            "an auth-provider that cannot",
        ),
        ({"users": [{"name": "u", "user": {"tokenFile": "/none"}}]}, "no such file or directory"),
        (proxied("socks5://proxy:1080"), "is not that of an HTTP proxy: `socks5://proxy:1080`"),
        (proxied("proxy"), "is not that of an HTTP proxy: `proxy`"),
    ],
)
def test_a_kubeconfig_with_holes_is_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    """Each hole is named: no context, no user, a name that YAML read otherwise, no server, files that are not there."""
    assert words in refused(written(tmp_path, **changes))


def test_an_http_proxy_is_gone_through(tmp_path: Path) -> None:
    """As kubectl goes."""
    access = kubeconfig.load(Cluster(kubeconfig=written(tmp_path, **proxied("http://proxy:3128"))))
    assert access.configuration.proxy == "http://proxy:3128"


def test_a_folder_or_a_binary_is_no_kubeconfig(tmp_path: Path) -> None:
    """A path that is not a text file at all."""
    assert "is a directory" in refused(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\x7fELF\xd0\x00")
    assert "cannot be read as a kubeconfig" in refused(str(tmp_path / "binary"))
    (tmp_path / "text").write_text("hello")
    assert "is not a kubeconfig" in refused(str(tmp_path / "text"))


def test_keys_in_a_kubeconfig_are_left_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates and keys that stand in the file are read, and nothing of them lies in $TMPDIR afterwards.

    Not for the second connection of a process either: the client library keeps the names of files that are gone.
    """
    _, authority = tls.server(tmp_path / "server.pem")
    secret = (tmp_path / "server.pem").read_text()
    source = written(
        tmp_path,
        clusters=[
            {
                "name": "c",
                "cluster": {
                    "server": "https://10.0.0.1:6443",
                    "certificate-authority-data": base64_of(authority),
                },
            }
        ],
        users=[
            {
                "name": "u",
                "user": {
                    "client-certificate-data": base64_of(authority),
                    "client-key-data": base64_of(secret),
                },
            }
        ],
    )
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for _ in range(2):
        access = kubeconfig.load(Cluster(kubeconfig=source))
        assert access.tls is not None
        assert len(access.tls.get_ca_certs()) == 1
        assert list((tmp_path / "temporary").iterdir()) == []


def test_a_certificate_that_is_none_is_told_as_such(tmp_path: Path) -> None:
    """Before anything is contacted."""
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": base64_of("none")}
    said = refused(written(tmp_path, clusters=[{"name": "c", "cluster": cluster}]))
    assert "context `prod` cannot be used: a certificate or key of it cannot be read: NO_CERTIFICATE" in said


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
