"""Pools, hosts and waiting jobs for tests of the cycle, in few words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.core.fleet.actions import Action, PoolPlan
from holdfast.core.fleet.cycle import plan_fleet
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetHost, FleetSnapshot, PoolView, Waiting
from holdfast.core.states import HostState, InstanceState

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ONE = Offer(name="one", gpus=1, cpu_slots=4, usd_per_hour=1.0)
EIGHT = Offer(name="eight", gpus=8, cpu_slots=32, usd_per_hour=9.0)


def pool(**changes: Any) -> PoolSpec:
    """A pool `p` of one-GPU machines at a dollar an hour."""
    return PoolSpec(**{"name": "p", "provider": "local", "offers": (ONE,), **changes})


def host(number: int, state: str = "active", **changes: Any) -> FleetHost:
    """A host that serves and is idle for long, or what the changes make of it."""
    fields: dict[str, Any] = {
        "host_id": f"h{number}",
        "name": f"host-{number}",
        "state": HostState(state),
        "instance": InstanceState.MADE,
        "ref": f"m{number}",
        "offer": "one",
        "usd_per_hour": 1.0,
        "heartbeat_seconds": 1.0,
        "idle_seconds": 10_000.0,
        "state_seconds": 10_000.0,
        "intent_seconds": 10_000.0,
    }
    if changes.get("leases"):
        fields["idle_seconds"] = None
    return FleetHost(**{**fields, **changes})


def starting(number: int, **changes: Any) -> FleetHost:
    """A host whose machine was just asked for."""
    fresh = {"intent_seconds": 5.0, "state_seconds": 5.0, "heartbeat_seconds": None}
    return host(number, "spawning", **{**fresh, "idle_seconds": None, **changes})


def waits(jobs: int, **changes: Any) -> Waiting:
    """Waiting jobs of one task and one GPU."""
    return Waiting(**{"queue": "gpu", "jobs": jobs, "gpus": 1, "oldest_seconds": 9.0, **changes})


def plan(
    spec: PoolSpec, hosts: tuple[FleetHost, ...] = (), *waiting: Waiting, **view: Any
) -> PoolPlan:
    """The plan of one pool."""
    at = view.pop("at", NOON)
    limits = {f"{name}_seconds": view.pop(name) for name in ("silence", "dead") if name in view}
    views = (PoolView(spec=spec, hosts=hosts, **view),)
    return plan_fleet(FleetSnapshot(at=at, pools=views, waiting=waiting, **limits))[0]


def kinds(found: PoolPlan, kind: type[Action]) -> list[Any]:
    """The actions of one kind."""
    return [action for action in found.actions if isinstance(action, kind)]


def spawned(found: PoolPlan) -> int:
    """How many machines are made."""
    return found.summary.actions.hosts_rented
