"""`gpunode run`: vectoradd, nvidia-smi, and a notebook: Jupyter on a GPU, how to reach it, and its removal."""

import shlex

from gpunode.cluster import pods, rights
from gpunode.engine import nodes, proof
from gpunode.engine.reporter import ForPrograms, Reporter, progress
from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.links.pod import notebook, run_pod, vectoradd
from gpunode.links.pod.requests import Target
from gpunode.model import Inventory
from gpunode.wording import advise, lines

START_SECONDS = 900.0  # images with TensorFlow have several GiB
REMOVE_SECONDS = 120.0
LOG = ("node", "pod", "log")


def run_vectoradd(session: Session, *, image: str | None, logs: bool) -> int:
    """Run it on the free GPUs of a session's hosts, and report; the exit code. `logs`: with each pod's log."""
    reporter, notify = session.reporter, progress(session.reporter)
    api = nodes.connect(session.inventory)
    members = nodes.identify(api, session, notify)
    for member in members:
        proof.report_problem(reporter, member)
    rights.demand(api, rights.of_proof(session.inventory.cluster.namespace))
    targets = [Target(member.node.name) for member in members if member.node]
    run = nodes.pod_run(api, session.inventory, proof.PODS_SECONDS, notify, image=image)
    results = vectoradd.run(api, targets, run, args=() if image else run_pod.VECTORADD)
    proof.show_results(results, reporter)
    for result in results:
        if result.why and not (result.busy and result.uncovered):  # the rows show who uses them
            reporter.problem(Problem("", result.why, "pod", result.node))
    if logs:
        for ran in [ran for result in results for ran in result.results]:
            reporter.rows("log", LOG, [(ran.node, ran.pod, line) for line in ran.log])
    wrong = any(member.reason for member in members) or not all(result.passed for result in results)
    return 1 if wrong else 0


def run_nvidia_smi(session: Session, *, image: str | None) -> int:
    """Run nvidia-smi in a pod on one of the session's nodes, and report what it wrote; the exit code."""
    reporter, notify = session.reporter, progress(session.reporter)
    api = nodes.connect(session.inventory)
    able = nodes.find_gpu_nodes(api, session, notify)
    if not able:
        return 1
    run = nodes.pod_run(api, session.inventory, proof.PODS_SECONDS, notify, image=image)
    ran = run_pod.run_nvidia_smi(api, able, run)
    if ran.log:
        names = ForPrograms(ran.node), ForPrograms(ran.pod)
        reporter.rows("log", LOG, [(*names, line) for line in ran.log.splitlines()])
    if ran.why:
        where = f" on {ran.node}" if ran.node else ""
        fix = lines(("The pod is deleted again.", ran.fix), " ")
        reporter.problem(Problem("", f"pod {ran.pod}{where}: {ran.why}", "pod", fix=fix))
    return 1 if ran.why else 0


def start_notebook(session: Session, *, image: str, node_port: bool) -> int:
    """Run it on one of the session's nodes and report how to reach it; the exit code. It stays until it is removed."""
    reporter, notify = session.reporter, progress(session.reporter)
    api = nodes.connect(session.inventory)
    able = nodes.find_gpu_nodes(api, session, notify)
    if not able:
        return 1
    namespace = session.inventory.cluster.namespace
    rights.demand(api, rights.of_notebook(namespace))
    wanted = notebook.manifests(
        able,
        namespace=namespace,
        image=image,
        node_port=node_port,
        config=session.inventory.cluster.plugin_config,
        schedulers=nodes.schedulers(api, session.inventory),
    )
    done = notebook.start(api, wanted, seconds=START_SECONDS, notify=notify)
    if done.why:
        where = f" on {done.node}" if done.node else ""
        left = "It is deleted again." if done.created else "It was there before, and stays."
        reporter.problem(Problem("", f"{notebook.NAME}{where}: {done.why}", fix=lines((left, done.fix), " ")))
        return 1
    reporter.rows("notebook", ("node", "namespace", "name", "port"), [(done.node, namespace, notebook.NAME, done.port or None)])  # fmt: skip
    cluster = session.inventory.cluster
    named = (
        ("--kubeconfig", cluster.kubeconfig),
        ("--context", api.access.context),
        ("--namespace", namespace),
    )
    options = shlex.join(word for name, value in named if value for word in (name, str(value)))
    kubectl = f"kubectl {options}"
    if not done.created:
        reporter.note("It existed before and is unchanged.")
    reporter.note(
        f"`{kubectl} port-forward service/{notebook.NAME} 8888` forwards http://127.0.0.1:8888 to it."
    )
    (limits,) = (
        container["resources"]["limits"] for container in wanted[0]["spec"]["template"]["spec"]["containers"]
    )
    if done.created and pods.GPU not in limits:
        reporter.note(
            f"It asked for 1 {', '.join(limits)}, as these nodes share their GPUs. For more, edit the output of "
            "`gpunode run manifest notebook`."
        )
    if done.port:
        reporter.note(
            f"Every node answers on port {done.port} for it, too, over plain HTTP: the network can read Jupyter's token."
        )
    reporter.note(f"`{kubectl} logs deployment/{notebook.NAME}` shows its login token.")
    reporter.note(
        advise(
            f"It keeps its GPU until `gpunode run notebook --remove {options}`, which also deletes its files."
        )
    )
    return 0


def remove_notebook(inventory: Inventory, reporter: Reporter) -> int:
    """Delete it; the exit code. A cluster without one is right."""
    api = nodes.connect(inventory)
    gone = notebook.remove(
        api, inventory.cluster.namespace, seconds=REMOVE_SECONDS, notify=progress(reporter)
    )
    reporter.rows("object", ("action", "object"), [("removed", title) for title in gone])
    if not gone:
        reporter.note(f"Namespace {inventory.cluster.namespace} has no notebook of gpunode's.")
    return 0
