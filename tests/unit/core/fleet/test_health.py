"""Promotion, health, and the order in which a host in error is taken apart."""

from __future__ import annotations

import pytest

from holdfast.core.fleet.actions import EndMachine, FailHost, FreeHost, Promote, Spawn, WarnHost
from holdfast.core.fleet.faults import HostFault
from holdfast.core.fleet.instances import MachineState
from holdfast.core.fleet.snapshot import FleetHost
from holdfast.core.states import InstanceState
from tests.unit.core.fleet.fleets import (
    EIGHT,
    ONE,
    host,
    kinds,
    plan,
    pool,
    spawned,
    starting,
    waits,
)

LATE = {"intent_seconds": 301.0}


@pytest.mark.parametrize(
    ("sick", "fault"),
    [
        (starting(0, ref=None, **LATE), HostFault.NO_INSTANCE_ID),
        (starting(0, machine=MachineState.STARTING, **LATE), HostFault.SPAWN_TIMEOUT),
        (starting(0, machine=MachineState.RUNNING, **LATE), HostFault.NO_HEARTBEAT),
        (starting(0, gone="preempted"), HostFault.PROVIDER_GONE),
        (host(0, "preflight", preflight="fail"), HostFault.PREFLIGHT_FAILED),
        (host(0, "preflight", state_seconds=301.0), HostFault.PREFLIGHT_FAILED),
        (host(0, leases=1, heartbeat_seconds=301.0), HostFault.HEARTBEAT_EXPIRED),
        (host(0, "draining", leases=1, heartbeat_seconds=301.0), HostFault.HEARTBEAT_EXPIRED),
        (host(0, leases=1, stuck="job x beats no more"), HostFault.STUCK_TASK),
        (host(0, leases=1, gone="the node failed"), HostFault.PROVIDER_GONE),
    ],
)
def test_each_fault_has_its_sentence(sick: FleetHost, fault: HostFault) -> None:
    (failed,) = kinds(plan(pool(), (sick,)), FailHost)
    assert failed.fault is fault
    assert len(failed.reason) > 5


@pytest.mark.parametrize(("leases", "said"), [(1, "1 task assigned"), (2, "2 tasks assigned")])
def test_what_a_silent_host_holds_is_counted(leases: int, said: str) -> None:
    (failed,) = kinds(plan(pool(), (host(0, leases=leases, heartbeat_seconds=301.0),)), FailHost)
    assert failed.reason.endswith(f" with {said}")


@pytest.mark.parametrize(
    "well",
    [
        starting(0, intent_seconds=300.0),
        host(0, "preflight", state_seconds=10.0),
        host(0, leases=1, heartbeat_seconds=300.0),
        host(0, idle_seconds=5.0, heartbeat_seconds=9_999.0),  # POOL-1: quiet, and nothing waits
        host(0, leases=1, telemetry_seconds=119.0),
    ],
)
def test_what_is_in_time_is_left_alone(well: FleetHost) -> None:
    assert not plan(pool(min=1), (well,)).actions


def test_a_silent_host_is_in_error_once_something_waits_and_is_replaced_in_the_same_cycle() -> None:
    silent = host(0, idle_seconds=5.0, heartbeat_seconds=301.0)
    found = plan(pool(), (silent,), waits(2))
    assert [a.fault for a in kinds(found, FailHost)] == [HostFault.HEARTBEAT_EXPIRED]
    assert spawned(found) == 1


SILENT = {"heartbeat_seconds": 40.0, "idle_seconds": 5.0}


