"""Address and credentials of one cluster, from kubeconfig files."""

import base64
import binascii
import json
import os
import shlex
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from gpunode.agent import redaction
from gpunode.cluster.api.exec_plugin import ExecPlugin, Login, Trust
from gpunode.contract import yaml_text
from gpunode.contract.typed import parse
from gpunode.errors import ClusterError, KubeconfigUnusable
from gpunode.local import files as localfile
from gpunode.model import Cluster


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster as a kubeconfig describes it. `configuration` is the client library's own object."""

    server: str
    context: str
    source: str  # the kubeconfig, as messages name it
    configuration: Any
    tls: ssl.SSLContext | None  # None: plain HTTP
    # A sentence about a client certificate or token that is no longer valid by this machine's clock
    ended: str = ""
    login: Login | None = None  # of a credential plugin; then not `token` and `tls` count, but it
    token: str = field(default="", repr=False)  # with its scheme, as HTTP has it


NAMES: Mapping[type, str] = {str: "text", list: "a list", dict: "a mapping"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One of a file's contexts, clusters or users; relative paths count from that file's `folder`."""

    name: str
    content: Mapping[str, Any]
    folder: Path


def choose_context(cluster: Cluster) -> tuple[str, str]:
    """The kubeconfig (`cluster.kubeconfig`, else $KUBECONFIG, else ~/.kube/config) and the context asked for, or the
    current. Raises KubeconfigUnusable. Runs no credential plugin and sends no request."""
    source, context, *_ = _select(cluster)
    return source, context


def _select(cluster: Cluster) -> tuple[str, str, _Entry, _Entry]:
    """The kubeconfig, the context, and its user and cluster."""
    source = cluster.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    sections, current = _merge(source, named=bool(cluster.kubeconfig))
    contexts, users = sections["contexts"], sections["users"]
    context = cluster.context or current or ""
    if context not in contexts:
        what = f"has no context `{context}`" if context else "has no current-context"
        ways = f"Set cluster.context in the inventory, or --context where a command has it, to one of: {', '.join(contexts)}."
        none = "It has no contexts at all: is it a kubeconfig? Name another with cluster.kubeconfig."
        raise KubeconfigUnusable(f"{source}: {what}", hint=ways if contexts else none)
    names = contexts[context].content
    if names.get("user") and names["user"] not in users:
        raise KubeconfigUnusable(
            f"{source}: context `{context}` names the user `{names['user']}`, which it does not define",
            hint=f"The users are: {', '.join(users) or 'none'}.",
        )
    empty = _Entry("", {}, Path.cwd())
    user = users.get(names.get("user") or "", empty)
    return source, context, user, sections["clusters"].get(str(names.get("cluster")), empty)


def load(cluster: Cluster) -> Access:
    """Read the kubeconfig that `choose_context` names, with its context's credentials."""
    source, context, user, place = _select(cluster)

    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    plugin = _plugin(f"{source}: context `{context}`", source, user, place)
    if plugin and plugin.section.get("interactiveMode") == "Always" and not sys.stdin.isatty():
        raise KubeconfigUnusable(
            f"{source}: the credential plugin of context `{context}` asks its user (interactiveMode: Always), and here is no terminal",
            hint="Run gpunode in a terminal, or name a context whose user has a token or a certificate.",
        )
    configuration: Any = Configuration()
    # The library writes the kubeconfig's certificates and keys into files, and removes them at a regular exit only.
    # They are read here, and deleted at once.
    credential = plugin.run() if plugin else None
    with TemporaryDirectory(prefix="gpunode-") as folder:
        files = source
        if credential:  # of two users of a name the first counts, so the library runs no plugin
            users = Path(folder, "users")
            users.write_text(json.dumps({"users": [{"name": user.name, "user": {}}]}), encoding="utf-8")
            files = f"{users}{os.pathsep}{source}"
        try:
            load_kube_config(files, context, configuration, temp_file_path=folder)  # type: ignore[no-untyped-call]
            token = str((configuration.api_key or {}).get("BearerToken") or "")  # the client library's name
            trust, pair = _trust(configuration), tuple(_pair(configuration))
            if credential:
                token, pair = credential.token, credential.pair
            ended = ended_credentials(pair[0], token)
            tls = trust.context(*pair) if trust else None
        except (ConfigException, binascii.Error, KeyError, TypeError, ValueError, OSError) as error:
            raise ClusterError(
                f"{source}: context `{context}` cannot be used: {_cause(error)}",
                hint="Fix the kubeconfig, or name another with cluster.kubeconfig or cluster.context.",
            ) from error
        except AttributeError as error:  # the library's, of a provider without a token that it could renew
            raise ClusterError(
                f"{source}: context `{context}` has an auth-provider that cannot be used",
                hint="kubectl removed auth-providers in 1.26. Log in again with a tool that writes an exec plugin or a token.",
            ) from error
    if configuration.proxy and not str(configuration.proxy).startswith(("http://", "https://")):
        raise ClusterError(
            f"{source}: the proxy-url of context `{context}` is not that of an HTTP proxy: "
            f"`{redaction.redact(str(configuration.proxy))}`",
            hint="It looks like http://proxy:3128; a SOCKS proxy cannot be used.",
        )
    if not str(configuration.host).startswith(("http://", "https://")):
        raise ClusterError(
            f"{source}: the server of context `{context}` is not a URL: `{configuration.host}`",
            hint="It looks like https://host:6443.",
        )
    login = Login(plugin, credential, trust, tls) if plugin and credential else None
    return Access(configuration.host, context, source, configuration, tls, ended, login, token)


def _plugin(where: str, source: str, user: _Entry, cluster: _Entry) -> ExecPlugin | None:
    """The credential plugin of the user; None without one, or with a token beside it. Raises KubeconfigUnusable."""
    keys, who = user.content, f"user `{user.name}`"
    token = user.folder / str(keys.get("tokenFile") or ".")
    if keys.get("tokenFile") and localfile.exists(token) and not localfile.is_file(token):
        raise KubeconfigUnusable(  # the library would wait for a pipe
            f"{source}: tokenFile of {who} is no regular file: {token}", hint="Fix the kubeconfig."
        )
    section = keys.get("exec")
    if section is None or keys.get("token") or keys.get("tokenFile") or keys.get("auth-provider"):
        return None
    if why := _why_unusable(section, who):
        raise KubeconfigUnusable(
            f"{source}: {why}",
            hint="Fix the kubeconfig, or recreate the user's entry with its own tool.",
        )
    content = cluster.content
    if section.get("provideClusterInfo"):
        content = _with_authority(content, f"{source}: cluster `{cluster.name}`", cluster.folder)
    return ExecPlugin(where, section, content, user.folder)


def _why_unusable(section: Any, who: str) -> str:
    if not isinstance(section, dict):
        return f"the exec section of {who} is not a mapping"
    for key, kind in (("command", str), ("args", list), ("env", list)):
        if not isinstance(section.get(key), kind | None):
            return f"`{key}` of {who}'s exec section is not {NAMES[kind]}"
    pairs = section.get("env") or ()
    if not all(isinstance(pair, dict) and {"name", "value"} <= pair.keys() for pair in pairs):
        return f"`env` of {who}'s exec section is not a list of name and value"
    return ""


def _with_authority(cluster: Mapping[str, Any], where: str, folder: Path) -> Mapping[str, Any]:
    """The cluster with the bytes of its authority in the file's place, as a plugin gets them (client-go, rest/exec.go)."""
    rest = dict(cluster)
    file = rest.pop("certificate-authority", None)
    if not file or rest.get("certificate-authority-data"):
        return rest
    try:
        data = localfile.read(folder / str(file))
    except OSError as error:
        raise KubeconfigUnusable(
            f"{where}: its certificate-authority {file} cannot be read: {_cause(error)}",
            hint="Fix the kubeconfig, or recreate the cluster's entry with its own tool.",
        ) from error
    return {**rest, "certificate-authority-data": base64.b64encode(data).decode()}


def _trust(configuration: Any) -> Trust | None:
    """How the server proves itself; None for plain HTTP. Removes the file's name from the configuration."""
    file, configuration.ssl_ca_cert = configuration.ssl_ca_cert, None
    if not str(configuration.host).startswith("https://"):
        return None
    return Trust(configuration.verify_ssl, localfile.read(Path(file)) if file else None)


def _pair(configuration: Any) -> Iterator[bytes | None]:
    """The client's certificate and key; removes the files' names from the configuration."""
    for name in ("cert_file", "key_file"):
        file = getattr(configuration, name)
        setattr(configuration, name, None)
        yield localfile.read(Path(file)) if file else None


def _near(path: Path) -> Path | None:
    """A file beside it with a similar name."""
    with suppress(OSError):
        near = get_close_matches(
            path.name, [each.name for each in path.parent.iterdir() if each.is_file()], 1
        )
        return path.with_name(near[0]) if near else None
    return None


def _merge(source: str, *, named: bool) -> tuple[dict[str, dict[str, _Entry]], str | None]:
    """Per section, the entries of all files of `source` by name; and the first current-context. `named`: by the user, not by default."""
    sections: dict[str, dict[str, _Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    current: str | None = None
    paths = [localfile.full(name) for name in filter(None, source.split(os.pathsep))]
    files = [(path, data) for path in paths if (data := _read(path)) is not None]
    if not files:
        near = next(filter(None, map(_near, paths)), None)
        ways = "Name it in the inventory as cluster.kubeconfig, or with $KUBECONFIG; status, why, run, label and plugin take --kubeconfig."
        raise KubeconfigUnusable(
            f"no kubeconfig at {source}: no such file",
            hint=f"Did you mean {near}?" if near else "" if named else ways,
        )
    for path, data in files:
        for section, entries in sections.items():
            for entry in _get(path, data, section, list) or ():
                name = entry.get("name") if isinstance(entry, dict) else None
                if not isinstance(name, str):
                    raise KubeconfigUnusable(
                        f"{path}: an entry of `{section}` has the name {name!r}, which is not text",
                        hint='YAML reads no, on and bare numbers as other things; quote the name: "no".',
                    )
                content = _get(path, entry, section.removesuffix("s"), dict) or {}
                for key in ("cluster", "user") if section == "contexts" else ():
                    _get(path, content, key, str)
                entries.setdefault(name, _Entry(name, content, path.absolute().parent))
        current = current or _get(path, data, "current-context", str) or None
    return sections, current


def _get(path: Path, mapping: Mapping[str, Any], key: str, kind: type) -> Any:
    """The key's value, None without one. Raises KubeconfigUnusable if it is not of this kind."""
    value = mapping.get(key)
    if isinstance(value, kind | None):
        return value
    raise KubeconfigUnusable(f"{path}: a `{key}` is not {NAMES[kind]}", hint="Fix the kubeconfig.")


def _read(path: Path) -> dict[str, Any] | None:
    """A file's content; None where there is none."""
    try:
        data = yaml_text.data(localfile.read(path).decode())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise KubeconfigUnusable(
            f"{path}:{line}: not YAML: {error.problem}", hint="Fix the kubeconfig."
        ) from error
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise KubeconfigUnusable(
            f"{path} cannot be read as a kubeconfig: {_cause(error)}",
            hint=f"It is another user's, often root's: "
            f'`sudo install -m 600 -o "$USER" {shlex.quote(str(path))} gpus.kubeconfig` and name that with cluster.kubeconfig or '
            "$KUBECONFIG.",
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KubeconfigUnusable(
            f"{path} cannot be read as a kubeconfig: {_cause(error)}",
            hint="Name a kubeconfig with cluster.kubeconfig or $KUBECONFIG.",
        ) from error
    if not isinstance(data, dict):
        raise KubeconfigUnusable(
            f"{path} is not a kubeconfig: it holds no clusters, users and contexts",
            hint="Name a kubeconfig with cluster.kubeconfig or $KUBECONFIG.",
        )
    return data


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def ended_credentials(certificate: bytes | None, token: str) -> str:
    """A sentence about a client certificate or token that is not valid now; "" where none is known."""
    now = datetime.now(timezone.utc)
    begin, end = _validity(certificate)
    if begin and begin > now:
        return f"Its client certificate is not valid before {begin:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
    ends = ("client certificate", end), ("token", _end_of_token(token))
    return " ".join(
        f"Its {what} ended on {end:%Y-%m-%d %H:%M} UTC." for what, end in ends if end and end < now
    )


def _validity(pem: bytes | None) -> tuple[datetime, datetime] | tuple[None, None]:
    """From when until when a certificate is valid."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem or b"")
    except ValueError:  # TLS says what is wrong with it
        return None, None
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _end_of_token(header: str) -> datetime | None:
    """When a token that says so, a JWT, ends."""
    parts = header.rpartition(" ")[2].split(".")
    try:
        claims = parse(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(float(claims["exp"]), timezone.utc)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
