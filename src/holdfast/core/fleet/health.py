"""The first three steps of a cycle: promote, check health, free the tasks of what is in error.

POOL-1  Quiet is not dead: a host without work, in a pool for which nothing waits, is left alone.
POOL-2  A host in error is marked first; its leases are renewed no more (the fence); its machine is
          ended; its tasks are freed when the machine is gone or no lease is left; then the budget
          of infrastructure failures is charged, as for any lost host.
POOL-3  A host that admission passes over, because it is silent or cannot start anything, does not
        count for waiting jobs. A host with leases is passed over once it is dead; its work counts
        as waiting from that moment, and not only from the end of its leases.
POOL-4  A host that gets no work and runs none is given back after `idle_timeout_seconds`, even if
        it costs nothing: one in quarantine, or one that an operator drained. One that its provider
        takes away is given back as soon as it runs nothing, because until then no other may come in its
        place.
"""

from collections.abc import Callable, Collection

import msgspec

from holdfast.core.fleet.actions import Action, EndMachine, FailHost, FreeHost, Promote, WarnHost
from holdfast.core.fleet.faults import HostFault, find_gone_fault
from holdfast.core.fleet.instances import MachineState
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetHost, PoolView
from holdfast.core.states import HostState, InstanceState

Judge = Callable[[PoolSpec, FleetHost], Action | None]
Stepped = tuple[PoolView, list[Action]]
_COMING = (HostState.SPAWNING, HostState.PREFLIGHT)
_LEAVING = (HostState.DRAINING, HostState.QUARANTINED)
_SERVED = (HostState.ACTIVE, *_LEAVING)


def pass_over(
    view: PoolView, silence_seconds: float, dead_seconds: float, wanted: bool
) -> PoolView:
    """Mark the hosts that admission passes over (POOL-3). wanted: jobs wait that the pool's hosts
    could run; while none does, an idle host is left alone (POOL-1)."""
    changed = {}
    for host in view.hosts:
        if host.state is not HostState.ACTIVE or not (wanted or host.leases):
            continue
        limit = dead_seconds if host.leases else silence_seconds
        if (host.heartbeat_seconds or 0.0) > limit or (host.aside and not host.leases):
            changed[host.host_id] = msgspec.structs.replace(host, passed_over=True)
    return view.replace_hosts(changed)


def promote(view: PoolView) -> Stepped:
    """Promote hosts that passed their checks; fail hosts that did not come up in time."""
    return _judge_hosts(view, _judge_start, _COMING)


def check_health(view: PoolView, queued: int) -> Stepped:
    """Find hosts that fell silent while there is work, are stuck, or are gone. queued: number of
    jobs that wait for the pool."""
    return _judge_hosts(view, lambda spec, host: _judge_health(spec, host, queued), _SERVED)


def free_tasks(view: PoolView) -> Stepped:
    """End the machines of hosts that are over, and free their tasks when the fence allows it."""
    actions: list[Action] = []
    changed = {}
    for host in view.hosts:
        if host.is_over or (host.state in _LEAVING and is_unwanted(view, host)):
            actions += end_host(host)
            changed[host.host_id] = retire(host)
    return view.replace_hosts(changed), actions


def end_host(host: FleetHost) -> list[Action]:
    """Return the actions that free the tasks of a host that is over and end its machine."""
    actions: list[Action] = []
    why = host.gone or host.reason or _END_REASONS.get(host.state, "no longer wanted")
    fenced = not host.leases or host.instance is InstanceState.GONE
    if host.state is not HostState.TERMINATED and fenced:
        actions.append(FreeHost(host_id=host.host_id, reason=why, tasks=host.leases))
    if host.is_paid:
        actions.append(EndMachine(host_id=host.host_id, reason=why))
    return actions


def retire(host: FleetHost) -> FleetHost:
    """Return the host as the next steps of the cycle count it: still paid for, and of no use."""
    ending = InstanceState.ENDING if host.is_paid else InstanceState.GONE
    state = HostState.ERROR if host.leases else HostState.TERMINATED
    return msgspec.structs.replace(host, state=state, instance=ending)


_END_REASONS = {
    HostState.ERROR: "it is in error",
    HostState.TERMINATED: "it was terminated",
    HostState.QUARANTINED: "it is in quarantine, and runs nothing",
    HostState.DRAINING: "it is drained, and runs nothing",
}


