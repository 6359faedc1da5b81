"""The simulated cluster's API over HTTPS on this machine, for clients with a token."""

import json
import ssl
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from gpunode.sim.apiserver import admission, kubectl
from gpunode.sim.apiserver.queries import watch
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, StatusError, Store, status_error
from gpunode.sim.apiserver.tls import ADDRESS

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3+simulated", "platform": "linux/amd64"}
PLACES = {(kind.api, kind.plural): name for name, kind in KINDS.items()}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
INTO = {"exec", "attach", "portforward"}  # subresources of a pod that enter its containers
PROXY = 10.0  # seconds for a page of a pod
POLL = 0.2  # seconds between two reads of a log that is followed
Configz: TypeAlias = Callable[[str], Object]


class Log(NamedTuple):
    """The output of one life of a container, and whether it has ended."""

    path: Path
    over: Callable[[], bool]


# The log of a container, by pod, container, and whether of its previous life. Raises StatusError.
Logs: TypeAlias = Callable[[Object, str, bool], Log]


class ApiServer:
    """Serves until it is closed. `users`: names by token. `admin` may do anything, service accounts what RBAC allows."""

    def __init__(
        self, store: Store, users: dict[str, str], logs: Logs, configz: Configz, secure: ssl.SSLContext
    ) -> None:
        self.store, self.users, self.logs, self.configz = store, users, logs, configz
        self._server = _Server((ADDRESS, 0), type("Handler", (_Handler,), {"server_api": self}))
        # The TLS handshake runs in the connection's own thread: a silent client does not delay others.
        self._server.socket = secure.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://{ADDRESS}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # kept connections are idle threads that end with the process
    request_queue_size = 128

    def handle_error(self, _request: Any, _address: Any) -> None:
        """Not logged: clients that disconnect or do not speak TLS."""


