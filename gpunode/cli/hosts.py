"""Commands that change hosts, after a look at what that would be: `plan`, `provision`, `resume`, `forget`, `abort`, `label` and the
cordons of GPUs."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import load_inventory, load_inventory_of_runs, session

if TYPE_CHECKING:
    from gpunode.engine.batch_order import Size


def _size(batch: str | None) -> "Size | None":
    from gpunode.engine.batch_order import Size

    return Size.parse(batch) if batch is not None else None


def _proven(taint: bool, *, run: bool) -> bool:
    from gpunode.errors import UsageError

    if taint and not run:
        raise UsageError(
            "--taint-until-verified needs the proof, and --no-run skips it", hint="Leave out one of the two."
        )
    return taint


@visits_hosts
def plan(
    *,
    common: options.Deploys,
    diff: Annotated[
        bool | None,
        typer.Option(
            "--diff/--no-diff",
            help="--diff: show every reason, and the diffs of files and cluster objects. --no-diff: omit them, also from --json. Default: those that leave a host's plan, or a changed object's diff, within 12 lines.",
            show_default=False,
        ),
    ] = None,
    exit_with: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 5 if changes are pending on hosts or in the cluster; with 6 if, besides, something could not be checked.",
        ),
    ] = False,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Explain the choices of each plan: repository, branch, modules, runtime …"
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Also write the plan to this file, which `provision FILE` applies.", metavar="FILE"
        ),
    ] = None,
    run: options.Run = True,
    batch: options.Batch = None,
    canary: options.Canary = 0,
    taint: options.Taint = False,
    html: options.Html = None,
) -> int:
    """Show what provision would change on every host and in the cluster, and why. Changes nothing. Give it the options that
    provision will have, such as --canary.

    --out writes the plan for review: `gpunode show FILE` shows it, `gpunode provision FILE` applies exactly that plan with these
    options. The file has every diff, and no secret.

    Signs: + new, ~ changed, - removed, ! an action such as a restart.

    Example: gpunode plan inventory.yaml --limit p100 --exit-code
    """
    from gpunode.commands.plan import show_plan
    from gpunode.commands.provision import ProvisionOptions
    from gpunode.engine import plan_file

    if out is not None:
        plan_file.check_place(out)
    settings = ProvisionOptions(run=run, size=_size(batch), canary=canary, taint=_proven(taint, run=run))
    with session(common, html) as work:
        return show_plan(work, settings, diff=diff, waits=exit_with, why=why, out=out)


@visits_hosts
def provision(
    *,
    common: options.Deploys,
    yes: options.Yes = False,
    run: options.Run = True,
    batch: options.Batch = None,
    canary: options.Canary = 0,
    max_fail: Annotated[
        int | None,
        typer.Option(
            help="Stop once more than N hosts have failed, refused and unreachable ones included. Default: stop at the first failure during the run.",
            min=0,
            show_default=False,
            metavar="N",
        ),
    ] = None,
    fingerprint: options.Fingerprints = None,
    taint: options.Taint = False,
    accept: Annotated[
        options.Level | None,
        typer.Option(
            "--accept",
            help="Measure the GPUs after the proof; a failing GPU fails its host.",
            metavar=options.LEVELS,
            case_sensitive=False,
            show_default=False,
        ),
    ] = None,
    html: options.Html = None,
    junit: options.JUnit = None,
) -> int:
    """Make every host a verified GPU node: plan, ask, apply, deploy the device plugin, verify every GPU in a pod.

    Takes a file of `plan --out` in place of the inventory: gpunode plans its hosts again and applies what matches the review
    without a question. It shows what has changed since and asks; with --yes such a change ends the command with exit code 4.

    Example: gpunode provision inventory.yaml --limit p100 --yes
    """
    from gpunode.commands import provision as rollout
    from gpunode.engine import plan_file
    from gpunode.errors import UsageError

    file = common.inventory
    reviewed = plan_file.read(file)
    if file.suffix not in ("", ".yaml", ".yml") and not file.exists():
        raise UsageError(
            f"{file}: no such file, neither an inventory nor a plan",
            hint=f"`gpunode plan --out {file}` writes a plan, `gpunode init` an inventory.",
        )
    if reviewed is not None:
        if not Path(reviewed.inventory).exists():
            raise UsageError(
                f"{file}: the plan is of {reviewed.inventory}, which is not in this folder",
                hint="Apply it in the folder where it was made.",
            )
        names = common.limit or reviewed.names
        common = dataclasses.replace(common, inventory=Path(reviewed.inventory), limit=names)
    settings = rollout.ProvisionOptions(
        yes=yes,
        run=run,
        size=_size(batch),
        canary=canary,
        max_fail=max_fail,
        fingerprints=tuple(fingerprint or ()),
        taint=_proven(taint, run=run),
        accept=accept or "",
    )
    if reviewed is not None:
        settings = settings.with_plan(reviewed, file, common.given)
    with session(common, html, junit, accepted=yes) as work:
        return rollout.provision(work, settings)


@visits_hosts
def resume(
    *,
    common: options.Deploys,
    yes: options.Yes = False,
    html: options.Html = None,
    junit: options.JUnit = None,
) -> int:
    """Continue with the unfinished hosts of this inventory's last `provision` or `undo`, with its options. Plans them again and
    shows the plan. Reads the run's record on this machine, below ~/.local/state/gpunode.

    Example: gpunode resume inventory.yaml --yes
    """
    from gpunode.commands import provision as rollout
    from gpunode.commands import undo as undoing
    from gpunode.engine import exit_codes, history

    load_inventory_of_runs("resume", common.inventory, common.origin)
    run = history.find_last(common.inventory)
    if not run.not_done:
        with session(common, html, junit, choose=lambda _: ()) as work:
            work.reporter.note(f"Run {run.id} has finished all of its hosts: there is nothing to resume.")
            if more := history.note_unfinished(common.inventory):
                work.reporter.note(more)
        return exit_codes.HOSTS_LEFT if more else 0
    limit = [*(common.limit or ()), *([] if common.limit else ["@not-done"])]
    with session(dataclasses.replace(common, limit=limit), html, junit, accepted=yes) as work:
        if run.options.undo:
            undone = history.find(run.options.undo, run.folder)
            return undoing.undo(
                work, undone, undoing.UndoOptions.of_recorded_run(run, yes=yes, now=time.time())
            )
        return rollout.provision(
            work, rollout.ProvisionOptions.of_recorded_run(run, yes=yes, now=time.time())
        )


@visits_hosts
def forget(
    *,
    hosts: Annotated[
        list[str],
        typer.Argument(
            help="Hosts or groups of the inventory, or nodes no longer in it.",
            metavar="HOST...",
            show_default=False,
            autocompletion=options.complete_hosts,
        ),
    ],
    keep_software: Annotated[
        bool,
        typer.Option(
            "--keep-software",
            help="Remove only marks, labels and records; driver, toolkit, configuration and device plugin keep working.",
        ),
    ] = False,
    yes: options.Yes = False,
    batch: options.Batch = None,
    common: options.Named,
) -> int:
    """Remove gpunode's traces from hosts: its files, merges and holds, its image and records, the device plugin, and the
    labels, taints and annotations of their nodes. Names first what it cannot remove.

    Protects work on the GPUs as `provision` does. The next provision treats a host still in the inventory as new.

    Example: gpunode forget gpu-07 -i inventory.yaml
    """
    from gpunode.commands import forget as rollout
    from gpunode.inventory import match_hosts
    from gpunode.model import Host, Inventory

    strangers: list[str] = []

    def choose(inventory: Inventory) -> tuple[Host, ...]:
        chosen: set[str] = set()
        for name in hosts:
            problems: list[str] = []
            chosen |= match_hosts(inventory, [name], "HOST", problems)
            strangers.extend([name] if problems else [])
        return tuple(host for host in inventory.hosts if host.name in chosen)

    size = _size(batch)
    with session(common, accepted=yes, choose=choose) as work:
        settings = rollout.ForgetOptions(yes, keep_software, size, tuple(dict.fromkeys(strangers)))
        return rollout.forget_hosts(work, settings)


@visits_hosts
def abort(*, common: options.Common) -> int:
    """End an apply in progress on hosts, for example one with a hanging package manager.

    Restores a service's files unless its restart is already verified. Packages stay: the next provision finishes dpkg's work.
    Skips hosts without an apply.

    Example: gpunode abort inventory.yaml --limit gpu-07
    """
    from gpunode.commands import abort as rollout

    with session(common) as work:
        return rollout.abort(work)


@visits_hosts
def cordon_gpu(
    *,
    gpu: options.Gpu,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            help="The reason, shown by status and why.",
            metavar="TEXT",
        ),
    ],
    yes: options.Yes = False,
    common: options.Common,
) -> int:
    """Take one GPU out of scheduling: the device plugin offers it as Unhealthy, so no new pod gets it. Running pods stay.

    The note is a file on the host: it survives restarts of plugin, kubelet and host, and needs no Kubernetes rights. `status`,
    `verify` and `plugin status` show operator, reason and time, and do not count the GPU as a fault.

    Example: gpunode cordon-gpu gpu-03/5 --reason 'fan is broken' inventory.yaml
    """
    from gpunode.commands import cordon_gpu as cordons
    from gpunode.errors import UsageError

    if not reason.strip():
        raise UsageError("--reason is empty", hint="Say why: `--reason 'fan is broken'`.")
    with session(common, accepted=yes) as work:
        return cordons.cordon_gpu(work, gpu, reason.strip(), yes=yes)


@visits_hosts
def uncordon_gpu(*, gpu: options.Gpu, yes: options.Yes = False, common: options.Common) -> int:
    """Return a GPU that `cordon-gpu` took out.

    Example: gpunode uncordon-gpu gpu-03/5 inventory.yaml
    """
    from gpunode.commands import cordon_gpu as cordons

    with session(common, accepted=yes) as work:
        return cordons.cordon_gpu(work, gpu, None, yes=yes)


@visits_hosts
def label(
    *,
    accelerator: Annotated[
        bool, typer.Option("--accelerator", help="Set accelerator=nvidia-tesla-p100 and the like.")
    ] = False,
    features: Annotated[
        bool,
        typer.Option(
            "--features", help="Set nvidia.com/gpu.product and others, as GPU feature discovery does."
        ),
    ] = False,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            help="Set an extended resource's count; with --remove, only its name.",
            metavar="NAME=COUNT",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the labels or the count.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a value that another field manager set.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    common: options.InCluster,
) -> int:
    """Label nodes with the model of their GPUs, read from the hosts' PCI bus. Needs no driver. Labels at once; --dry-run
    shows the changes.

    --features instead sets the labels of NVIDIA's GPU feature discovery (product, count, memory, replicas, driver, MIG) from
    nvidia-smi. Where GPU feature discovery runs, gpunode leaves them to it.

    --resource instead sets a count of an extended resource in the nodes' status, for devices without a device plugin. Only the
    scheduler counts it: containers get no device, and a kubelet's restart sets it to 0. A kubeconfig is enough for this;
    --limit and --exclude then take GPU nodes.

    Example: gpunode label --accelerator inventory.yaml --dry-run
    """
    from gpunode.commands import label as labels
    from gpunode.errors import UsageError

    if sum(map(bool, (accelerator, features, resource))) > 1:
        raise UsageError(
            "--accelerator, --features and --resource are different things", hint="Give one of them."
        )
    if resource:
        counts = labels.parse_counts(resource, remove=remove)
        with session(common) as work:
            return labels.count_resources(work, counts, overwrite=overwrite, dry_run=dry_run)
    if not (accelerator or features):
        raise UsageError(
            "no label is chosen",
            hint="Choose --accelerator, --features or --resource NAME=COUNT: `gpunode label --accelerator inventory.yaml`. "
            "Other labels are written by `labels:` in the inventory, or `kubectl label node`.",
        )
    if common.alone:
        load_inventory(common.inventory, common.origin)  # models come from hosts: explained with an example
    with session(common) as work:
        write = labels.label_features if features else labels.label_accelerator
        return write(work, remove=remove, overwrite=overwrite, dry_run=dry_run)
