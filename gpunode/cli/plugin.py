"""`gpunode plugin`: the bundled device plugin in the cluster."""

from pathlib import Path
from typing import Annotated

import typer

from gpunode import __version__
from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import in_cluster, session, tell_origin

app = typer.Typer(
    help="""Write the bundled device plugin's image; deploy, inspect or remove the plugin.

    Example: gpunode plugin status""",
    no_args_is_help=True,
)


@app.command(short_help="Run the plugin on the nodes of the inventory's hosts.")
@visits_hosts
def deploy(
    *,
    common: options.Deploys,
    replace: Annotated[
        str,
        typer.Option(
            "--replace",
            help="Delete another device plugin's DaemonSet first; `plan` names it.",
            metavar="NAMESPACE/NAME",
            show_default=False,
        ),
    ] = "",
    yes: options.Yes = False,
) -> int:
    """Label the nodes of the inventory's hosts, run the device plugin on them, and wait until each offers GPUs.

    Shows what it will change in the cluster and asks. Changes no host; asks a host for its own name over SSH if no node has its
    name or address.

    --replace removes the named DaemonSet first. It must serve no other nodes, and no operator or Helm release may recreate it.
    It stays if this plugin's pods would not be admitted, or a node lacks their image. Running pods keep their GPUs.

    Example: gpunode plugin deploy inventory.yaml --limit gpu-01
    """
    from gpunode.commands import plugin

    with session(common, accepted=yes) as work:
        return plugin.deploy(work, yes=yes, replace=replace)


@app.command(short_help="Show the plugin on every GPU node, with problems.")
@visits_hosts
def status(*, common: options.InCluster) -> int:
    """Show the plugin on every GPU node of the cluster: pod, restarts, GPUs offered, problems.

    A kubeconfig is enough; without an inventory --limit and --exclude take nodes. Exit code 1 on any problem, including GPUs
    that a node does not offer.

    Example: gpunode plugin status --limit gpu-01
    """
    from gpunode.commands import plugin

    with session(common) as work:
        return plugin.inspect(work, selected=common.selects)


@app.command(short_help="Take the plugin out of the cluster.")
def remove(
    invocation: typer.Context,
    inventory: options.InventoryPath = options.INVENTORY,
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    namespace: options.Namespace = None,
) -> None:
    """Remove the plugin and its objects from the cluster, on all nodes at once.

    Shows what it will delete and asks; a kubeconfig is enough. With --yes and no inventory, --context or --kubeconfig
    names the cluster. Also removes gpunode's labels from nodes.

    Example: gpunode plugin remove --context prod
    """
    from gpunode import report
    from gpunode.commands import plugin
    from gpunode.errors import UsageError

    origin, reporter = options.origin(invocation), report.make(json=json, quiet=quiet)
    which = options.InCluster(
        inventory, kubeconfig=kubeconfig, context=context, namespace=namespace, origin=origin
    )
    if yes and which.alone and not (context or kubeconfig):
        raise UsageError(
            f"--yes without an inventory: nothing names the cluster, and there is no {inventory} in this folder",
            hint="Name the inventory, --context or --kubeconfig; or leave out --yes, and the question names the context.",
        )
    known = in_cluster(which)
    tell_origin(inventory, origin, reporter)
    plugin.remove(known, reporter, yes=yes)


@app.command(short_help="Write the plugin's image, without docker.")
def image(
    base: Annotated[
        str,
        typer.Option(
            help="The image to build on, with glibc and Python 3.10 or newer: an archive (docker save, OCI), a folder in OCI's layout, or HOST/NAME@sha256:… in a registry.",
            metavar="IMAGE",
            show_default=False,
        ),
    ] = "",
    to: Annotated[Path, typer.Option(help="The archive to write.", metavar="FILE")] = Path("plugin.tar"),
    arch: Annotated[
        str, typer.Option(help="The nodes' architecture: amd64 or arm64.", metavar="NAME")
    ] = "amd64",
    name: Annotated[
        str, typer.Option(help="The image's name and tag.", metavar="NAME:TAG")
    ] = f"gpunode-deviceplugin:{__version__}",
    wheels: Annotated[
        Path | None,
        typer.Option(
            help="Take the libraries from this folder of wheels instead of an index.", metavar="FOLDER"
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write the image of the device plugin, which also holds the scheduler extender, as an archive for
    `cluster.plugin.archive`.

    Needs no docker: pip fetches the pinned libraries, checked by hash. docker load and ctr images import take the archive, too.
    The same base, gpunode and Python make the same file, byte for byte. If this computer has the base's version of Python, the
    modules are compiled.

    Example: gpunode plugin image --base python.tar
    """
    from gpunode import report
    from gpunode.errors import UsageError
    from gpunode.links.plugin.image import MACHINES, REFERENCE, write
    from gpunode.wording import page

    if not base:
        raise UsageError(
            "no image to build on is named",
            hint="Name one with --base: an archive that skopeo or `docker save` writes, or HOST/NAME@sha256:… in a registry. "
            f"More: {page('deviceplugin#run-it')}",
        )
    if arch not in MACHINES:
        raise UsageError(f"--arch {arch}: no such architecture", hint=f"Choose one of {', '.join(MACHINES)}.")
    if not REFERENCE.fullmatch(name):
        raise UsageError(
            f"--name {name}: not a name with a tag",
            hint="Write it like gpunode-deviceplugin:1, in lower case.",
        )
    if wheels and not wheels.is_dir():
        raise UsageError(f"--wheels {wheels}: no such folder")
    written = write(base, to, name=name, arch=arch, folder=wheels)
    reporter = report.make(json=json, quiet=False)
    reporter.rows(
        "image",
        ("file", "image", "platform", "python", "id"),
        [(str(written.file), written.name, written.platform, written.python, written.digest)],
    )
    if not written.compiled:
        reporter.note(
            f"Its modules are not compiled, so each start takes longer: this computer has no Python {written.python}."
        )
    reporter.note(f"For the inventory's `cluster`:  plugin: {{archive: {written.file}}}")
