"""The agent's question to systemd before a kubelet's file is moved, on a real one."""

import json

import pytest

from gpunode.host import bootstrap

from .api import Lab

pytestmark = pytest.mark.lab
OLD = {
    "a.service": 'Environment="A=--x --y=\\"1\\"" B=2\nExecStart=/bin/true $A --z',
    "env": 'A="--x \\\n --y=1"\n',
}
NEW = {
    "a.service": 'Environment="A=--x --y=\\"1\\" --feature-gates=\\"G=true\\"" B=2\nExecStart=/bin/true $A --z \\\n  --feature-gates=H=true',
    "env": 'A="--x \\\n --y=1 --feature-gates=G=true"\n',
}
BAD = {
    "a.service": 'Environment="A=--x" B=2\nExecStart=/bin/true $A --z',
    "env": "A=--x --feature-gates=G=true\n",
}
ASK = """
import json, sys, os
source, files = json.load(sys.stdin)
exec(compile(source, "agent", "exec"), {"__name__": "agent"})
from gpunode.agent.failures import Failure
from gpunode.links.kubelet.on_host import check_kubelet_file, effective_environment, effective_unit
os.makedirs("/run/gpunode-checks", exist_ok=True)
found = []
for name, old, new in files:
    for path, text in (("/run/gpunode-checks/" + name, old), ("/run/gpunode-checks/new", new)):
        with open(path, "w") as file:
            file.write(text)
    asked = effective_unit if name.endswith(".service") else effective_environment
    told = asked("/run/gpunode-checks/" + name)
    try:
        check_kubelet_file("/run/gpunode-checks/" + name, "/run/gpunode-checks/new", None)
        found.append([told, "ok"])
    except Failure as failure:
        found.append([told, failure.error])
print(json.dumps(found))
"""


def test_a_real_systemd_tells_what_it_makes_of_a_file(lab: Lab):
    """Other gates pass; a word that would be lost does not, in a unit and in an environment file."""
    unit = "[Service]\n{}\n".format
    files = [
        (name, unit(old) if name.endswith("service") else old, unit(new) if name.endswith("service") else new)
        for merged in (NEW, BAD)
        for name, old, new in ((name, OLD[name], merged[name]) for name in OLD)
    ]
    job = json.dumps([bootstrap.program(), files])
    node = lab.node("modern")
    answers = json.loads(node.exec(["python3", "-c", ASK], input=job).stdout)
    node.exec(["rm", "-rf", "/run/gpunode-checks"])
    assert all("--x" in told for told, _ in answers)
    assert [said for _, said in answers[:2]] == ["ok", "ok"]
    assert all("it would lose --y" in said for _, said in answers[2:])
