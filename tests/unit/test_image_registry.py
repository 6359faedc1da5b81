"""`gpunode plugin image --base HOST/NAME@sha256:…`: a registry of this machine, over TLS, with tokens and redirects."""

import base64
import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from gpunode.agent.redaction import redact
from gpunode.errors import UsageError
from gpunode.links.plugin.image import registry, write
from gpunode.links.plugin.image.registry import Login, login
from gpunode.sim.apiserver import tls
from tests.unit.test_image import DEBIAN, NAME, Files, _pip, folder, oci

__all__ = ["_pip"]  # a fixture
HIDDEN = "/v2/locked/"
REFRESH = "lasts-long"
LOGIN = base64.b64encode(b"ada:hunter2").decode()


class Registry(ThreadingHTTPServer):
    """Has one image; gives a token to everybody, and blobs from a storage that may not see the token."""

    files: Files
    asked: list[tuple[str, str]]  # path, Authorization
    login = ""  # which alone gets a token, or (`basic`) the image
    basic = False
    more = ""  # of the address where tokens are
    drip = ""  # what is sent byte by byte: the part of a path
    asking = False  # the storage asks for a login, too

    @property
    def host(self) -> str:
        return f"{tls.ADDRESS}:{self.server_port}"

    def reference(self) -> str:
        (entry,) = json.loads(self.files["index.json"])["manifests"]
        return f"{self.host}/base/python@{entry['digest']}"


class Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "")
        self.server.asked.append((self.path, token))
        if (
            self.path.startswith(f"/token{self.server.more or '?'}")
            and "service=test&scope=repository" in self.path
            and token == self.server.login
        ):
            return self._send(200, b'{"token": "for-everybody"}')
        if self.path.startswith("/storage/") and self.server.asking:
            realm = f'Bearer realm="https://{self.server.host}/elsewhere"'
            return self._send(401, b"", **{"WWW-Authenticate": realm})
        if self.path.startswith("/storage/"):
            return self._blob(self.path.rsplit("/", 1)[1].removesuffix("?Signature=x"))
        if self.server.basic and token != self.server.login:
            return self._send(401, b"", **{"WWW-Authenticate": 'Basic realm="x"'})
        if self.path.startswith(HIDDEN) or (not self.server.basic and token != "Bearer for-everybody"):
            realm = f'Bearer realm="https://{self.server.host}/token{self.server.more}",service="test",scope="repository:x:pull"'
            return self._send(401, b"", **{"WWW-Authenticate": realm})
        kind, which = self.path.split("/")[-2:]
        if kind == "blobs":
            return self._send(307, b"", Location=f"https://{self.server.host}/storage/{which}?Signature=x")
        (entry,) = json.loads(self.server.files["index.json"])["manifests"]
        return self._blob(entry["digest"] if which == "3.11" else which)

    def do_POST(self) -> None:
        """OAuth 2: a token for a token."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        wanted = {"grant_type": ["refresh_token"], "refresh_token": [REFRESH], "service": ["test"]}
        right = self.path == f"/token{self.server.more}" and wanted.items() <= form.items()
        self._send(200 if right else 401, b'{"access_token": "for-everybody"}' if right else b"")

    def _blob(self, digest: str) -> None:
        blob = self.server.files.get("blobs/" + digest.replace(":", "/"))
        self._send(200 if blob is not None else 404, blob or b"")

    def _send(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not (self.server.drip and self.server.drip in self.path):
            self.wfile.write(data)
            return
        with contextlib.suppress(OSError):
            for byte in data * 100:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Registry]:
    context, certificate = tls.server(tmp_path / "key.pem")
    (tmp_path / "ca.pem").write_text(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("no_proxy", "*")
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with Registry((tls.ADDRESS, 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.files, server.asked = oci(DEBIAN, archs=("amd64", "arm64")), []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def refusal(reference: str, to: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        write(reference, to / "plugin.tar", name=NAME, arch="amd64")
    assert not (to / "plugin.tar").exists()
    return caught.value


def test_a_base_of_a_registry_makes_the_bytes_that_its_archive_makes(server: Registry, tmp_path):
    """Of several platforms only the one is fetched; the token is shown to the registry alone."""
    same = str(folder(tmp_path / "layout", server.files))

    written = write(server.reference(), tmp_path / "fetched.tar", name=NAME, arch="arm64")

    write(same, tmp_path / "saved.tar", name=NAME, arch="arm64")
    assert written.platform == "linux/arm64"
    assert (tmp_path / "fetched.tar").read_bytes() == (tmp_path / "saved.tar").read_bytes()
    assert len([path for path, token in server.asked if "/manifests/" in path and token]) == 2
    assert [token for path, token in server.asked if path.startswith(("/storage/", "/token"))] == ["", "", ""]


def test_the_address_of_tokens_may_have_a_query(server: Registry, tmp_path):
    server.more = "?account=any"

    assert "can be another image tomorrow" in refusal(f"{server.host}/base/python:3.11", tmp_path).message
    assert server.asked[1][0].startswith("/token?account=any&service=test&")


def test_an_address_is_told_without_its_query(server: Registry, tmp_path):
    """A registry's storage is asked by addresses that are signed."""
    for name in [each for each, data in server.files.items() if b'"digest"' not in data]:
        del server.files[name]

    said = refusal(server.reference(), tmp_path).message
    assert "/storage/" in said
    assert "Signature" not in said


