"""What the API server, or the way to it, said instead of yes: in words, with the next thing to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpunode.cluster.kinds import Object
from gpunode.cluster.kubeconfig import Access
from gpunode.errors import ClusterError

FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)

WEBHOOK = re.compile(r'failed calling webhook (?P<name>"[^"]*")')
# What apiserver/pkg/admission/plugin/webhook/errors says of one that would act outside of the cluster's objects, and
# apiserver/pkg/endpoints/handlers of a server on which the feature gate DryRun (on since 1.13) is off.
NO_DRY_RUN = re.compile(r"does not support dry run|dryRun \w+ feature is disabled")
MANAGER = re.compile(r'conflict with "(?P<manager>[^"]*)"')


@dataclass(frozen=True, slots=True)
class Claim:
    """A field of an object, in the API server's words, and the field manager that set it last."""

    field: str
    manager: str


class HttpError(ClusterError):
    """The API server answered no. `code` is HTTP's, `reason` Kubernetes' word for it: NotFound, Conflict, Expired.

    `claims` are the fields that a server-side apply would have to take from others. `untried`: not the change is
    refused, but the trying of it, in a few words.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: int,
        reason: str,
        claims: tuple[Claim, ...] = (),
        untried: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.reason = reason
        self.claims = claims
        self.untried = untried


def excused(error: ClusterError, *, strict: bool) -> str:
    """Why a dry run was refused though the change itself may not be; "" where that is refused. `strict`: this user's
    missing rights are no excuse."""
    if not isinstance(error, HttpError) or (strict and error.code == 403):
        return ""
    return error.untried


class ConnectionLost(ClusterError):
    """No answer: the API server cannot be reached, or the connection broke."""


@contextmanager
def translated(access: Access) -> Iterator[None]:
    """Turns what the HTTP client raises into ClusterErrors."""
    import ssl

    from urllib3 import exceptions

    source = f"The server is that of context `{access.context}` in {access.source}"
    try:
        yield
    except (exceptions.SSLError, ssl.SSLError) as error:
        raise ClusterError(
            f"TLS with the Kubernetes API at {access.server} failed: {_inner(error)}", hint=_tls_hint(error)
        ) from error
    except exceptions.NameResolutionError as error:
        raise ConnectionLost(
            f"the Kubernetes API at {access.server} cannot be reached: its name is not known here",
            hint=f"{source}; check the name, DNS or VPN.",
        ) from error
    except exceptions.NewConnectionError as error:  # urllib3 makes it a kind of timeout
        raise _lost(access, _inner(error)) from error
    except exceptions.TimeoutError as error:
        raise ConnectionLost(
            f"the Kubernetes API at {access.server} did not answer in time",
            hint=f"{source}; check that it runs and that no firewall is between.",
        ) from error
    except (exceptions.LocationParseError, exceptions.LocationValueError) as error:
        raise ClusterError(
            f"{access.server} is not an address of a Kubernetes API", hint=f"{source}."
        ) from error
    except (exceptions.HTTPError, OSError) as error:
        raise _lost(access, _inner(error)) from error


def _lost(access: Access, why: str) -> ConnectionLost:
    return ConnectionLost(
        f"the Kubernetes API at {access.server} cannot be reached: {why}",
        hint=f"The server is that of context `{access.context}` in {access.source}; "
        "check that it runs and that this machine may reach it.",
    )


def parsed(access: Access, code: int, body: bytes) -> Object:
    """The object in an answer."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not ("kind" in answer or "gitVersion" in answer):
        said = " ".join(body.decode(errors="replace").split())[:120]
        raise ClusterError(
            f"{access.server} answered {code} in a way no Kubernetes API does: {said or 'an empty page'}",
            hint=f"Is the server of context `{access.context}` in {access.source} right? A proxy may be between.",
        )
    return answer


def http(access: Access, code: int, body: bytes) -> HttpError:
    """The error for an HTTP answer that is not good."""
    if code == 429 or code >= 500:  # also said in plain text, and by load balancers that have no API server
        try:
            answer = json.loads(body)
        except ValueError:
            answer = " ".join(body.decode(errors="replace").split())[:120]
        if not isinstance(answer, dict):
            return status(access, {"code": code, "message": str(answer)})
    return status(access, {"code": code, **parsed(access, code, body)})


