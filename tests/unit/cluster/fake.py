"""A small Kubernetes API over HTTP: a store with watches, server-side apply of labels and fields, and faults.

It knows nothing of scheduling or kubelets; tests say with `react` what happens after a change.
"""

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from urllib3 import HTTPResponse

from gpunode.cluster.api.kinds import KINDS as OURS
from gpunode.cluster.api.kinds import OLDER, Kind
from gpunode.sim.apiserver.patches import merge_patch
from gpunode.sim.apiserver.queries import selector

Object = dict[str, Any]
# What gpunode reads by name, and what others may have, of Kubernetes' own groups and of others.
KINDS = {
    **OURS,
    "Secret": Kind("v1", "secrets", True),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims", True),
    "Deployment": Kind("apps/v1", "deployments", True),
    "CronJob": Kind("batch/v1", "cronjobs", True),
    "PodMetrics": Kind("metrics.k8s.io/v1beta1", "podmetrics", True),
    "TrainJob": Kind("ml.example.org/v1", "trainjobs", True),
    "TrainRuntime": Kind("ml.example.org/v1", "trainruntimes", False),
}
KIND_OF = {kind.plural: name for name, kind in KINDS.items()}
ANY = ["create", "delete", "get", "list", "patch", "update", "watch"]
VERBS = {"PodMetrics": ["get", "list"]}  # of kinds that not ANY is for


def path(kind: str, namespace: str | None = None, name: str = "") -> str:
    """Of an object of any of these kinds."""
    return KINDS[kind].path(namespace, name)


# The minor that has a version of a group first, of those that not every one has.
SINCE = {"node.k8s.io/v1": 20, "node.k8s.io/v1beta1": 14, "apps/v1": 9, "apps/v1beta2": 8, "policy/v1": 21,
         "coordination.k8s.io/v1": 14, "coordination.k8s.io/v1beta1": 12,
         "resource.k8s.io/v1": 34, "resource.k8s.io/v1beta2": 33, "resource.k8s.io/v1beta1": 32,
         "resource.k8s.io/v1alpha3": 31}  # fmt: skip
UNTIL = {"resource.k8s.io": 34}  # the minor without older versions of a group, where it is not 22
NEWER = {old.api: KINDS[name].api for name, every in OLDER.items() for old in every}


def discovered(where: str, minor: int = 36) -> Object | None:
    """What the API has, as it tells that itself."""
    if where == "/apis":
        groups: Object = {}
        every = [kind.api for kind in KINDS.values() if "/" in kind.api]
        every += [text for text in NEWER if minor < UNTIL.get(text.partition("/")[0], 22)]
        for api in dict.fromkeys(each for each in every if minor >= SINCE.get(each, 0)):
            item = {"groupVersion": api, "version": api.partition("/")[2]}
            groups[api] = {"name": api.partition("/")[0], "versions": [item], "preferredVersion": item}
        return {"kind": "APIGroupList", "groups": list(groups.values())}
    api = where.partition("/api/")[2] or where.partition("/apis/")[2]
    kinds = [(name, kind) for name, kind in KINDS.items() if kind.api == api]
    if not kinds:
        return None
    resources = [
        {
            "name": kind.plural,
            "kind": name,
            "namespaced": kind.namespaced,
            "verbs": VERBS.get(name, ANY),
        }
        for name, kind in kinds
    ]
    part = {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]}
    return {"kind": "APIResourceList", "groupVersion": api, "resources": [*resources, part]}


class Fault(Exception):
    """An answer other than the good one."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body: Object | str = {"kind": "Status", "code": code, "reason": reason, "message": message}


def conflict(field: str) -> Fault:
    """The answer to a server-side apply of a field that another manager set."""
    fault = Fault(409, "Conflict", f"Apply failed with 1 conflict: {field}")
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "other"', "field": field}
    assert isinstance(fault.body, dict)
    fault.body["details"] = {"causes": [cause]}
    return fault


def plain(code: int, text: str) -> Fault:
    """An answer that is no object."""
    fault = Fault(code, "", "")
    fault.body = text
    return fault


def kubeconfig(server: str, folder: Path, **settings: object) -> str:
    """The path of a kubeconfig for a server of that URL, in the folder."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server, **settings}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "test",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    return str(folder / "kubeconfig")


