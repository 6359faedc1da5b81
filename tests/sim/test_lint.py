"""`gpunode lint` on simulated hosts: what an upgrade of Kubernetes would break, before it."""

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from .operators import of_kind, worked
from .test_batches import gpunode


def test_an_upgrade_is_judged_before_it():
    """Exit code 1 with each host's findings, 0 without, 2 for no version; nothing is changed."""
    with Demo([kinds.old_host("gpu-1"), kinds.new_host("gpu-2")]) as demo:
        done = gpunode(demo, "lint", "--target", "1.36", "inventory.yaml", "--json")
        assert done.returncode == 1, done.stdout + done.stderr
        seen = {(line["host"], line["code"]) for line in of_kind(done, "finding")}
        assert seen == {("gpu-1", "dockershim"), ("gpu-1", "flag"), ("gpu-2", "gate")}
        (total,) = of_kind(done, "summary")
        assert (total["hosts"], total["broken"], total["unreachable"]) == (2, 2, 0)

        shown = gpunode(demo, "lint", "--target", "1.36", "inventory.yaml")
        assert "dockershim, which is gone since 1.24" in shown.stdout
        assert "2 of 2 hosts would break with Kubernetes 1.36" in shown.stderr

        worked(gpunode(demo, "lint", "--target", "1.23", "inventory.yaml"))
        done = gpunode(demo, "lint", "--target", "1.99", "inventory.yaml", "--limit", "gpu-2", "--json")
        assert "gpunode knows Kubernetes up to 1." in done.stdout
        done = gpunode(demo, "lint", "--target", "next", "inventory.yaml")
        assert (done.returncode, "--target next: not a version" in done.stderr) == (2, True)
