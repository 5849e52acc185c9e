"""One cycle: promote → health → free tasks → scale down → scale up, over one snapshot. Pure.

Each step sees the pool as the steps before it leave it. What a cycle decided is carried out by a
shell, action by action, under guards of the store: an action that comes too late changes nothing.
"""

from collections.abc import Mapping, Sequence

from holdfast.core.fleet import actions as acts
from holdfast.core.fleet.demand import (
    NO_PRICES,
    PoolDemand,
    Prices,
    could_run,
    list_needs,
    split_demand,
)
from holdfast.core.fleet.grow import find_bound, scale_up
from holdfast.core.fleet.health import check_health, free_tasks, pass_over, promote
from holdfast.core.fleet.shrink import scale_down
from holdfast.core.fleet.snapshot import FleetSnapshot, PoolView
from holdfast.core.states import HostState, InstanceState


def plan_fleet(snapshot: FleetSnapshot, prices: Prices = NO_PRICES) -> tuple[acts.PoolPlan, ...]:
    """Return the plan of each pool. prices: $/h by pool and offer, where a provider reports another
    price than the pool's spec."""
    told = {view.spec.name: prices.get(view.spec.name, {}) for view in snapshot.pools}
    views = [
        pass_over(
            view,
            snapshot.silence_seconds,
            snapshot.dead_seconds,
            any(could_run(view.spec, waiting) for waiting in snapshot.waiting),
        )
        for view in snapshot.pools
    ]
    bounds = {view.spec.name: find_bound(view, snapshot.at, told[view.spec.name]) for view in views}
    most = {name: hosts for name, (hosts, _) in bounds.items()}
    demands = split_demand(snapshot.waiting, views, most, told)
    return tuple(
        _plan_pool(snapshot, view, demands[name], told[name], bounds[name][1])
        for view in views
        for name in (view.spec.name,)
    )


def _plan_pool(
    snapshot: FleetSnapshot,
    before: PoolView,
    demand: PoolDemand,
    prices: Mapping[str, float],
    bound: str,
) -> acts.PoolPlan:
    view, promoted = promote(before)
    view, failed = check_health(view, demand.queued)
    view, freed = free_tasks(view)
    needs = list_needs(view, demand)
    smaller, drained = scale_down(view, needs)
    growth = scale_up(smaller, needs, snapshot.at, prices)
    blocked = growth.blocked or (bound if demand.beyond else demand.unfit)
    actions = (*promoted, *failed, *freed, *drained, *growth.spawns)
    summary = acts.CycleSummary(
        timestamp=snapshot.at,
        pool=view.spec.name,
        actions=_count_actions(before, actions),
        status=_count_status(smaller, demand),
        reasons=_list_reasons(before, actions, blocked),
    )
    return acts.PoolPlan(pool=view.spec.name, actions=actions, summary=summary, blocked=blocked)


def _list_ending(view: PoolView) -> set[str]:
    return {h.host_id for h in view.hosts if h.instance is InstanceState.ENDING}


def _count_actions(view: PoolView, actions: Sequence[acts.Action]) -> acts.CycleActions:
    if not actions:
        return acts.CycleActions()
    ending = _list_ending(view)
    return acts.CycleActions(
        hosts_promoted=sum(isinstance(a, acts.Promote) for a in actions),
        hosts_failed=sum(isinstance(a, acts.FailHost) for a in actions),
        hosts_rented=sum(a.count for a in actions if isinstance(a, acts.Spawn)),
        hosts_ended=sum(
            isinstance(a, acts.EndMachine) and a.host_id not in ending for a in actions
        ),
        tasks_reset=sum(a.tasks for a in actions if isinstance(a, acts.FreeHost)),
    )


def _count_status(view: PoolView, demand: PoolDemand) -> acts.CycleStatus:
    ending = sum(
        count
        for host, count in view.shapes
        if host.state is HostState.DRAINING or host.instance is InstanceState.ENDING
    )
    active = sum(count for host, count in view.shapes if host.state is HostState.ACTIVE)
    return acts.CycleStatus(
        queued_tasks=demand.queued,
        spawning_hosts=view.starting,
        active_hosts=active,
        terminating_hosts=ending,
        total_hosts=view.paid,
    )


_DONE = {
    acts.Promote: "{} takes work now",
    acts.FailHost: "{} is given up",
    acts.WarnHost: "{} is in doubt",
    acts.DrainHost: "{} takes no more work",
    acts.EndMachine: "the machine of {} is ended",
    acts.FreeHost: "the tasks of {} may start elsewhere",
}


def _list_reasons(view: PoolView, actions: Sequence[acts.Action], blocked: str) -> tuple[str, ...]:
    names = {host.host_id: host.name for host in view.hosts} if actions else {}
    ending = _list_ending(view) if actions else set()
    said = []
    for action in actions:
        if isinstance(action, acts.Spawn):
            said.append(f"{action.count} × {action.offer} is rented: {action.reason}")
        elif not (isinstance(action, acts.EndMachine) and action.host_id in ending):
            fault = f" ({action.fault})" if isinstance(action, acts.FailHost) else ""
            done = _DONE[type(action)].format(names[action.host_id])
            said.append(f"{done}{fault}: {action.reason}")
    return (*said, *([blocked] if blocked else []))