class FakeApi:
    """The server. `objects` by path, `logs` by (pod, container), `requests` as (method, path, query)."""

    served: ClassVar[dict[str, "FakeApi"]] = {}  # by URL

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.logs: dict[tuple[str, str], str] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.faults: list[tuple[str, str, Fault | None]] = []
        self.refused: dict[tuple[str, str], Fault] = {}  # methods of paths that admission is against
        self.closed: dict[str, Fault] = {}  # paths that nothing else is ever answered for
        self.changed = threading.Condition(threading.RLock())
        self.history: list[tuple[int, str, str, Object]] = []
        self.version = 1
        self.minor = 36  # of Kubernetes; below 20 there is no server-side apply, below 13 no dry run
        self._wishes: dict[tuple[str, str], Object] = {}
        self._reactions: list[tuple[str, Callable[[Object], None]]] = []
        self._handler: Any = _handler(self)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self.served[self.url] = self
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.served.pop(self.url, None)  # a test may have closed it
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def kubeconfig(self, folder: Path) -> str:
        """A kubeconfig for this server."""
        return kubeconfig(self.url, folder)

    # --- for tests -----------------------------------------------------------------------------------

    def react(self, kind: str, do: Callable[[Object], None]) -> None:
        """Call `do` with every object of the kind that is created."""
        self._reactions.append((kind, do))

    def fail(self, method: str, part: str, fault: Fault | None) -> None:
        """The next request whose path holds `part` gets this answer; None: the connection is cut."""
        self.faults.append((method, part, fault))

    def put(self, item: Object, *, event: str = "") -> Object:
        """Store an object as it is given."""
        with self.changed:
            meta = item["metadata"]
            where = path(item["kind"], meta.get("namespace"), meta["name"])
            known = self.objects.get(where)
            self.version += 1
            meta.setdefault("uid", known["metadata"]["uid"] if known else str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", f"2026-01-01T00:00:00.{self.version:06d}Z")
            meta["resourceVersion"] = str(self.version)
            self.objects[where] = copy.deepcopy(item)
            self.history.append(
                (self.version, event or ("MODIFIED" if known else "ADDED"), where, self.objects[where])
            )
            self.changed.notify_all()
        if not known:
            for kind, do in self._reactions:
                if kind == item["kind"]:
                    do(copy.deepcopy(item))
        return item

    def update(self, kind: str, name: str, namespace: str | None = None, **fields: Any) -> None:
        """Merge `fields` into an object that may be gone."""
        with self.changed:
            stored = self.objects.get(path(kind, namespace, name))
            if stored is not None:
                self.put(merge_patch(stored, fields))

    def drop(self, where: str) -> None:
        with self.changed:
            gone = self.objects.pop(where)
            self.version += 1
            gone = merge_patch(gone, {"metadata": {"resourceVersion": str(self.version)}})
            self.history.append((self.version, "DELETED", where, gone))
            self.changed.notify_all()
            for other, item in list(self.objects.items()):
                owners = [reference["uid"] for reference in item["metadata"].get("ownerReferences", [])]
                if gone["metadata"]["uid"] in owners:
                    self.drop(other)

    def all(self, kind: str) -> list[Object]:
        with self.changed:
            return [item for item in self.objects.values() if item["kind"] == kind]

    def ask(self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]) -> Any:
        """The answer without HTTP; None for a watch, and where the connection is to be cut."""
        target = url.removeprefix(self.url)
        cut = any(method == fault[0] and fault[1] in target and fault[2] is None for fault in self.faults)
        if cut or "watch=true" in target:
            return None
        answers: list[HTTPResponse] = []

        def send(code: int, body: Object | str) -> None:
            text = body if isinstance(body, str) else json.dumps(body)
            answers.append(HTTPResponse(BytesIO(text.encode()), status=code, preload_content=False))

        handler = self._handler.__new__(self._handler)
        handler.path, handler.rfile, handler.send = target, BytesIO(data or b""), send
        handler.headers = {**headers, "Content-Length": len(data or b"")}
        handler.answer(method)
        return answers[0]

    # --- for the handler -----------------------------------------------------------------------------

    def apply(self, where: str, manifest: Object, query: dict[str, str]) -> Object:
        manager, dry = query["fieldManager"], query.get("dryRun") == "All"
        live = self.objects.get(where)
        namespace = manifest["metadata"].get("namespace")
        there = namespace in {None, "default"}  # every cluster has that one
        if not there and path("Namespace", None, namespace) not in self.objects:
            raise Fault(404, "NotFound", f'namespaces "{namespace}" not found')
        if live is None and "uid" in manifest["metadata"]:
            raise Fault(409, "Conflict", "uid mismatch: no existing object was found")
        old = self._wishes.get((where, manager), {})
        result = copy.deepcopy(live) if live else copy.deepcopy(manifest)
        have = result["metadata"].setdefault("labels", {})
        want = manifest["metadata"].get("labels", {})
        for key in old.get("metadata", {}).get("labels", {}).keys() - want.keys():
            have.pop(key, None)
        if query.get("force") != "true":
            for key, value in want.items():
                if have.get(key, value) != value:
                    raise conflict(f".metadata.labels.{key}")
        result = merge_patch(result, manifest)
        if not dry:
            self._wishes[where, manager] = copy.deepcopy(manifest)
            if result != live:
                self.changed_template(live, result)
        return result

    def changed_template(self, live: Object | None, result: Object) -> Object:
        """Store it, and count a DaemonSet's templates."""
        if result["kind"] == "DaemonSet" and (live is None or result["spec"] != live["spec"]):
            notes = result["metadata"].setdefault("annotations", {})
            key = "deprecated.daemonset.template.generation"
            notes[key] = str(int(notes.get(key, 0)) + 1)
        return self.put(result)


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer("GET")

        def do_POST(self) -> None:
            self.answer("POST")

        def do_PATCH(self) -> None:
            self.answer("PATCH")

        def do_DELETE(self) -> None:
            self.answer("DELETE")

        def answer(self, method: str) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            api.requests.append((method, url.path, query))
            for fault in api.faults:
                if fault[0] == method and fault[1] in self.path:
                    api.faults.remove(fault)
                    if fault[2] is None:
                        self.close_connection = True
                        return
                    self.send(fault[2].code, fault[2].body)
                    return
            try:
                if (method, url.path) in api.refused:
                    raise api.refused[method, url.path]
                if url.path in api.closed:
                    raise api.closed[url.path]
                if query.get("watch"):
                    self.watch(url.path, query)
                elif url.path.endswith("/log"):
                    self.log(url.path, query)
                else:
                    with api.changed:
                        self.send(200, self.resource(method, unquote(url.path), query, body))
            except Fault as fault:
                self.send(fault.code, fault.body)

        def send(self, code: int, body: Object | str) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def resource(self, method: str, where: str, query: dict[str, str], body: bytes) -> Object:
            if where == "/version":
                return {"gitVersion": f"v1.{api.minor}.3"}
            if method == "GET" and (known := discovered(where, api.minor)):
                return known
            for old, new in NEWER.items():
                where = where.replace(f"/{old}/", f"/{new}/")
            dry = query.get("dryRun") == "All" and api.minor >= 13
            last = where.rsplit("/", 1)[-1]
            if last in KIND_OF and method == "GET":
                return self.items(KIND_OF[last], where, query)
            if method == "POST" and last == "selfsubjectaccessreviews":
                return {**json.loads(body), "status": {"allowed": True}}
            if method == "POST":
                item = json.loads(body)
                return item if dry else api.changed_template(None, item)
            if method == "PATCH" and "merge-patch" in self.headers["Content-Type"]:
                live, fields = api.objects[where.removesuffix("/status")], json.loads(body)
                seen = fields["metadata"].get("resourceVersion", live["metadata"]["resourceVersion"])
                if seen != live["metadata"]["resourceVersion"]:
                    raise Fault(409, "Conflict", "the object has been modified")
                after = merge_patch(live, fields)
                return after if dry else api.changed_template(live, after)
            if method == "PATCH" and api.minor < 16:
                raise Fault(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            if method == "PATCH":
                return api.apply(where, json.loads(body), query)
            if where not in api.objects:
                raise Fault(404, "NotFound", f"{last} not found")
            if method == "DELETE":
                wanted = json.loads(body).get("preconditions", {}).get("uid")
                if wanted not in {None, api.objects[where]["metadata"]["uid"]}:
                    raise Fault(409, "Conflict", "the UID in the precondition does not match")
                api.drop(where)
                return {"kind": "Status", "status": "Success"}
            return api.objects[where]

        def items(self, kind: str, where: str, query: dict[str, str]) -> Object:
            listed = [item for item in api.all(kind) if self.inside(item, where) and selector(query)(item)]
            limit, start = int(query.get("limit", 500)), int(query.get("continue", 0))
            more = str(start + limit) if start + limit < len(listed) else ""
            meta = {"resourceVersion": str(api.version), "continue": more}
            return {"kind": f"{kind}List", "metadata": meta, "items": listed[start : start + limit]}

        def inside(self, item: Object, where: str) -> bool:
            return where in {path(item["kind"]), path(item["kind"], item["metadata"].get("namespace"))}

        def log(self, where: str, query: dict[str, str]) -> None:
            key = (where.split("/")[-2], query["container"])
            if key not in api.logs or query.get("previous"):
                raise Fault(400, "BadRequest", f"container {key[1]} in pod {key[0]} has no log")
            self.send(200, "".join(api.logs[key].splitlines(keepends=True)[-int(query["tailLines"]) :]))

        def watch(self, where: str, query: dict[str, str]) -> None:
            kind, seen = KIND_OF[where.rsplit("/", 1)[-1]], int(query["resourceVersion"])
            end = time.monotonic() + int(query["timeoutSeconds"])
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            while True:
                with api.changed:
                    news = [each for each in api.history if each[0] > seen]
                    if not news:
                        left = end - time.monotonic()
                        if left <= 0 or not api.changed.wait(left):
                            self.wfile.write(b"0\r\n\r\n")
                            return
                        continue
                for version, change, _, item in news:
                    seen = version
                    if item["kind"] == kind and self.inside(item, where) and selector(query)(item):
                        line = json.dumps({"type": change, "object": item}) + "\n"
                        try:
                            self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
                        except OSError:
                            return  # the client has seen enough

    return Handler