@pytest.mark.parametrize(
    ("quiet", "jobs", "more"),
    [
        (host(0, **SILENT), 1, 1),  # admission gives it nothing
        (host(0, aside=True, idle_seconds=5.0), 1, 1),  # ASIDE-1
        (host(0, **SILENT), 0, 0),  # POOL-1
        (host(0, aside=True, idle_seconds=5.0), 0, 0),
        (host(0, heartbeat_seconds=11.0, idle_seconds=5.0), 1, 0),
        (host(0, leases=1, heartbeat_seconds=29.0), 1, 0),  # its leases run
        (host(0, leases=1, heartbeat_seconds=31.0), 0, 1),  # dead: its work will wait (DEMAND-4)
        (host(0, leases=1, aside=True), 1, 0),  # what runs there goes on
    ],
)
def test_a_host_that_admission_passes_over_is_no_supply(
    quiet: FleetHost, jobs: int, more: int
) -> None:
    """POOL-3: one notion of a host that serves, for admission and for the pool."""
    found = plan(pool(), (quiet,), *([waits(jobs)] if jobs else []), silence=12.0, dead=30.0)
    assert spawned(found) == more
    assert not kinds(found, FailHost), "it may be back at any moment"
    assert found.summary.status.active_hosts == 1
    full = plan(pool(max=1), (quiet,), *([waits(jobs)] if jobs else []), silence=12.0, dead=30.0)
    assert spawned(full) == 0
    said = "pool p at its max of 1 host, of which 1 is silent or set aside"
    assert full.blocked == (said if more else "")


def test_the_work_of_a_lost_host_is_wanted_on_a_host_of_its_offer() -> None:
    """DEMAND-4."""
    spec = pool(offers=(ONE, EIGHT), jobs_per_host=1)
    lost = host(0, "error", offer="eight", leases=1, instance=InstanceState.ENDING)
    found = plan(spec, (host(1, leases=1), lost))
    assert [(s.offer, s.count) for s in kinds(found, Spawn)] == [("eight", 1)]
    unknown = host(0, "error", offer="old", leases=1, instance=InstanceState.ENDING)
    assert spawned(plan(spec, (unknown,))) == 1, "its offer is no more: any will do"


def test_checks_that_pass_let_a_host_serve() -> None:
    found = plan(pool(), (host(0, "preflight", preflight="warn", preflight_reason="slow disk"),))
    assert kinds(found, Promote) == [Promote(host_id="h0", reason="slow disk")]
    assert found.summary.status.active_hosts == 1


def test_stale_telemetry_is_a_warning() -> None:
    found = plan(pool(), (host(0, leases=1, telemetry_seconds=121.0),))
    assert [a.reason for a in kinds(found, WarnHost)] == ["its GPU readings are 121 s old"]


def test_a_host_in_error_is_marked_ended_and_freed_when_its_fence_allows() -> None:
    """POOL-2. Its work waits from now on (DEMAND-4), so another host is asked for at once."""
    sick = host(0, leases=3, heartbeat_seconds=301.0)
    found = plan(pool(), (sick,))
    kinds_of = [type(a) for a in found.actions]
    assert kinds_of == [FailHost, EndMachine, Spawn], "its leases may still run"
    marked = host(0, "error", leases=3, instance=InstanceState.ENDING)
    after = plan(pool(), (marked, starting(1)))
    assert [type(a) for a in after.actions] == [EndMachine]
    gone = host(0, "error", leases=3, instance=InstanceState.GONE, reason="its node failed")
    (freed,) = plan(pool(), (gone, starting(1))).actions
    assert freed == FreeHost(host_id="h0", reason="its node failed", tasks=3)
    lapsed = host(0, "error", leases=0, instance=InstanceState.ENDING)
    assert [type(a) for a in plan(pool(), (lapsed,)).actions] == [FreeHost, EndMachine]


def test_a_machine_that_its_provider_says_is_gone_frees_its_tasks_at_once() -> None:
    sick = host(0, leases=3, gone="spot reclaim", instance=InstanceState.GONE)
    found = plan(pool(), (sick,))
    assert [type(a) for a in found.actions] == [FailHost, FreeHost, Spawn]
    assert found.summary.actions.tasks_reset == 3
    assert found.summary.reasons[0] == "host-0 is given up (provider_gone): spot reclaim"