def test_a_tag_is_answered_by_its_digest(server: Registry, tmp_path):
    refused = refusal(f"{server.host}/base/python:3.11", tmp_path)

    assert "can be another image tomorrow" in refused.message
    assert refused.hint == f"Today it is --base {server.reference()}"


@pytest.mark.parametrize("basic", [False, True])
@pytest.mark.parametrize("place", ["docker", "podman", "helper", "store"])
def test_the_login_of_docker_or_podman_is_used(
    server: Registry, tmp_path, monkeypatch, place: str, basic: bool
):
    """From their file, or by the program that it names; the storage does not see it."""
    server.login, server.basic = f"Basic {LOGIN}", basic
    assert "answers 401" in refusal(server.reference(), tmp_path).message
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "docker-credential-test"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $(cat)" = "get {server.host}" ] && echo \'{{"Username": "ada", "Secret": "hunter2"}}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    known = {
        "helper": {"credHelpers": {server.host: "test"}},
        "store": {"credsStore": "test", "auths": {server.host: {}}},
    }.get(place, {"auths": {server.host: {"auth": LOGIN}}})
    file = tmp_path / "docker/config.json"
    if place == "podman":
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
        file = tmp_path / "auth.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(known))
    server.asked.clear()

    written = write(server.reference(), tmp_path / "fetched.tar", name=NAME, arch="arm64")

    assert written.platform == "linux/arm64"
    assert {right for path, right in server.asked if path.startswith("/storage/")} == {""}


@pytest.mark.parametrize("place", ["docker", "helper"])
def test_an_identity_token_gets_the_image(server: Registry, tmp_path, monkeypatch, place: str):
    """As `docker login` keeps it for registries that give one for the password."""
    server.login = "nobody's"
    (tmp_path / "docker").mkdir()
    auth = base64.b64encode(b"ada:").decode()
    known: object = {"auths": {server.host: {"auth": auth, "identitytoken": REFRESH}}}
    if place == "helper":
        program = tmp_path / "docker-credential-test"
        program.write_text(f'#!/bin/sh\necho \'{{"Username": "<token>", "Secret": "{REFRESH}"}}\'\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        known = {"credHelpers": {server.host: "test"}}
    (tmp_path / "docker/config.json").write_text(json.dumps(known))

    written = write(server.reference(), tmp_path / "fetched.tar", name=NAME, arch="arm64")

    assert written.platform == "linux/arm64"
    assert REFRESH not in str(server.asked)


def test_the_login_of_the_longest_path_is_used(tmp_path, monkeypatch):
    """`podman login HOST/NAMESPACE` keeps one for a part of a registry (containers-auth.json)."""
    auths = {
        name: {"auth": base64.b64encode(name.encode()).decode()}
        for name in ("r.example", "r.example/a", "r.example/a/b")
    }
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths, "credsStore": "none-there"}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    for image, place in (("a/b/c", "r.example/a/b"), ("a/b", "r.example/a/b"), ("a/c", "r.example/a")):
        credentials = login("r.example", image)
        assert credentials
        assert base64.b64decode(credentials.basic).decode() == place


