"""`gpunode label`: the accelerator label by the GPUs' model, labels as of GPU feature discovery, and extended resources counted by hand."""

import re
from collections.abc import Callable, Mapping

from gpunode.cluster.api import Api
from gpunode.engine import converge, exit_codes, nodes
from gpunode.engine.member import Member, outcomes
from gpunode.engine.reporter import Reporter, progress, report_reason
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem, UsageError
from gpunode.links.node import ACCELERATOR_LABEL, Node, labels
from gpunode.links.plugin import expected, features
from gpunode.model import Facts


def label_accelerator(session: Session, *, remove: bool, overwrite: bool, dry_run: bool) -> int:
    """Label the hosts' nodes with the model of their GPUs, or `remove` that label; the exit code."""
    reporter, rows = session.reporter, list[tuple[str, ...]]()

    def label(api: Api, node: Node, seen: Facts) -> None:
        wanted = {} if remove else labels.accelerator(seen.pci)
        writer = labels.ACCELERATOR
        changes = labels.write(api, node, wanted, writer=writer, overwrite=overwrite, dry_run=dry_run)
        if wanted and (others := labels.others(seen.pci)):
            reporter.note(f"{node.name} also has {', '.join(others)}; a node has one accelerator label")
        value = wanted.get(ACCELERATOR_LABEL)
        before, after = changes.get(ACCELERATOR_LABEL, (value, value))
        result = "same" if before == after else "would change" if dry_run else "changed"
        rows.append((node.name, before or "", after or "", result))

    code = _for_each_node(session, label)
    reporter.rows("label", ("node", "before", "accelerator", "result"), rows)
    return code


def label_features(session: Session, *, remove: bool, overwrite: bool, dry_run: bool) -> int:
    """Label the hosts' nodes as GPU feature discovery does, or `remove` these labels; the exit code. A node that it labels itself
    is left to it, and loses what gpunode had written."""
    reporter, rows = session.reporter, list[tuple[str, ...]]()

    def label(api: Api, node: Node, seen: Facts) -> None:
        settings = expected.find_config(session.inventory.cluster.plugin_config, node.labels)
        wanted = {} if remove else features.feature_labels(seen, settings)
        if not (wanted or remove):
            reporter.note(f"{node.name}: no GPU answers, so its labels stay; see `gpunode verify`.")
            return
        if owned := features.other_owner(node, wanted):
            reporter.note(
                f"{node.name}: {owned} belongs to another writer, such as GPU feature discovery: gpunode leaves these labels alone."
            )
            wanted = {}
            if features.WRITER not in node.applied:
                return
        changes = labels.write(
            api, node, wanted, writer=features.WRITER, overwrite=overwrite, dry_run=dry_run
        )
        result = "would change" if dry_run else "changed"
        rows.extend((node.name, key, old or "", new or "", result) for key, (old, new) in changes.items())
        if not (changes or owned):
            rows.append((node.name, "", "", "", "same"))

    code = _for_each_node(session, label)
    reporter.rows("features", ("node", "label", "before", "after", "result"), rows)
    return code


def _for_each_node(session: Session, label: Callable[[Api, Node, Facts], None]) -> int:
    """Call `label` for every host that was probed and has a node; the exit code."""
    api, reporter = nodes.connect(session.inventory), session.reporter
    members = session.for_each_host(converge.probe_and_plan, plans=False)
    unseen = [member for member in members if member.facts is None]
    reporter.failures(outcomes(unseen))
    placed = nodes.locate(
        api, [member for member in members if member.facts], seconds=0, notify=reporter.note
    )
    failed = False
    for member in map(nodes.explain_no_node, placed):
        if member.node is None or member.facts is None:
            report_reason(reporter, member.host.name, member.reason)
            failed = True
            continue
        try:
            label(api, member.node, member.facts)
        except ClusterError as error:
            reporter.problem(error.problem, member.host.name)
            failed = True
    return 1 if failed else exit_codes.worst(unseen)


# The API server's rule for names of extended resources; kubernetes.io is its own.
NAME = re.compile(
    r"(?!([-a-z0-9.]+\.)?kubernetes\.io/|requests\.)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?",
    re.ASCII,
)
MOST = 2**31 - 1


def parse_counts(pairs: list[str], *, remove: bool) -> dict[str, int | None]:
    """Resources and their counts in `NAME=COUNT`; None for names to `remove`. Raises UsageError."""
    counts: dict[str, int | None] = {}
    for word in pairs:
        name, sign, number = word.partition("=")
        right = not sign if remove else number.isascii() and number.isdecimal() and len(number) < 11
        if not NAME.fullmatch(name) or not right or (not remove and int(number) > MOST):
            raise UsageError(
                f"--resource {word}: expected {'a resource' if remove else 'NAME=COUNT'}",
                hint=f"For example `--resource example.com/fpga{'' if remove else '=2'}`.",
            )
        counts[name] = None if remove else int(number)
    return counts


def count_resources(
    session: Session, counts: Mapping[str, int | None], *, overwrite: bool, dry_run: bool
) -> int:
    """Write the counts into the nodes' status; the exit code."""
    api, reporter = nodes.connect(session.inventory), session.reporter
    members = nodes.identify(api, session, progress(reporter))
    rows = [
        row for member in members for row in _count_on_node(api, member, counts, reporter, overwrite, dry_run)
    ]
    reporter.rows("resource", ("node", "resource", "before", "after", "result"), rows)
    bad = any(member.node is None for member in members) or any(row[-1] == "refused" for row in rows)
    if rows and not dry_run and any(row[-1] == "changed" and row[3] is not None for row in rows):
        reporter.note("A kubelet restart sets these counts to 0: run this command again then.")
    return 1 if bad else 0


def _count_on_node(
    api: Api,
    member: Member,
    counts: Mapping[str, int | None],
    reporter: Reporter,
    overwrite: bool,
    dry_run: bool,
) -> list[tuple[str, str, int | None, int | None, str]]:
    if member.node is None:
        report_reason(reporter, member.host.name, member.reason)
        return []
    rows, changes = [], dict[str, str | None]()
    for name, after in counts.items():
        resource = member.node.resources.get(name)
        before = resource.capacity if resource else None
        result = "would change" if dry_run else "changed"
        if before == after:
            result = "same"
        elif before and after is not None and not overwrite:
            result = "refused"
            reporter.problem(
                Problem(
                    "",
                    f"{member.node.name} already has {before} {name}, set by a device plugin or another operator",
                    fix="--overwrite replaces the number; a device plugin sets its own again.",
                ),
                member.host.name,
            )
        else:
            changes[name] = None if after is None else str(after)
        rows.append((member.node.name, name, before, after, result))
    if changes and not dry_run:
        # The kubelet copies capacity to allocatable, but takes nothing away there.
        gone = {name: None for name, number in changes.items() if number is None}
        fields = {"status": {"capacity": changes, **({"allocatable": gone} if gone else {})}}
        api.merge("Node", member.node.name, fields, part="status")
    return rows