def is_unwanted(view: PoolView, host: FleetHost) -> bool:
    """Return whether a host that gets no work is given back: at once where it was drained because
    the pool shrinks or its provider takes it away, else after its idle time (POOL-4). A
    paused pool keeps its hosts in quarantine and the hosts that an operator drained. One that still
    sends outputs is kept within the grace."""
    if host.leases or host.sends_outputs(view.spec.shutdown_grace_seconds):
        return False
    if host.state is HostState.DRAINING and (host.draining_for_scale or host.lost):
        return True
    waited = host.state_seconds
    if host.idle_seconds is not None:
        waited = min(waited, host.idle_seconds)
    return view.paused is None and waited >= view.spec.idle_timeout_seconds


def _judge_hosts(view: PoolView, judge: Judge, states: Collection[HostState]) -> Stepped:
    actions: list[Action] = []
    changed = {}
    for host in view.hosts:
        action = judge(view.spec, host) if host.state in states else None
        if action is not None:
            actions.append(action)
            changed[host.host_id] = _follow(host, action)
    return view.replace_hosts(changed), actions


def _follow(host: FleetHost, action: Action) -> FleetHost:
    if isinstance(action, Promote):
        return msgspec.structs.replace(host, state=HostState.ACTIVE, idle_seconds=0.0)
    if isinstance(action, FailHost):
        return msgspec.structs.replace(host, state=HostState.ERROR, reason=action.reason)
    return host


def _fail(host: FleetHost, fault: HostFault, reason: str) -> FailHost:
    return FailHost(host_id=host.host_id, fault=fault, reason=reason)


def _judge_start(spec: PoolSpec, host: FleetHost) -> Action | None:
    if host.state is HostState.PREFLIGHT:
        return _judge_preflight(spec, host)
    if host.gone:
        return _fail(host, find_gone_fault(host.lost), host.gone)
    limit = spec.spawn_timeout_seconds
    if host.intent_seconds <= limit:
        return None
    fault, why = HostFault.SPAWN_TIMEOUT, f"its machine did not start within {limit:.0f} s"
    if host.ref is None:
        fault, why = HostFault.NO_INSTANCE_ID, f"the provider named no machine within {limit:.0f} s"
    elif host.machine is MachineState.RUNNING:
        fault = HostFault.NO_HEARTBEAT
        why = f"its machine runs, and no agent on it called within {limit:.0f} s"
    return _fail(host, fault, f"{why}; its provider says: {host.said}" if host.said else why)


def _judge_preflight(spec: PoolSpec, host: FleetHost) -> Action | None:
    if host.gone:
        return _fail(host, find_gone_fault(host.lost), host.gone)
    if host.preflight in ("ok", "warn"):
        return Promote(host_id=host.host_id, reason=host.preflight_reason or "its checks passed")
    if host.preflight == "fail":
        return _fail(host, HostFault.PREFLIGHT_FAILED, host.preflight_reason or "a check failed")
    limit = spec.preflight_timeout_seconds
    if host.state_seconds > limit:
        return _fail(
            host, HostFault.PREFLIGHT_FAILED, f"its checks did not end within {limit:.0f} s"
        )
    return None


def _judge_health(spec: PoolSpec, host: FleetHost, queued: int) -> Action | None:
    if host.gone:
        return _fail(host, find_gone_fault(host.lost), host.gone)
    silent = host.heartbeat_seconds
    if silent is not None and silent > spec.heartbeat_timeout_seconds and (host.leases or queued):
        held, noun = (host.leases, "task") if host.leases else (queued, "job")
        work = f"{held} {noun}{'s' * (held != 1)} {'assigned' if host.leases else 'waiting'}"
        return _fail(
            host, HostFault.HEARTBEAT_EXPIRED, f"its agent is silent for {silent:.0f} s with {work}"
        )
    if host.stuck is not None:
        return _fail(host, HostFault.STUCK_TASK, host.stuck)
    age = host.telemetry_seconds
    if age is not None and age > spec.telemetry_stale_seconds:
        return WarnHost(host_id=host.host_id, reason=f"its GPU readings are {age:.0f} s old")
    return None