def test_the_storage_that_a_registry_leads_to_gets_no_login(server: Registry, tmp_path):
    """It may name any address for it."""
    server.login, server.asking = f"Basic {LOGIN}", True
    (tmp_path / "docker").mkdir()
    known = {"auths": {server.host: {"auth": LOGIN}}}
    (tmp_path / "docker/config.json").write_text(json.dumps(known), encoding="utf-8")

    assert "/storage/" in refusal(server.reference(), tmp_path).message
    assert not [path for path, _ in server.asked if path.startswith("/elsewhere")]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"auths": {"HOST": {"auth": "hunter2!"}}}',
        '{"auths": {"HOST": {"auth": 5}}}',
        '{"credsStore": "none-there"}',
        '{"credsStore": "half"}',
    ],
)
def test_a_login_that_cannot_be_read_is_named_and_not_shown(
    server: Registry, tmp_path, monkeypatch, text: str
):
    server.login = f"Basic {LOGIN}"
    (tmp_path / "docker").mkdir()
    program = tmp_path / "docker-credential-half"
    program.write_text('#!/bin/sh\necho \'{"Username": "<token>"}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "docker/config.json").write_text(text.replace("HOST", server.host))

    said = str(refusal(server.reference(), tmp_path))
    assert f"the login for {server.host} cannot be read from {tmp_path}/docker/config.json" in said
    assert "hunter2" not in said


def test_a_place_that_cannot_be_looked_at_has_no_login(server: Registry, tmp_path, monkeypatch):
    """As another user's, whose environment `su` keeps."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/{'x' * 300}")
    written = write(server.reference(), tmp_path / "fetched.tar", name=NAME, arch="arm64")
    assert written.platform == "linux/arm64"


def test_a_login_is_a_secret():
    """In a file's text, and in a header's."""
    for text in (f'{{"auths": {{"a.example": {{"auth": "{LOGIN}"}}}}}}', f"Authorization: Basic {LOGIN}"):
        assert LOGIN not in redact(text)
    assert LOGIN not in repr(Login(LOGIN, Path()))


def test_what_is_damaged_on_its_way_is_refused(server: Registry, tmp_path):
    reference = server.reference()
    layer = max(server.files, key=lambda name: len(server.files[name]))
    server.files[layer] = b"<html>" + server.files[layer][6:]

    assert "is damaged: sha256:" in refusal(reference, tmp_path).message


@pytest.mark.parametrize("slow", ["/token", "/manifests/", "/storage/"])
def test_an_answer_that_drips_ends(server: Registry, tmp_path, monkeypatch, slow: str):
    """A byte now and then is no silence, and no end."""
    server.drip = slow
    monkeypatch.setattr(registry, "WHOLE_SECONDS", 1.0)
    monkeypatch.setattr(registry, "PATIENCE", 0.5)
    start = time.monotonic()
    words = " bytes came in " if slow == "/storage/" else "no whole answer within 1 s"
    assert words in str(refusal(server.reference(), tmp_path))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"base/python@sha256:{'0' * 64}", "answers 404 Not Found"),
        (f"locked/python@sha256:{'0' * 64}", "Log in with `docker login`"),
    ],
)
def test_an_image_that_nobody_gets_is_named(server: Registry, tmp_path, name: str, words: str):
    refused = refusal(f"{server.host}/{name}", tmp_path)
    assert str(refused).startswith(f"{server.host}/{name} cannot be fetched")
    assert words in str(refused)


def test_an_answer_that_is_no_image_is_named(server: Registry, tmp_path):
    page = b"<html>log in here</html>"
    server.files[f"blobs/sha256/{hashlib.sha256(page).hexdigest()}"] = page

    refused = refusal(f"{server.host}/x@sha256:{hashlib.sha256(page).hexdigest()}", tmp_path)

    assert "the registry's answer is no image" in refused.message


def test_a_registry_that_nobody_vouches_for_is_not_asked(server: Registry, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")

    assert "certificate verify failed" in refusal(server.reference(), tmp_path).message
    assert server.asked == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("registry.example.com/python:3.11", "python"),
        ("localhost:5000/a/b", "a/b"),
        ("python:3.11-slim", None),
        ("library/python", None),
        ("/srv/python.tar", None),
        ("./images/python.tar", None),
    ],
)
def test_only_what_names_a_registry_is_a_reference(text: str, name: str | None):
    reference = registry.reference(text)
    assert (reference and reference.name) == name


@pytest.mark.parametrize("host", ["docker.io", "index.docker.io"])
@pytest.mark.parametrize("name", ["python", "library/python", "ada/python"])
def test_docker_hub_answers_under_its_registrys_name(
    server: Registry, tmp_path, monkeypatch, host: str, name: str
):
    """A single name is in `library/` there. The reference stays as it was written."""
    assert set(registry.HUBS.values()) == {"registry-1.docker.io"}
    monkeypatch.setitem(registry.HUBS, host, server.host)
    digest = server.reference().partition("@")[2]

    assert refusal(f"{host}/{name}:3.11", tmp_path).hint == f"Today it is --base {host}/{name}@{digest}"

    write(f"{host}/{name}@{digest}", tmp_path / "fetched.tar", name=NAME, arch="arm64")
    images = {path.rpartition("/")[0] for path, _ in server.asked if "/manifests/" in path}
    assert images == {f"/v2/{name if '/' in name else 'library/python'}/manifests"}


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "docker.io/ada"])
@pytest.mark.parametrize("place", ["auths", "credHelpers", "credsStore"])
def test_the_login_for_docker_hub_is_that_of_docker_or_podman(tmp_path, monkeypatch, place: str, key: str):
    if key.endswith("/ada") and place != "auths":
        return  # programs know no paths
    program = tmp_path / "docker-credential-test"
    program.write_text(
        f'#!/bin/sh\n[ "$(cat)" = {key} ] && echo \'{{"Username": "ada", "Secret": "hunter2"}}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    known = {"auths": {key: {"auth": LOGIN}}, "credHelpers": {key: "test"}, "credsStore": "test"}
    (tmp_path / "auth.json").write_text(json.dumps({place: known[place]}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    for host in registry.HUBS:
        credentials = login(host, "ada/python")
        assert credentials
        assert credentials.basic == LOGIN


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("docker://images.example/py:3", "--base images.example/py:3, with @sha256:"),
        ("https://images.example/py", "--base images.example/py, with @sha256:"),
        ("oci-archive:python.tar", "--base python.tar."),
        ("oci:folder", "--base folder."),
    ],
)
def test_a_prefix_of_another_tool_is_answered_by_what_to_write(text: str, instead: str):
    with pytest.raises(UsageError) as caught:
        registry.reference(text)
    assert instead in caught.value.hint


@pytest.mark.parametrize("digest", ["abc", "g" * 64])
def test_half_a_digest_is_not_looked_for_among_files(digest: str):
    with pytest.raises(UsageError, match="has no whole digest"):
        registry.reference(f"registry.example.org/python@sha256:{digest}")
