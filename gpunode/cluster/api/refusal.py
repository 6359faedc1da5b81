"""Errors of the Kubernetes API and of the connection to it, each with its fix."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpunode.cluster import obstacles
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.kubeconfig import Access
from gpunode.errors import ApiConnectionLost, Claim, ClusterError, HttpError
from gpunode.wording import page

FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)

# Of kubernetes/pkg/registry/rbac: no user grants rights that he does not have.
GRANT = re.compile(
    r'^(?P<what>.*) is forbidden: user "(?P<user>[^"]*)".* is attempting to grant RBAC permissions not currently held:'
    r"\n(?P<rules>.*)",
    re.DOTALL,
)
WEBHOOK = re.compile(r'failed calling webhook (?P<name>"[^"]*")')
# Messages of apiserver/pkg/admission/plugin/webhook/errors about a webhook with side effects, and of
# apiserver/pkg/endpoints/handlers where the feature gate DryRun (on since 1.13) is off.
NO_DRY_RUN = re.compile(r"does not support dry run|dryRun \w+ feature is disabled")
MANAGER = re.compile(r'conflict with "(?P<manager>[^"]*)"')


def why_untried(error: ClusterError, *, strict: bool) -> str:
    """Why only the dry run was refused; "" if the change is refused too. `strict`: missing rights refuse the
    change."""
    if not isinstance(error, HttpError) or (strict and error.status == 403):
        return ""
    return error.untried


RENEW = "Log in again, or copy a new kubeconfig; of kubeadm's, after `kubeadm certs renew admin.conf`."


@contextmanager
def translate_errors(access: Access) -> Iterator[None]:
    """Raises ClusterError for the HTTP client's exceptions."""
    import ssl

    from urllib3 import exceptions

    source = f"The server is that of context `{access.context}` in {access.source}"
    try:
        yield
    except (exceptions.SSLError, ssl.SSLError) as error:
        # A load balancer without a server behind it closes what it has accepted.
        kind = ApiConnectionLost if "EOF" in str(error) else ClusterError
        message = f"TLS with the Kubernetes API at {access.server} failed: {_inner(error)}"
        raise kind(message, hint=_tls_hint(error, access.ended)) from error
    except exceptions.ProxyError as error:
        raise ApiConnectionLost(
            f"the proxy of context `{access.context}` leads to no Kubernetes API: {_inner(error)}",
            hint=f"It is the proxy-url in {access.source}; check that it runs and lets {access.server} through.",
        ) from error
    except exceptions.NameResolutionError as error:
        raise ApiConnectionLost(
            f"the Kubernetes API at {access.server} cannot be reached: its name does not resolve",
            hint=f"{source}; check the name, DNS or VPN.",
        ) from error
    except exceptions.NewConnectionError as error:  # urllib3 makes it a kind of timeout
        raise _lost(access, _inner(error)) from error
    except exceptions.TimeoutError as error:
        raise ApiConnectionLost(
            f"the Kubernetes API at {access.server} did not answer in time",
            hint=f"{source}; check that it runs and no firewall blocks it.",
        ) from error
    except (exceptions.LocationParseError, exceptions.LocationValueError) as error:
        raise ClusterError(
            f"{access.server} is not an address of a Kubernetes API", hint=f"{source}."
        ) from error
    except (exceptions.HTTPError, OSError) as error:
        raise _lost(access, _inner(error)) from error


def _lost(access: Access, why: str) -> ApiConnectionLost:
    return ApiConnectionLost(
        f"the Kubernetes API at {access.server} cannot be reached: {why}",
        hint=f"The server is that of context `{access.context}` in {access.source}; "
        "check that it runs and is reachable from this machine.",
    )


def parse(access: Access, code: int, body: bytes, needs: str = "") -> Object:
    """The object in a response body. `needs`: a key that it must have."""
    answer = _json(body)
    if not _is_answer(answer) or (needs and needs not in answer):
        raise ClusterError(
            f"{access.server} answered {code} in a way no Kubernetes API does: {_page(body) or 'an empty page'}",
            hint=f"Is the server of context `{access.context}` in {access.source} right? A proxy may be between.",
        )
    item: Object = answer
    return item


