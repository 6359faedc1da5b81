"""`gpunode run`: sample workloads on the GPUs, cleaned up afterwards."""

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import in_cluster, session

app = typer.Typer(no_args_is_help=True)


@app.callback()
def workloads() -> None:
    """Run sample workloads on the nodes' GPUs.

    Example: gpunode run vectoradd
    """


@app.command(short_help="Add vectors on every free GPU, one pod a GPU.")
@visits_hosts
def vectoradd(
    *,
    common: options.OfNodes,
    image: Annotated[
        str | None,
        typer.Option(
            help="Use another image, such as NVIDIA's vectoradd sample; exit status 0 passes.",
            metavar="IMAGE",
        ),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show each pod's log.")] = False,
) -> int:
    """Add vectors on every free GPU of the hosts' nodes, one pod a GPU, and clean up.

    A kubeconfig is enough; without an inventory --limit and --exclude take nodes. With one, a host is asked for its own name
    over SSH if no node has its name or address.

    Example: gpunode run vectoradd --limit gpu-01 --logs
    """
    from gpunode.commands import run

    with session(common) as work:
        return run.run_vectoradd(work, image=image, logs=logs)


@app.command("nvidia-smi", short_help="Show a GPU as a pod sees it.")
@visits_hosts
def nvidia_smi(
    *,
    common: options.OfNodes,
    image: Annotated[
        str | None, typer.Option(help="Use another image than the device plugin's.", metavar="IMAGE")
    ] = None,
) -> int:
    """Run nvidia-smi in a pod with one GPU, on one of the nodes, show its output, and delete the pod.

    Where the nodes share their GPUs, the pod asks for one unit of what they offer, such as aliyun.com/gpu-mem. If the pod
    cannot start, one sentence says why. A kubeconfig is enough; then --limit and --exclude take nodes.

    Example: gpunode run nvidia-smi --limit gpu-01
    """
    from gpunode.commands import run

    with session(common) as work:
        return run.run_nvidia_smi(work, image=image)


@app.command(short_help="Jupyter with TensorFlow on a GPU.")
@visits_hosts
def notebook(
    *,
    common: options.OfNodes,
    image: Annotated[
        str | None, typer.Option(help="Use another image with Jupyter on port 8888.", metavar="IMAGE")
    ] = None,
    node_port: Annotated[
        bool,
        typer.Option("--node-port", help="Also expose it on a port of every node, over plain HTTP."),
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Delete it, with its files.")] = False,
) -> int:
    """Run Jupyter with TensorFlow in a pod with one GPU, on one of the nodes, and show how to reach it. Where the nodes share
    their GPUs, it asks for one unit of what they offer.

    It keeps its GPU and its files until --remove deletes it. If it is not ready within 15 minutes, or
    on Ctrl-C before that, it is deleted, and one sentence says why. A kubeconfig is enough; then --limit and --exclude take
    nodes.

    Example: gpunode run notebook --limit gpu-01
    """
    from gpunode import report
    from gpunode.commands import run

    if remove:
        return run.remove_notebook(in_cluster(common), report.make(json=common.json, quiet=common.quiet))
    with session(common) as work:
        return run.start_notebook(work, image=image or "", node_port=node_port)


@app.command(short_help="Print a sample workload for kubectl.")
def manifest(
    name: Annotated[
        str,
        typer.Argument(
            help="notebook, mnist, cuda, vectoradd or binpack.",
            metavar="NAME",
            autocompletion=options.complete_samples,
            show_default=False,
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            help="The namespace of its objects.",
            callback=options.check_namespace,
            metavar="NAME",
        ),
    ] = "default",
    image: Annotated[
        str, typer.Option(help="Use another image than the default; cuda needs yours.", metavar="IMAGE")
    ] = "",
    node_selector: Annotated[
        list[str] | None,
        typer.Option("--node-selector", help="Only nodes with this label.", metavar="LABEL=VALUE"),
    ] = None,
    runtime_class: Annotated[
        str, typer.Option(help="nvidia, where the inventory has `runtime: class`.", metavar="NAME")
    ] = "",
    json: options.Json = False,
) -> None:
    """Print the manifest of a sample workload, for kubectl. Contacts no cluster and changes nothing.

    Example: gpunode run manifest vectoradd --node-selector accelerator=nvidia-tesla-p100 | kubectl apply -f -
    """
    from gpunode.errors import UsageError
    from gpunode.links.pod import samples

    sample = samples.find(name)
    pairs = [label.partition("=") for label in node_selector or ()]
    for label, sign, value in pairs:
        if not (label and sign):
            raise UsageError(f"--node-selector {label}{sign}{value}: expected LABEL=VALUE")
    selector = {label: value for label, _, value in pairs}
    text = sample.text(namespace, image=image, node_selector=selector, runtime_class=runtime_class)
    if json:
        import yaml

        from gpunode import report

        objects = [(item,) for item in yaml.safe_load_all(text)]
        report.make(json=True, quiet=True).rows("manifest", ("object",), objects)
    else:
        typer.echo(text.rstrip())