class _Handler(BaseHTTPRequestHandler):
    server_api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._route(body)
        except StatusError as no:
            self._send(no.code, no.status)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"the body or query of the request could not be understood: {error!r}"
            self._send(400, status_error(400, "BadRequest", message).status)
        except OSError:
            self.close_connection = True  # the client is gone

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 (the names of http.server)

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        user = self._user()
        if parts == ["version"]:
            self._send(200, VERSION)
            return
        if parts[0] in {"healthz", "livez", "readyz"}:
            self._send(200, "ok")
            return
        if parts[0] in {"api", "apis", "openapi"} and (known := kubectl.discover(parts)):
            self._send(200, known)
            return
        if self.command == "POST" and url.path == REVIEWS:
            self._send(201, self._review(user, self._parse(body)))
            return
        if self.command == "POST" and url.path == WHO:
            self._send(201, {**self._parse(body), "status": {"userInfo": {"username": user}}})
            return
        api, rest = ("v1", parts[2:]) if parts[:2] == ["api", "v1"] else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if parts[0] not in {"api", "apis"} or not rest or (api, rest[0]) not in PLACES:
            self._send(404, "404 page not found\n")
            return
        of = Resources(self.server_api.store, PLACES[api, rest[0]], namespace)
        name, part = [*rest[1:], "", ""][:2]
        self._allow(user, of, name, part, query)
        if part == "proxy" and of.kind in {"Pod", "Node"}:
            self._proxy(of, name, "/".join(rest[3:]))
        elif part:
            self._part(of, name, part, query, body)
        elif self.command == "GET" and not name and query.get("watch") in {"1", "true"}:
            self._stream(of, query)
        else:
            if of.group == admission.RBAC and user != "admin" and self.command in {"POST", "PUT", "PATCH"}:
                admission.check_grant(of.store, of.full, of.namespace, user, self._parse(body))
            code, answer = self._resource(of, name, query, body)
            self._send(code, answer)

    def _part(self, of: Resources, name: str, part: str, query: dict[str, str], body: bytes) -> None:
        """Answer a request for a subresource of a pod, or for a node's status."""
        if part == "log" and of.kind == "Pod" and self.command == "GET":
            self._log(of.get(name), query)
        elif part == "eviction" and of.kind == "Pod" and self.command == "POST":
            admission.check_eviction(self.server_api.store, of.get(name))
            of.delete(name, self._parse(body).get("deleteOptions") or {}, query)
            self._send(
                201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            )
        elif part == "status" and of.kind == "Node" and self.command == "PATCH":
            content = (self.headers.get("Content-Type") or "").partition(";")[0]
            # As the real one: without a field manager the User-Agent counts.
            query = {"fieldManager": self.headers.get("User-Agent", "").partition("/")[0], **query}
            self._send(200, of.patch(name, self._parse(body), content, query)[0])
        elif part in INTO and of.kind == "Pod":
            of.get(name)
            why = "simulated containers are processes of this computer: exec is not possible"
            raise status_error(501, "NotImplemented", f"{part}: {why}; `kubectl logs` shows what it wrote")
        else:
            self._send(404, "404 page not found\n")

    def _proxy(self, of: Resources, name: str, page: str) -> None:
        """A page of a pod, `name:port`, or of a node's kubelet, which has but one."""
        if of.kind == "Node":
            return self._send(200, self.server_api.configz(of.get(name)["metadata"]["name"]))
        pod, _, port = name.partition(":")
        address = of.get(pod).get("status", {}).get("podIP")
        connection = HTTPConnection(address or "", int(port or 80), timeout=PROXY)
        try:
            connection.request("GET", f"/{page}")
            answer = connection.getresponse()
            self._send(answer.status, answer.read().decode(errors="replace"))
        except OSError as error:
            message = f"error trying to reach service: {error}"
            raise status_error(503, "ServiceUnavailable", message) from None
        finally:
            connection.close()

    def _parse(self, body: bytes) -> Any:
        if body.startswith(kubectl.MAGIC):
            return kubectl.decode(body)
        return json.loads(body) if body else {}

    def _resource(self, of: Resources, name: str, query: dict[str, str], body: bytes) -> tuple[int, Object]:
        sent = self._parse(body)
        if self.command == "GET":
            return 200, of.get(name) if name else of.list(query)
        if self.command == "POST" and not name:
            return 201, of.create(sent, query)
        if self.command == "PUT" and name:
            return 200, of.replace(name, sent, query)
        if self.command == "PATCH" and name:
            content = (self.headers.get("Content-Type") or "").partition(";")[0]
            item, new = of.patch(name, sent, content, query)
            return (201 if new else 200), item
        return 200, of.delete(name, sent, query)

    def _user(self) -> str:
        """The user of the token; the anonymous one without a token. Raises StatusError for an unknown token."""
        login = self.headers.get("Authorization", "")
        if not login:
            return "system:anonymous"
        user = self.server_api.users.get(login.removeprefix("Bearer "))
        if user is None:
            raise status_error(401, "Unauthorized", "Unauthorized")
        return user

    def _allow(self, user: str, of: Resources, name: str, part: str, query: dict[str, str]) -> None:
        verb = VERBS[self.command]
        if verb == "get" and not name:
            verb = "watch" if query.get("watch") else "list"
        store = self.server_api.store
        plural = f"{of.plural}/{part}" if part else of.plural
        if user == "admin" or admission.allows(store, user, verb, of.group, plural, of.namespace):
            return
        called = f'{of.full} "{name}"' if name else of.full
        where = f'in the namespace "{of.namespace}"' if of.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {verb} resource "{plural}" in API group "{of.group}" {where}'
        raise status_error(403, "Forbidden", f"{called} is forbidden: {why}", name=name, kind=of.full)

    def _review(self, user: str, review: Object) -> Object:
        asked = review["spec"]["resourceAttributes"]
        part = asked.get("subresource")
        plural = f"{asked['resource']}/{part}" if part else asked["resource"]
        place = (asked["verb"], asked.get("group", ""), plural, asked.get("namespace", ""))
        allowed = user == "admin" or admission.allows(self.server_api.store, user, *place)
        return {**review, "status": {"allowed": allowed}}

    def _log(self, pod: Object, query: dict[str, str]) -> None:
        containers = [container["name"] for container in pod["spec"]["containers"]]
        container = query.get("container") or containers[0]
        if container not in containers:
            name = pod["metadata"]["name"]
            raise status_error(400, "BadRequest", f"container {container} is not valid for pod {name}")
        log = self.server_api.logs(pod, container, query.get("previous") == "true")
        with log.path.open("rb") as file:
            text = file.read()
            if "tailLines" in query:
                count = int(query["tailLines"])
                text = b"".join(text.splitlines(keepends=True)[-count:]) if count else b""
            text = text[: int(query.get("limitBytes") or len(text))]
            if query.get("follow") != "true":
                self._send(200, text.decode(errors="replace"))
                return
            self._chunks("text/plain")
            self._chunk(text)
            over = False
            while not over:
                time.sleep(POLL)
                over = log.over()
                self._chunk(file.read())  # read after its end, so that its last output is included
            self._chunk(b"", last=True)

    def _chunks(self, content: str) -> None:
        """Begin an answer of unknown length."""
        self.send_response(200)
        self.send_header("Content-Type", content)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def _chunk(self, data: bytes, *, last: bool = False) -> None:
        if data or last:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _stream(self, of: Resources, query: dict[str, str]) -> None:
        events = watch(of.store, of.kind, of.namespace, query)
        self._chunks("application/json")  # at once: the watching client waits for the headers
        for event in events:
            self._chunk(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        self._chunk(b"", last=True)

    def _send(self, code: int, body: Object | str) -> None:
        plain = isinstance(body, str)
        data = (body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
