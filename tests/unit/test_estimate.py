"""How long a run will take: what its question says of it."""

from unittest import mock

import pytest

from gpunode.engine.cluster_diff import ClusterPlan
from gpunode.engine.estimate import Estimate, estimate, report_costs
from gpunode.engine.history import mean_seconds
from gpunode.engine.record import Record, RunOptions
from gpunode.model import Cluster, Inventory, Packages, Reboot, Service, WriteFile
from tests.unit.test_batches import HOSTS, waiting

A1, A2, *_ = HOSTS
PACKAGES, REBOOT = Packages("why"), Reboot("why")
RESTARTS = [Service(f"{unit}.service", "why", restart=True) for unit in ("docker", "kubelet")]


def test_hosts_of_a_batch_work_side_by_side_and_batches_one_after_the_other():
    members = [waiting(A1, PACKAGES, PACKAGES, *RESTARTS), waiting(A2, *RESTARTS)]
    together = estimate([(A1, A2)], members, {}, proves=False)
    assert together == Estimate(90 + 16 + 3, typical=True)
    assert estimate([(A1,), (A2,)], members, {}, proves=False).seconds == together.seconds + 16 + 3
    assert estimate([(A1, A2)], members, {}, proves=True).seconds == together.seconds + 15


def test_batches_are_counted_as_the_run_numbers_them(tmp_path, monkeypatch):
    """Those of hosts without changes, too: they are proven."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = mock.Mock(inventory=Inventory("inventory.yaml", (), Cluster()))
    order = [[host] for host in HOSTS[:3]]
    members = [waiting(HOSTS[0], REBOOT), waiting(HOSTS[2], REBOOT)]
    costs = report_costs(session, order, members, ClusterPlan(0, ()), accepted=True)
    assert ", 3 batches, " in costs
    session.reporter.note.assert_called_with(costs)
    report_costs(session, order, members, ClusterPlan(0, ()), canary=1)
    assert [row[4] for row in session.reporter.rows.call_args.args[2]] == [
        ["canary", "reboot"],
        [],
        ["reboot"],
    ]


def test_a_reload_takes_no_reboots_time():
    assert estimate([(A1,)], [waiting(A1, REBOOT, reload=True)], {}, proves=False).seconds == 5 + 3
    assert estimate([(A1,)], [waiting(A1, REBOOT)], {}, proves=False).seconds == 120 + 3


def test_what_earlier_runs_took_counts_before_typical_times():
    """And where one is not known, the text says so."""
    members = [waiting(A1, PACKAGES, WriteFile("/etc/x", "", "why"))]
    assert estimate([(A1,)], members, {"packages": 20.0}, proves=False) == Estimate(23.0, typical=True)
    known = estimate([(A1,)], members, {"packages": 20.0, "probes": 1.0}, proves=False)
    assert known == Estimate(21.0, typical=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "about 10 s"),
        (31, "about 40 s"),
        (56, "about 1 min"),
        (200, "about 4 min"),
        (7300, "about 2 h 10 min"),
        (7100, "about 2 h"),
    ],
)
def test_a_time_is_rounded_up(seconds: float, text: str):
    assert str(Estimate(seconds, typical=False)) == text
    assert str(Estimate(seconds, typical=True)) == f"{text} (typical times)"


def test_the_mean_of_earlier_runs_is_of_hosts_that_were_finished(tmp_path):
    inventory = tmp_path / "inventory.yaml"
    for packages in (10.0, 30.0):
        run = Record.begin(inventory, ["a", "b"], RunOptions())
        run.host("a", "proven", spent={"packages": packages, "pods": 4.0})
        run.host("b", "failed", "no", spent={"packages": 900.0})
    assert mean_seconds(inventory) == {"packages": 20.0, "pods": 4.0}
    assert mean_seconds(tmp_path / "other.yaml") == {}
