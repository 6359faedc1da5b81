"""`gpunode verify`: the chain from the PCI bus to a finished CUDA pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import Session, session

if TYPE_CHECKING:
    from gpunode.cluster.api import Api
    from gpunode.cluster.nodes import Node
    from gpunode.model import Gpu, Layer, Link, Outcome, PluginConfig


def verify(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the free GPUs.")] = True,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Show for every host how far the chain holds: PCI, module, library, NVML, toolkit, runtime, kubelet, node,
    plugin, capacity, pod. The first broken link has its cause and its fix.

    Changes nothing, but starts a pod on every free GPU (where pods share GPUs, one more) and removes it again (not
    with --no-run).

    Example: gpunode verify inventory.yaml --limit gpu-03
    """
    from gpunode import converge
    from gpunode.verify import coverage, first_broken, host_links

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        outcomes = work.each(converge.look)
        chains = {outcome.host: list(host_links(outcome)) for outcome in outcomes}
        whole = [outcome for outcome in outcomes if _holds(chains[outcome.host])]
        if work.inventory.cluster.plugin is not None:
            for host, words in _reported(work, [one for one in outcomes if _lost(chains[one.host])]).items():
                chains[host] = [
                    replace(link, cause="\n".join(filter(None, (words, link.cause))))
                    if _lost([link])
                    else link
                    for link in chains[host]
                ]
            above = _above(work, whole, run=run)
            for host, links in chains.items():
                chains[host] = list(
                    first_broken([*links, *above.get(host, _unknown("node", "plugin", "capacity", "pod"))])
                )
        for host, links in chains.items():
            work.report.links(host, links)
        broken = list(coverage.broken(chains))
        if work.inventory.cluster.plugin is None:
            work.report.note(
                "The inventory names no `cluster.plugin`, so nothing in the cluster was checked. Add it to check the whole chain."
            )
        work.report.total(coverage.sentence(chains), coverage.numbers(chains))
    unreachable = [outcome.host for outcome in outcomes if outcome.status == "unreachable"]
    raise typer.Exit(0 if not broken else 3 if broken == unreachable else 1)


def _unknown(*layers: Layer) -> list[Link]:
    from gpunode.model import Link

    return [Link(layer, "unknown", "") for layer in layers]


def _holds(links: Sequence[Link]) -> bool:
    return not any(link.status == "broken" for link in links)


def _lost(links: Sequence[Link]) -> bool:
    """Whether GPUs do not answer the driver."""
    return any(link.layer == "NVML" and link.status == "broken" for link in links)


def _reported(work: Session, outcomes: Sequence[Outcome]) -> Mapping[str, str]:
    """Why GPUs do not answer, as the device plugin reports it, which has heard their Xid; only hosts of which it reports
    something. A cluster that cannot be asked has its own link."""
    from gpunode.cli import cluster
    from gpunode.cluster import daemonset, plugin_status
    from gpunode.errors import ClusterError

    facts = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts}
    words: dict[str, str] = {}
    if facts:
        with suppress(ClusterError):
            api = cluster.connect(work.inventory)
            hosts = [host for host in work.hosts if host.name in facts]
            found, _ = cluster.find(api, hosts, facts, seconds=0, tell=work.report.note)
            namespace = work.inventory.cluster.namespace
            pods = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
            for host, node in found.items():
                if pod := pods.get(node.name):
                    why = plugin_status.why_missing(plugin_status.read(api, node, pod))
                    words[host] = why.words if why else plugin_status.earlier(api, node, pod)
    return {host: one for host, one in words.items() if one}


def _above(work: Session, outcomes: Sequence[Outcome], *, run: bool) -> Mapping[str, Sequence[Link]]:
    """The cluster's links of the hosts whose own links hold."""
    from gpunode.cli import cluster
    from gpunode.errors import ClusterError
    from gpunode.model import Link

    if not outcomes:
        return {}
    try:
        api = cluster.connect(work.inventory)
        return _judged(api, work, outcomes, run=run)
    except ClusterError as error:
        broken = Link(
            "node", "broken", "the Kubernetes API does not answer as it should", error.message, error.hint
        )
        return {outcome.host: [broken, *_unknown("plugin", "capacity", "pod")] for outcome in outcomes}


