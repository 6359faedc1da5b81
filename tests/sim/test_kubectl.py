"""The real kubectl does on the simulated cluster what docs/demo.md says of it."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpunode.sim.cluster import Cluster
from gpunode.sim.host import kinds
from gpunode.sim.process import demos_folder
from tests import tables

from .clusters import IMAGE, ready

SLEEPS = f"""
apiVersion: v1
kind: Pod
metadata: {{name: sleeps}}
spec: &spec
  containers: [{{name: c, image: "{IMAGE}", command: [sleep, "600"], imagePullPolicy: IfNotPresent}}]
  terminationGracePeriodSeconds: 1
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: all}}
spec:
  selector: {{matchLabels: {{a: b}}}}
  template:
    metadata: {{labels: {{a: b}}}}
    spec:
      containers: [{{name: c, image: "{IMAGE}", command: [sleep, "600"], imagePullPolicy: IfNotPresent}}]
"""


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_works():
    """One command after the other."""
    with tempfile.TemporaryDirectory(prefix="gpn-", dir=demos_folder(), ignore_cleanup_errors=True) as room:
        machine = kinds.new_host("new", count=1)
        ready(Path(room), machine)
        cluster = Cluster(Path(room), [machine])
        try:
            Path(room, "sleeps.yaml").write_text(SLEEPS)
            for command, status, said in map(dict.values, tables.read("commands-of-kubectl")):
                done = subprocess.run(
                    ["kubectl", "--kubeconfig", "kubeconfig", *command.split()],
                    cwd=room,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == status, (command, done.stdout + done.stderr)
                assert said in done.stdout + done.stderr, (command, done.stdout + done.stderr)
        finally:
            cluster.close()
