"""`gpunode why` and `gpunode explain`: from a symptom, or the line of an error, to its cause."""

from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import session
from gpunode.errors import UsageError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def why() -> None:
    """Explain why a pod, a node or a GPU does not work: the cause and the fix.

    Example: gpunode why pod ml/train-7
    """


@app.command(short_help="Why a pod is Pending, fails or has no GPU.")
@visits_hosts
def pod(
    *,
    name: Annotated[str, typer.Argument(help="The pod.", metavar="NAMESPACE/NAME", show_default=False)],
    namespace_of_pod: Annotated[
        str | None,
        typer.Option(
            "-n",
            help="The pod's namespace, for a NAME alone.",
            metavar="NAMESPACE",
            callback=options.check_namespace,
        ),
    ] = None,
    common: options.OfPod,
) -> int:
    """Explain why a pod is Pending, refused, crashing or without a GPU: the cause, the pods with the GPUs, the fix and its side
    effects. Several causes come in the order of their fixes. Also explains pods that a controller could not create.

    A kubeconfig is enough. With an inventory, the hosts of nodes that offer too few GPUs are probed, too. Changes nothing. Exit
    code 1: a cause is named; 0: the pod is fine; 7: the cause is not known.

    Example: gpunode why pod ml/train-7 --kubeconfig kubeconfig
    """
    from gpunode.commands.why.pod import why_pod

    with session(common) as work:
        return why_pod(work, name, namespace_of_pod, hosts=not common.alone)


@app.command(short_help="Why a node takes no pods or offers too few GPUs.")
@visits_hosts
def node(
    *,
    name: Annotated[str, typer.Argument(help="The node.", metavar="NODE", show_default=False)],
    common: options.InCluster,
) -> int:
    """Explain why a node takes no pods or offers too few GPUs: NotReady, cordoned, tainted, a broken link; by whom, since when,
    and the fix. For a healthy node: its GPUs and their pods.

    A kubeconfig is enough. With an inventory, its host is probed, and the first broken link of its chain is named. Changes
    nothing. Exit code 1: a cause is named; 0: the node is fine.

    Example: gpunode why node gpu-03
    """
    from gpunode.commands.why.node import why_node

    with session(common) as work:
        return why_node(work, name, hosts=not common.alone)


@app.command(short_help="Why a GPU takes no pods; its node and its pods.")
@visits_hosts
def gpu(
    *,
    gpu: options.Gpu,
    common: options.InCluster,
) -> int:
    """Explain why a GPU takes no pods: unhealthy, cordoned or not accepted. Also shows its node and its pods.

    A kubeconfig is enough. With an inventory, gpunode also probes the hosts, for a GPU that no device plugin lists. Changes nothing. Exit
    code 1: a cause is named; 0: the GPU is fine; 7: the GPU is unknown.

    Example: gpunode why gpu gpu-03/5
    """
    from gpunode.commands.why.gpu import why_gpu

    with session(common) as work:
        return why_gpu(work, gpu, hosts=not common.alone)


def explain(
    text: Annotated[
        list[str],
        typer.Argument(
            help="A line of a log, or a code such as `xid 79`; `-` reads lines from stdin.",
            metavar="TEXT|CODE",
            show_default=False,
        ),
    ],
    json: options.Json = False,
) -> None:
    """Explain an error of the driver, a runtime, the kubelet, the device plugin or CUDA: what happened, whose fault it is
    (hardware, driver, application, system, configuration), what to do next, and the source.

    Reads only gpunode's tables: exit code 7 for an unknown line. A line that does not prove one cause has the fault `unknown`
    (exit code 7), and `next` says how to find its cause.

    Example: gpunode explain 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'
    """
    from gpunode import report
    from gpunode.commands import explain as explanations
    from gpunode.local import files

    lines = files.text(Path("/dev/stdin")) if text == ["-"] else " ".join(text)
    if not lines.strip():
        raise UsageError("there is no text to explain", hint="Write `gpunode explain xid 79`.")
    raise typer.Exit(explanations.explain(report.make(json=json, quiet=False), lines))