def _judged(
    api: Api, work: Session, outcomes: Sequence[Outcome], *, run: bool
) -> Mapping[str, Sequence[Link]]:
    from gpunode.cli import cluster, proof
    from gpunode.cluster import daemonset, expected, identity, mig, plugin, plugin_status
    from gpunode.deviceplugin.status import LAYOUT
    from gpunode.model import Link
    from gpunode.verify import cluster as links
    from gpunode.verify import image

    namespace = work.inventory.cluster.namespace
    images = {outcome.host: image(outcome) for outcome in outcomes}
    seen = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts is not None}
    hosts = [host for host in work.hosts if host.name in seen]
    found, missing = cluster.find(api, hosts, seen, seconds=0, tell=work.report.note)
    config = work.inventory.cluster.plugin_config
    rows = {row.node: row for row in plugin.status(api, namespace, config)}
    fix = "gpunode provision"
    chains: dict[str, list[Link]] = {
        host: [
            Link(
                "node",
                "broken",
                "its node is another machine's"
                if isinstance(error, identity.Mistaken)
                else "the cluster has no such node",
                error.message,
                error.hint
                if isinstance(error, identity.Mistaken)
                else f"{error.hint} A kubelet that has not joined says why in `journalctl -u kubelet` on the host.",
            )
        ]
        for host, error in missing.items()
    }
    for host, node in found.items():
        row, trouble = rows.get(node.name), mig.trouble(config, seen[host].gpus, node.labels)
        capacity = _capacity(api, node, seen[host].gpus, config, namespace, row.pod if row else "")
        if row and capacity.status == "ok":  # of what else the node has, some may be out
            capacity = replace(capacity, cause="\n".join(filter(None, (capacity.cause, row.lacks))))
        refused = trouble and row and row.code == LAYOUT
        chains[host] = [
            links.node_link(node),
            images[host] or links.plugin_link(row, trouble.fix if trouble and refused else fix),
            capacity,
        ]
    sound = {host: found[host].name for host, chain in chains.items() if _holds(chain)}
    if run and sound:
        results = proof.vectoradd(
            api,
            work.inventory,
            [
                expected.target(config, node, seen[host].gpus, found[host].labels)
                for host, node in sound.items()
            ],
            work.report,
        )
        plugins = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
        by_node = {result.node: result for result in results}
        for host, node_name in sound.items():
            result, pod, node = by_node[node_name], plugins.get(node_name), found[host]
            failed = not all(one.passed for one in result.results)
            status = plugin_status.read(api, node, pod) if pod and (failed or result.shared) else None
            why = plugin_status.why_missing(status) if status and failed else None
            unlimited = plugin_status.unlimited(status) if status and result.shared else ""
            link = links.pod_link(result, why.words if why else "", unlimited)
            if link.status == "broken":
                link = links.with_mig(link, mig.trouble(config, seen[host].gpus, node.labels))
            chains[host].append(link)
    layers: Sequence[Layer] = ("node", "plugin", "capacity", "pod") if run else ("node", "plugin", "capacity")
    return {host: [*chain, *_unknown(*layers[len(chain) :])] for host, chain in chains.items()}


def _capacity(
    api: Api, node: Node, gpus: Sequence[Gpu], config: PluginConfig | None, namespace: str, pod: str
) -> Link:
    """Whether the node offers what the plugin, in this pod, makes of its host's GPUs."""
    from gpunode.cluster import expected, mig, offer
    from gpunode.deviceplugin.settings.config import LABEL
    from gpunode.model import Link
    from gpunode.verify import cluster as links

    if misnamed := expected.misnamed(config, node.labels):
        return links.misnamed_link(node, misnamed, LABEL)
    shares, trouble = expected.units(config, gpus, node.labels), mig.trouble(config, gpus, node.labels)
    if shares is not None:
        right = all(node.units.get(name, 0) == count for name, count in shares.items())
        why = None if right else offer.why_not(api, node, None, namespace)
        unseen = "The plugin sees the MIG devices that were there when its pod was started; if some were made since, "
        fix = f"{unseen}kubectl -n {namespace} delete pod {pod}" if mig.unseen(config, gpus, node) else ""
        link = links.shares_link(node, shares, why, fix)
    elif expected.unlisted(config, gpus, node.labels):
        link = links.unlisted_link(node, None if node.offers else offer.why_not(api, node, None, namespace))
    elif trouble and trouble.missing:  # nothing is to be offered
        text = f"{node.allocatable} of {len(gpus)} GPUs allocatable"
        return Link("capacity", "broken", text, trouble.what, trouble.fix)
    else:
        link = links.capacity_link(node, len(gpus), None)
        if link.status == "broken":
            why = offer.why_not(api, node, len(gpus), namespace)
            link = links.capacity_link(node, len(gpus), why)
    return links.with_mig(link, trouble)
