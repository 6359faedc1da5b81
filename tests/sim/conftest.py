"""The simulated API alone, for tests that ask it by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpunode.sim.cluster import Cluster, serve

from .clusters import Client, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without hosts."""
    made = serve(tmp_path_factory.mktemp("sim"), [])
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    """Its administrator, as soon as pods can be made."""
    found = Client(cluster.kubeconfig)
    until(lambda: found.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] == 200)
    return found