def status(access: Access, answer: Object) -> HttpError:
    """The error for a Status object."""
    code = int(answer.get("code") or 500)
    said = str(answer.get("message") or "no reason given")
    reason = str(answer.get("reason") or "")
    message, hint, untried = f"the Kubernetes API refused: {said}", "", ""
    if code == 401:
        message = f"the Kubernetes API at {access.server} does not accept the credentials (401)"
        hint = f"Those of context `{access.context}` in {access.source} may have expired."
    elif code == 403 and "system:anonymous" in said:
        message = f"the Kubernetes API at {access.server} was given no credentials"
        hint = f"Context `{access.context}` in {access.source} names no usable user."
    elif code == 403 and (no := FORBIDDEN.search(said)):
        resource = no["resource"] + (f".{no['group']}" if no["group"] else "")
        within = (
            no["namespace"] if no["resource"] != "namespaces" else ""
        )  # of itself, as the API server has it
        where = f"in namespace {within}" if within else "in the whole cluster"
        flag = f" -n {within}" if within else ""
        message = (
            f"the Kubernetes API does not let the user `{no['user']}` {no['verb']} {resource} {where} (403)"
        )
        hint = (
            f"Grant `{no['verb']}` on `{resource}`, or use a context that has it; "
            f"see `kubectl auth can-i {no['verb']} {resource}{flag}`."
        )
        untried = f"the user `{no['user']}` may not {no['verb']} {resource} {where}"
    elif code == 403:
        message = f"the cluster's admission refused it: {said}"
        hint = "A quota, a policy or the namespace's pod security level forbids it; ask who runs the cluster."
    elif code == 404:
        hint = "The object or its namespace does not exist, or this cluster is too old to know the kind."
    elif code == 400 and NO_DRY_RUN.search(said):
        message, untried = f"the Kubernetes API cannot try it: {said}", said
    elif code == 409 and "conflict" in said.lower() and "Apply failed" in said:
        message = f"somebody else set the same fields: {said}"
        hint = "Let the one named set it, or take it away there first."
    elif code == 415:
        message = f"this Kubernetes has no server-side apply ({access.server})"
        hint = "gpunode's cluster side needs Kubernetes 1.20 or newer."
    elif code == 422:
        message = f"the Kubernetes API finds the object invalid: {said}"
    elif code == 429 or code >= 500:
        message, hint = _unwell(access, code, said)
    return HttpError(message, hint=hint, code=code, reason=reason, claims=_claims(answer), untried=untried)


def _claims(answer: Object) -> tuple[Claim, ...]:
    causes = (answer.get("details") or {}).get("causes") or []
    found = [(cause.get("field", ""), MANAGER.search(cause.get("message", ""))) for cause in causes]
    return tuple(Claim(field, match["manager"]) for field, match in found if match)


def _unwell(access: Access, code: int, said: str) -> tuple[str, str]:
    """Message and hint for what is the server's own trouble, not the request's."""
    api = f"the Kubernetes API at {access.server}"
    if code == 429:
        return (
            f"{api} has too many requests (429): {said}",
            "It was asked again and is still overloaded: try again in a minute, or find out who asks it so much.",
        )
    if code in {502, 503, 504}:
        return (
            f"{api} is not there to answer ({code}): {said}",
            "It is starting or overloaded, or the load balancer before it finds none that is up: try again in a minute.",
        )
    if webhook := WEBHOOK.search(said):
        return (
            f"the cluster's webhook {webhook['name']} does not answer: {said}",
            "See `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations` for it, and whether the pods "
            "behind it run; or ask who runs the cluster.",
        )
    if "etcd" in said:
        return (
            f"{api} cannot reach its store: {said}",
            "Look at etcd on the control plane (its log, the disk it is on), then try again.",
        )
    return (
        f"{api} failed ({code}): {said}",
        "That is its own trouble: `kubectl get --raw '/readyz?verbose'` and its log on the control plane say more.",
    )


def _inner(error: BaseException) -> str:
    """The operating system's own words at the bottom of a chain of wrappers."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror).lower()
    return str(error).rsplit(": ", 1)[-1] or type(error).__name__


def _tls_hint(error: BaseException) -> str:
    said = str(error)
    if "WRONG_VERSION_NUMBER" in said or "EOF" in said:
        return "That port does not speak TLS; is the server's URL right?"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        if "mismatch" in said.lower() or "not valid for" in said:
            return "The certificate is for another name; use a name it holds, or tls-server-name in the kubeconfig."
        return "The certificate-authority in the kubeconfig did not sign the server's certificate, or it has expired."
    return "Check the certificate-authority, client-certificate and client-key of the kubeconfig."
