"""One cycle: promote → health → free tasks → scale down → scale up, over one snapshot. Pure.

Each step sees the pool as the steps before it leave it. What a cycle decided is carried out by a
shell, action by action, under guards of the store: an action that comes too late changes nothing.
"""

from collections.abc import Mapping, Sequence

from holdfast.core.fleet.actions import (
    Action,
    CycleActions,
    CycleStatus,
    CycleSummary,
    DrainHost,
    EndMachine,
    FailHost,
    FreeHost,
    PoolPlan,
    Promote,
    Spawn,
    WarnHost,
)
from holdfast.core.fleet.demand import PoolDemand, list_needs, split_demand
from holdfast.core.fleet.grow import find_bound, scale_up
from holdfast.core.fleet.health import check_health, free_tasks, promote
from holdfast.core.fleet.shrink import scale_down
from holdfast.core.fleet.snapshot import FleetSnapshot, PoolView
from holdfast.core.states import HostState, InstanceState

Prices = Mapping[str, Mapping[str, float]]


def plan_fleet(snapshot: FleetSnapshot, prices: Prices | None = None) -> tuple[PoolPlan, ...]:
    """Return what each pool does now. prices: $/h by pool and offer, where providers say other ones
    than the pools' specs."""
    bounds = {view.spec.name: find_bound(view, snapshot.at) for view in snapshot.pools}
    demands = split_demand(snapshot.waiting, snapshot.pools, bounds)
    return tuple(
        _plan_pool(snapshot, view, demands[view.spec.name], (prices or {}).get(view.spec.name, {}))
        for view in snapshot.pools
    )


def _plan_pool(
    snapshot: FleetSnapshot, before: PoolView, demand: PoolDemand, prices: Mapping[str, float]
) -> PoolPlan:
    view, promoted = promote(before)
    view, failed = check_health(view, demand.queued)
    view, freed = free_tasks(view)
    needs = list_needs(view, demand)
    smaller, drained = scale_down(view, needs)
    growth = scale_up(smaller, needs, snapshot.at, prices)
    blocked = growth.blocked or demand.unfit
    actions = (*promoted, *failed, *freed, *drained, *growth.spawns)
    summary = CycleSummary(
        timestamp=snapshot.at,
        pool=view.spec.name,
        actions=_count_actions(before, actions),
        status=_count_status(smaller, demand),
        reasons=_list_reasons(before, actions, blocked),
    )
    return PoolPlan(pool=view.spec.name, actions=actions, summary=summary, blocked=blocked)


def _count_actions(view: PoolView, actions: Sequence[Action]) -> CycleActions:
    ending = {h.host_id for h in view.hosts if h.instance is InstanceState.ENDING}
    return CycleActions(
        workers_promoted=sum(isinstance(a, Promote) for a in actions),
        workers_failed=sum(isinstance(a, FailHost) for a in actions),
        workers_spawned=sum(a.count for a in actions if isinstance(a, Spawn)),
        workers_terminated=sum(
            isinstance(a, EndMachine) and a.host_id not in ending for a in actions
        ),
        tasks_reset=sum(a.tasks for a in actions if isinstance(a, FreeHost)),
    )


def _count_status(view: PoolView, demand: PoolDemand) -> CycleStatus:
    starting = sum(host.is_starting for host in view.hosts)
    serving = sum(host.is_serving for host in view.hosts)
    ending = sum(
        host.state is HostState.DRAINING or host.instance is InstanceState.ENDING
        for host in view.hosts
    )
    return CycleStatus(
        queued_tasks=demand.queued,
        spawning_workers=starting,
        active_workers=serving,
        terminating_workers=ending,
        total_workers=sum(host.is_paid for host in view.hosts),
    )


_VERBS = {Promote: "promoted", FailHost: "failed", WarnHost: "warned of", DrainHost: "draining"}
_VERBS |= {EndMachine: "ending", FreeHost: "freed"}


def _list_reasons(view: PoolView, actions: Sequence[Action], blocked: str) -> tuple[str, ...]:
    names = {host.host_id: host.name for host in view.hosts}
    ending = {h.host_id for h in view.hosts if h.instance is InstanceState.ENDING}
    said = []
    for action in actions:
        if isinstance(action, Spawn):
            said.append(f"spawning {action.count} × {action.offer}: {action.reason}")
        elif not (isinstance(action, EndMachine) and action.host_id in ending):
            fault = f" ({action.fault})" if isinstance(action, FailHost) else ""
            verb = _VERBS[type(action)]
            said.append(f"{verb} {names[action.host_id]}{fault}: {action.reason}")
    return (*said, *([blocked] if blocked else []))
