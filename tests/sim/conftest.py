"""Demos whose server is forked; the simulated API alone, for tests that ask it by hand."""

from collections.abc import Iterator

import pytest

from gpunode.sim import process
from gpunode.sim.cluster import Cluster
from gpunode.sim.node import container
from tests import forks

from .clusters import Client, until


@pytest.fixture(autouse=True, scope="session")
def _forked_servers() -> Iterator[None]:
    """A start costs a second of processor; what `gpunode demo` itself starts is a process of its own."""
    pods = container.fork_server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "Popen", forks.Popen)
        patch.setattr(container, "fork_server", lambda: forks.Forked(pods))
        yield
    pods.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster without hosts."""
    made = Cluster(tmp_path_factory.mktemp("sim"), [])
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    """Its administrator, as soon as pods can be made."""
    api = Client(cluster.kubeconfig)
    until(lambda: api.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] == 200)
    return api


@pytest.fixture
def records(tmp_path, monkeypatch) -> None:
    """Records of runs are the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
