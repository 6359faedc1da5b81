"""The scheduler extender in the cluster, and a second scheduler that asks it: their objects, certificates and readiness."""

import base64
import binascii
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gpunode.cluster import obstacles, pods, rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.apply import Component
from gpunode.cluster.objects.manifests import render
from gpunode.cluster.rights import Right
from gpunode.errors import ClusterError, GpunodeError, HttpError
from gpunode.links.scheduler import configuration
from gpunode.links.scheduler.configuration import Extender
from gpunode.links.scheduler.plan import VOLUME
from gpunode.model import PluginImage, SecondScheduler, Share
from gpunode.wording import advise, lines

if TYPE_CHECKING:  # most runs make no certificate: the import is late
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "gpunode-share"
STAYS = advise(
    "The scheduler's configuration was not changed. The extender's objects and the device plugin's "
    "FOLLOW_PROMISES stay. `gpunode share disable` removes the objects. To remove FOLLOW_PROMISES, remove "
    "`cluster.share` from the inventory; then run `gpunode plugin deploy`."
)


@dataclass(frozen=True, slots=True)
class Spec:
    """The extender's desired state in the cluster. `secret`: its certificates as a Secret has them."""

    namespace: str
    image: PluginImage
    share: Share
    secret: Mapping[str, str]

    @property
    def manifests(self) -> list[Object]:
        """In the order in which they are applied."""
        return render(
            "share.yaml.j2",
            namespace=self.namespace,
            image=self.image.reference,
            image_id=self.image.image_id,
            pull=self.image.pull,
            loaded=self.image.archive is not None,
            resource=self.share.resource,
            policy=self.share.policy,
            certificates=dict(self.secret),
            certificates_id=self.certificates_id,
        )

    @property
    def certificates_id(self) -> str:
        """Changes with the certificates."""
        return hashlib.sha256(json.dumps(dict(self.secret)).encode()).hexdigest()[:16]


def spec(api: Api, namespace: str, image: PluginImage, share: Share) -> Spec:
    """The desired state, with the certificates that are there, or new ones where they cannot be used any more."""
    live = api.get("Secret", NAME, namespace)
    data = None if live is None else live.get("data")
    secret = data if data and are_usable(data) else make_certificates()
    return Spec(namespace, image, share, {name: secret[name] for name in FILES})


def extender(spec: Spec, *, seconds: float) -> Component[None]:
    """It works once a replica of this version leads, for which it is given `seconds`. A second scheduler that is not desired is
    removed."""
    surplus = [] if spec.share.scheduler else second_objects(spec.namespace)
    what = "a replica of the scheduler extender to lead"
    return Component(
        spec.manifests,
        surplus,
        lambda api, notify: wait_for_deployment(
            api, NAME, spec.namespace, what=what, seconds=seconds, notify=notify, hint=STAYS
        ),
    )


def address(api: Api, namespace: str) -> str:
    """The Service's IP address, "" where there is none. Schedulers in the host's network know no cluster DNS."""
    service = api.get("Service", NAME, namespace) or {}
    return str(service.get("spec", {}).get("clusterIP") or "")


def all_objects(namespace: str) -> list[Object]:
    """All objects that `share enable` may have applied, but the namespace: the extender's, and a second scheduler's."""
    own = Spec(namespace, PluginImage("any"), Share(), dict.fromkeys(FILES, "")).manifests
    return [manifest for manifest in own if manifest["kind"] != "Namespace"] + second_objects(namespace)


def rights_to_apply(api: Api, namespace: str, *, second: bool) -> tuple[Right, ...]:
    """Rights to apply the extender's objects; `second`: and a second scheduler's."""
    ours = Spec(namespace, PluginImage("any"), Share(), dict.fromkeys(FILES, "")).manifests
    return rights.of_objects(apply.fit(api, [*ours, *(second_objects(namespace) if second else ())]))


def rights_to_remove(api: Api, namespace: str) -> tuple[Right, ...]:
    """What `remove` takes."""
    own = [manifest for manifest in all_objects(namespace) if api.served.has(manifest["kind"])]
    lease = Right("delete", "leases.coordination.k8s.io", namespace)
    return (*rights.of_deletion(own), *rights.of_wait(own), lease)


def remove(api: Api, namespace: str, *, seconds: float, notify: OnProgress) -> tuple[str, ...]:
    """Delete `everything`, and its Leases. Returns the titles of what was deleted."""
    removed = apply.remove(api, all_objects(namespace), seconds=seconds, notify=notify)
    for name in (NAME, SECOND):
        api.delete("Lease", name, namespace)
    return removed


