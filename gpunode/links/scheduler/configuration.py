"""What tells a scheduler of an extender: a KubeSchedulerConfiguration, or a Policy of Kubernetes before 1.19."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan
from gpunode.links.scheduler import flags, lines

GROUP = "kubescheduler.config.k8s.io"
SECONDS = 10  # for an answer: a bind waits for the API server
NAME = "gpunode-share"  # in the extender's certificate


@dataclass(frozen=True, slots=True)
class Extender:
    """Where the scheduler extender is, and what it manages. `folder` has its CA and the scheduler's certificate."""

    address: str
    resource: str
    folder: str


def version(minor: int) -> str:
    """The newest version of the configuration that this Kubernetes and the next read alike; "" before 1.19: a Policy."""
    if minor < 19:
        return ""
    # v1beta1: 1.19 to 1.22; v1beta2: 1.22 to 1.27; v1beta3: 1.23 to 1.28; v1: from 1.25 on.
    return "v1beta1" if minor < 22 else "v1beta2" if minor < 23 else "v1beta3" if minor < 25 else "v1"


def entry(extender: Extender, *, policy: bool = False) -> dict[str, Any]:
    """The extender as an element of `extenders`."""
    folder = extender.folder
    tls = {
        "serverName": NAME,
        "caFile": f"{folder}/ca.crt",
        "certFile": f"{folder}/client.crt",
        "keyFile": f"{folder}/client.key",
    }
    return {
        "urlPrefix": f"https://{extender.address}/share",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "bindVerb": "bind",
        "enableHttps" if policy else "enableHTTPS": True,
        "tlsConfig": tls,
        "httpTimeout": SECONDS * 10**9 if policy else f"{SECONDS}s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": extender.resource, "ignoredByScheduler": False}],
        "ignorable": False,
    }


def policy(extender: Extender) -> str:
    """A Policy with this extender and the scheduler's default predicates and priorities."""
    document = {"kind": "Policy", "apiVersion": "v1", "extenders": [entry(extender, policy=True)]}
    return json.dumps(document, indent=2) + "\n"


def fresh(extender: Extender, minor: int, settings: Mapping[str, Any]) -> str:
    """A configuration for a scheduler that has none, with these settings."""
    document = {
        "apiVersion": f"{GROUP}/{version(minor)}",
        "kind": "KubeSchedulerConfiguration",
        **settings,
        "extenders": [entry(extender)],
    }
    return "# Made by gpunode share enable.\n" + yaml.safe_dump(document, sort_keys=False)


def second(extender: Extender, minor: int, name: str, namespace: str, lease: str) -> str:
    """The configuration of a scheduler in a pod of its own, for pods that name it; by its account's token."""
    document = {
        "apiVersion": f"{GROUP}/{version(minor)}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",  # not 1.19's default, for which it lacks the rights to endpoints
            "resourceName": lease,
            "resourceNamespace": namespace,
        },
        "profiles": [{"schedulerName": name}],
        "extenders": [entry(extender)],
        **flags.insecure({"port": "0"}, minor),
    }
    return yaml.safe_dump(document, sort_keys=False)


def extended(path: str, text: str, extender: Extender) -> str:
    """The operator's configuration with this extender. Raises CannotPlan."""
    root = lines.composed(path, text)
    expected = yaml_text.data(text)
    if not str(expected.get("apiVersion", "")).startswith(f"{GROUP}/v1"):
        raise CannotPlan(f"{path} is no KubeSchedulerConfiguration", hint="Name one with --config.")
    others = expected.get("extenders") or []
    for other in others:
        managed = [one.get("name") for one in other.get("managedResources") or []]
        if extender.resource in managed:
            raise CannotPlan(
                f"{path}: the extender at {other.get('urlPrefix')} manages {extender.resource} already",
                hint="Take it out first: two extenders would both bind the same pods.",
            )
    line = f"- {json.dumps(entry(extender))}"
    found = lines.block(path, lines.value(root, "extenders"), "extenders")
    if found is None:
        end = len(text.splitlines())
        try:
            after = lines.added(text, end, 0, ["extenders:", line])
        except ValueError:
            raise CannotPlan(f"{path}: its last line does not end", hint="End it with a newline.") from None
    else:
        after = lines.added(text, found.value[0].start_mark.line, found.start_mark.column, [line])
    expected["extenders"] = [entry(extender), *others]
    lines.check(path, text, after, expected)
    return after