def _json(body: bytes) -> Any:
    """The value in a response body; None if it is not JSON, as of a proxy or a load balancer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _page(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())[:200]


def _is_answer(answer: Any) -> bool:
    """True for an object, a list of objects, or the API server's version."""
    if not isinstance(answer, dict) or not ("kind" in answer or isinstance(answer.get("gitVersion"), str)):
        return False
    items, meta = answer.get("items") or [], answer.get("metadata", {})
    whole = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    return whole and all(isinstance(part, dict) for part in (meta, *(item.get("metadata") for item in items)))


def parse_event(access: Access, line: bytes) -> tuple[str, Object]:
    """The event and the object in a line of a watch. Raises ApiConnectionLost for a cut or garbled line."""
    try:
        read = json.loads(line)
        change, item = str(read["type"]), {**read["object"]}
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise _lost(access, "a line of its watch is garbled") from error
    if change == "ERROR":
        raise status_error(access, item)
    return change, item


def http_error(access: Access, code: int, body: bytes) -> HttpError:
    if (code == 429 or code >= 500) and not isinstance(_json(body), dict):  # of a load balancer
        return status_error(access, {"code": code, "message": _page(body)})
    return status_error(access, {**parse(access, code, body), "code": code})


def message_of(body: bytes) -> str:
    """The message of a Status object, or its details: an eviction's name the budget that prevents it."""
    answer = _json(body)
    try:
        causes = [str(cause["message"]) for cause in (answer.get("details") or {}).get("causes") or []]
        return "; ".join(causes) or str(answer.get("message") or "")
    except (KeyError, TypeError, AttributeError):
        return _page(body)


def status_error(access: Access, answer: Object) -> HttpError:
    code = int(answer.get("code") or 500)
    detail = str(answer.get("message") or "no reason given")
    reason = str(answer.get("reason") or "")
    message, hint, untried = f"the Kubernetes API refused: {detail}", "", ""
    if code == 401:
        message = f"the Kubernetes API at {access.server} does not accept the credentials (401)"
        expired = f"Those of context `{access.context}` in {access.source} may have expired."
        hint = f"{access.ended} {RENEW}" if access.ended else expired
    elif code == 403 and "system:anonymous" in detail:
        message = f"the Kubernetes API at {access.server} received no credentials"
        hint = f"Context `{access.context}` in {access.source} names no usable user."
    elif code == 403 and (no := FORBIDDEN.search(detail)):
        resource = no["resource"] + (f".{no['group']}" if no["group"] else "")
        # Of itself, as the API server has it
        within = no["namespace"] if no["resource"] != "namespaces" else ""
        where = f"in namespace {within}" if within else "in the whole cluster"
        flag = f" -n {within}" if within else ""
        message = (
            f"the Kubernetes API does not let the user `{no['user']}` {no['verb']} {resource} {where} (403)"
        )
        hint = (
            f"Grant `{no['verb']}` on `{resource}`, or use a context that has it; "
            f"see `kubectl auth can-i {no['verb']} {resource}{flag}`. "
            f"A ClusterRole with all that a run needs: {page('rights')}"
        )
        untried = f"the user `{no['user']}` may not {no['verb']} {resource} {where}"
    elif code == 403 and (no := GRANT.search(detail)):
        rules = " ".join(no["rules"].split())
        message = f"the user `{no['user']}` may not create {no['what']}: it grants rights that the user lacks: {rules}"
        hint = f"Grant the user these rights, too. A ClusterRole with all that a run needs: {page('rights')}"
    elif obstacle := obstacles.match_admission(detail):  # webhooks choose their own code
        message, hint = f"the cluster's admission refused it: {detail}", obstacle.fix
    elif code == 403:
        message = f"the cluster's admission refused it: {detail}"
        hint = "A quota, a policy or the namespace's pod security level forbids it; ask the cluster's administrator."
    elif code == 404:
        hint = "The object or its namespace does not exist, or this cluster is too old to know the kind."
    elif code == 400 and NO_DRY_RUN.search(detail):
        message, untried = f"the Kubernetes API cannot dry-run it: {detail}", detail
    elif code == 409 and "conflict" in detail.lower() and "Apply failed" in detail:
        message = f"another field manager set the same fields: {detail}"
        hint = "Set the value there, or remove the field there first."
    elif code == 415:
        message = f"this Kubernetes has server-side apply switched off ({access.server})"
        hint = "Remove ServerSideApply=false from the API server's --feature-gates; the default is on since 1.16."
    elif code == 422:
        message = f"the Kubernetes API finds the object invalid: {detail}"
    elif code == 429 or code >= 500:
        message, hint = _unavailable(access, code, detail)
    return HttpError(
        message,
        hint=hint,
        status=code,
        reason=reason,
        claims=_claims(answer),
        untried=untried,
        detail=detail,
    )