SERVER, CLIENT = "gpunode-share", "gpunode-share-scheduler"  # names in the certificates
YEARS, RENEW = timedelta(days=3650), timedelta(days=365)
EARLY = timedelta(days=1)  # valid before they are made: other machines' clocks may be behind
FILES = ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")


def make_certificates() -> dict[str, str]:
    """A new set as a Secret has it: base64 of PEM text, by file name."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("gpunode-share-ca", key, None)
    files = {"ca.crt": ca.public_bytes(serialization.Encoding.PEM)}
    for name, subject in (("tls", SERVER), ("client", CLIENT)):
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(subject, own, (ca, key))
        files[f"{name}.crt"] = certificate.public_bytes(serialization.Encoding.PEM)
        files[f"{name}.key"] = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return {name: base64.b64encode(text).decode() for name, text in files.items()}


def are_usable(data: Mapping[str, str] | None) -> bool:
    """Whether a Secret's data is such a set, and stays valid for a year."""
    from cryptography import x509

    if data is None or not set(FILES) <= set(data):
        return False
    try:
        certificates = [
            x509.load_pem_x509_certificate(base64.b64decode(data[name]))
            for name in FILES
            if name.endswith(".crt")
        ]
    except (ValueError, binascii.Error):
        return False
    return all(
        certificate.not_valid_after_utc > datetime.now(timezone.utc) + RENEW for certificate in certificates
    )


def _certificate(
    subject: str,
    key: "ec.EllipticCurvePrivateKey",
    issuer: "tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None",
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    by, signer = (issuer[0].subject, issuer[1]) if issuer else (name, key)
    now, public = datetime.now(timezone.utc), key.public_key()
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=issuer is None, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder(by, name, public, x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + YEARS)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if issuer is not None:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH if subject == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder.sign(signer, hashes.SHA256())


SECOND = "gpunode-share-scheduler"  # of the second scheduler's objects, and of its Lease
FOLDER = "/etc/gpunode-share"  # with the extender's CA and the scheduler's certificate
OLDEST = 19  # minor version: earlier ones know no configuration that fits


def minor(desired: SecondScheduler, server: int) -> int:
    """Kubernetes' minor version of the scheduler: its tag's, or else the API `server`'s. Raises ClusterError where the
    server does not work with it: it may be as old as the server, or one minor version older (version skew policy)."""
    tag = re.search(r":v?1\.(\d+)\.[^:/]*$", desired.image.partition("@")[0])
    own = int(tag[1]) if tag else server
    if not max(server - 1, OLDEST) <= own <= server:
        what = f"a scheduler of Kubernetes 1.{own} does not fit an API server of 1.{server}"
        if server < OLDEST:
            what = f"Kubernetes 1.{server} is too old for a second scheduler: 1.{OLDEST} is the first"
        raise ClusterError(
            f"cluster.share.scheduler.image {desired.image}: {what}",
            hint=f"Name a kube-scheduler of 1.{server}, the version of the cluster.",
        )
    return own


def second_scheduler(
    api: Api, spec: Spec, desired: SecondScheduler, server: int, *, seconds: float
) -> Component[None]:
    """A kube-scheduler beside the cluster's own, for pods that name it. It asks the extender of `spec` at the address that its Service
    has by now. `server`: as of `minor`."""
    extender = Extender(address(api, spec.namespace), spec.share.resource, FOLDER)
    version = minor(desired, server)
    text = configuration.make_second(extender, version, desired.name, spec.namespace, SECOND)
    objects = second_objects(spec.namespace, desired.image, text, spec.certificates_id)
    what = "the second scheduler to be Ready"
    return Component(
        objects,
        (),
        lambda api, notify: wait_for_deployment(
            api, SECOND, spec.namespace, what=what, seconds=seconds, notify=notify
        ),
    )


def second_objects(
    namespace: str, image: str = "any", configuration: str = "", certificates_id: str = ""
) -> list[Object]:
    """Its objects in the order in which they are applied. The kubelet starts its pod again for another configuration, and for other
    certificates."""
    return render(
        "scheduler.yaml.j2",
        namespace=namespace,
        image=image,
        configuration=configuration,
        configuration_id=hashlib.sha256(configuration.encode()).hexdigest()[:16],
        certificates_id=certificates_id,
    )


def second_serves(api: Api, namespace: str) -> bool:
    """Whether a second scheduler is Ready; False, too, where the user may not know."""
    try:
        live = api.get("Deployment", SECOND, namespace)
    except HttpError as error:
        if error.status == 403:
            return False
        raise
    return bool(live and (live.get("status") or {}).get("readyReplicas"))


LOOK = 1.0  # seconds between two looks
REFUSED = 20.0  # seconds without a pod that the cluster makes: quotas and policies do not change on their own
FINAL = 3.0  # the same, where no controller tries again: the status may be older than the object
RETRIED = ("FailedCreate", "FailedDelete")  # by the controllers of ReplicaSets


def wait_for_deployment(
    api: Api, name: str, namespace: str, *, what: str, seconds: float, notify: OnProgress, hint: str = ""
) -> None:
    """Wait until all pods of the Deployment are of this version and one is Ready. Raises ClusterError with why none is, early
    where the cluster makes none."""
    begun = accepted = time.monotonic()
    while not _ready(live := api.get("Deployment", name, namespace) or {}):
        now, (reason, refusal) = time.monotonic(), pods.refusal(live)
        accepted = accepted if refusal else now
        if refusal and now - accepted >= (REFUSED if reason in RETRIED else FINAL):
            known = obstacles.match_admission(refusal)
            fix = known.fix if known else f"See `kubectl -n {namespace} describe deployments {name}`."
            raise ClusterError(
                f"waited {now - begun:.0f} s for {what}: the cluster creates no pods: {refusal}",
                hint=lines((fix, hint), " "),
            )
        if now > begun + seconds:
            selector = f"app.kubernetes.io/name={name}"
            raise ClusterError(
                f"waited {seconds:.0f} s for {what}: {_why(api, namespace, selector)}",
                hint=lines(
                    (f"See `kubectl -n {namespace} describe pods -l {selector}`, and their logs.", hint), " "
                ),
            )
        notify(f"waiting for {what}, up to {seconds / 60:g} min{refusal and f': {refusal}'}")
        time.sleep(LOOK)


def _ready(deployment: Object) -> bool:
    status, replicas = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 0)
    current = status.get("observedGeneration", 0) >= deployment.get("metadata", {}).get("generation", 1)
    all_new = status.get("updatedReplicas", 0) == replicas == status.get("replicas", 0)
    return bool(current and all_new and status.get("readyReplicas", 0) > 0)


def _why(api: Api, namespace: str, selector: str) -> str:
    of_deployment = [{"kind": "Pod", **item} for item in api.find("Pod", namespace, labels=selector)[0]]
    why = [problem for pod in of_deployment if (problem := pods.problem(pod, pods.events(api, pod)))]
    return "; ".join(dict.fromkeys(why)) or (
        f"{len(of_deployment)} pods are starting" if of_deployment else "it has no pods"
    )


def asking_nodes(api: Api) -> set[str]:
    """The nodes whose schedulers ask the extender, by their pods."""
    of_schedulers, _ = api.find("Pod", "kube-system", labels="component=kube-scheduler")
    return {
        str(pod["spec"].get("nodeName") or "")
        for pod in of_schedulers
        for volume in pod["spec"].get("volumes") or []
        if volume["name"].startswith(VOLUME)
    }


BACK = 180.0  # seconds for it to be Ready


def wait_for_scheduler(api: Api, node: str, volume: str, notify: OnProgress) -> str:
    """Why the node's scheduler is not Ready with this volume (without gpunode's, for ""); "" once it is."""
    end = time.monotonic() + BACK
    while True:
        why = _why_not_back(api, node, volume)
        if not why or time.monotonic() > end:
            return why
        notify(f"waiting for the scheduler of {node}: {why}")
        time.sleep(LOOK)


def _why_not_back(api: Api, node: str, volume: str) -> str:
    try:
        pod = api.get("Pod", f"kube-scheduler-{node}", "kube-system")
    except GpunodeError as error:
        return error.message
    if pod is None:
        return "it has no pod"
    names = [volume["name"] for volume in pod["spec"].get("volumes") or []]
    own = [name for name in names if name.startswith(VOLUME)]
    if own != ([volume] if volume else []):
        return "the kubelet has not started it again yet"
    return "" if pods.is_ready(pod) else pods.problem(pod, []) or "it is not Ready yet"