def _claims(answer: Object) -> tuple[Claim, ...]:
    causes = (answer.get("details") or {}).get("causes") or []
    conflicts = [(cause.get("field", ""), MANAGER.search(cause.get("message", ""))) for cause in causes]
    return tuple(Claim(field, match["manager"]) for field, match in conflicts if match)


def _unavailable(access: Access, code: int, detail: str) -> tuple[str, str]:
    """Message and hint for an error of the server, not of the request."""
    api = f"the Kubernetes API at {access.server}"
    if code == 429:
        return (
            f"{api} has too many requests (429): {detail}",
            "It is still overloaded after retries: try again in a minute, or find the client that sends so many.",
        )
    if code in {502, 503, 504}:
        return (
            f"{api} is not available ({code}): {detail}",
            "It is starting or overloaded, or its load balancer finds no healthy server: try again in a minute.",
        )
    if webhook := WEBHOOK.search(detail):
        return (
            f"the cluster's webhook {webhook['name']} does not answer: {detail}",
            "Find it with `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`, and check the pods "
            "behind it; or ask the cluster's administrator.",
        )
    if "etcd" in detail:
        return (
            f"{api} cannot reach its store: {detail}",
            "Check etcd on the control plane (its log and its disk), then try again.",
        )
    return (
        f"{api} failed ({code}): {detail}",
        "The fault is the server's: see `kubectl get --raw '/readyz?verbose'` and its log on the control plane.",
    )


def _inner(error: BaseException) -> str:
    """The message of the innermost exception, the operating system's where there is one."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror).lower()
    return str(error).rsplit(": ", 1)[-1] or type(error).__name__


def _tls_hint(error: BaseException, ended: str) -> str:
    """`ended`: a sentence about a client certificate that is not valid now; a server may hang up on it without a word."""
    detail = str(error)
    if ended and "CERTIFICATE_VERIFY_FAILED" not in detail:
        return f"{ended} {RENEW}"
    if "WRONG_VERSION_NUMBER" in detail or "EOF" in detail:
        return "That port does not speak TLS, the server refuses the client certificate, or nothing answers behind a load balancer; is the server's URL right?"
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        if "mismatch" in detail.lower() or "not valid for" in detail:
            return "The certificate is for another name; use a name it holds, or tls-server-name in the kubeconfig."
        if "has expired" in detail or "not yet valid" in detail:
            return "Renew the API server's certificate, or its CA's (kubeadm: `kubeadm certs check-expiration`); is this machine's clock right?"
        return "The certificate-authority in the kubeconfig did not sign the server's certificate."
    if "CERTIFICATE_EXPIRED" in detail:
        return (
            "The API server takes the kubeconfig's client-certificate for expired: renew it, or log in again."
        )
    return "Check the certificate-authority, client-certificate and client-key of the kubeconfig."
