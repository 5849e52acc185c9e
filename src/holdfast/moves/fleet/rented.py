"""Decisions about rented machines and their hosts, the same in both stores."""

from collections.abc import Sequence

from holdfast.core.facts import make_lost
from holdfast.core.fleet.faults import SPAWN_FAULTS, HostFault
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.preflight.facts import PreflightResult, check_facts
from holdfast.core.states import HostEvent, HostState, InstanceEvent, InstanceState
from holdfast.core.transitions import HOST, step
from holdfast.errors import Forbidden
from holdfast.moves.rows import NewEvent, Row


class RentedHost(Row, kw_only=True):
    """The fields of an instance and its host that moves need."""

    host_id: str
    name: str
    pool: str
    offer: str
    state: InstanceState
    host: HostState
    ref: str | None = None
    fault: str = ""
    served: bool = False  # its host was active once

    @property
    def ends(self) -> bool:
        """Return whether the machine's end was requested, or has come."""
        return self.state in (InstanceState.ENDING, InstanceState.GONE)


def name_host(pool: str, host_id: str) -> str:
    """Return the name of a host to be rented: its pool, and the end of its id, which is random."""
    return f"{pool[:100]}-{host_id[-8:]}"


def check_registration(rental: RentedHost) -> HostState:
    """Return the state of a pool's host after its agent registered: its checks come next.

    Raises:
        Forbidden: the controller has given the host up.
    """
    if rental.ends:
        raise Forbidden(
            f"host {rental.name} was given back to its provider; this machine is not wanted any "
            "more",
            code="host_given_up",
        )
    return step(HOST, rental.host, HostEvent.REGISTER)


def is_spawn_fault(rental: RentedHost, fault: HostFault) -> bool:
    """Return whether the fault counts against the spawn breaker: the host has never served."""
    return fault in SPAWN_FAULTS and not rental.served


def lost_word(rental: RentedHost, reason: str) -> str:
    """Return the word for why the tasks on the host are lost, with the provider's message."""
    preempted = rental.fault == HostFault.PREEMPTED
    return make_lost("host_preempted" if preempted else "host_gone", reason)


def say_taken(reason: str) -> str:
    """Return the words that are added to an end that was told before its provider's message came."""
    return f"its provider took the host away: {reason}"


def judge_host(
    spec: PoolSpec,
    state: HostState,
    offer: str,
    *,
    cpu_slots: int,
    memory_bytes: int,
    gpus: Sequence[Gpu],
    check: tuple[str, str] | None,
) -> PreflightResult:
    """Return the result of a host's checks: pending before its agent called, "ok" once it has
    served.

    check: the verdict and the message of this incarnation's preflight, once it was measured.
    """
    if state is HostState.SPAWNING:
        return PreflightResult(result="pending")
    if state is not HostState.PREFLIGHT:
        return PreflightResult(result="ok")
    shown = check_facts(
        spec.offer(offer), cpu_slots=cpu_slots, memory_bytes=memory_bytes, gpus=gpus
    )
    if shown.result == "fail" or not spec.checks.enabled:
        return shown
    if check is None:
        return PreflightResult(result="pending")
    return PreflightResult(result=check[0], reason=check[1])


def say_stuck(spec: PoolSpec, job_id: str | None, overdue_seconds: float | None) -> str | None:
    """Return the evidence of a stuck task, or None: the task was ordered to stop, and its agent,
    which lives, has not reported its end `stuck_timeout_seconds` after its grace.

    A missing beat alone is no evidence, because the watchdogs on the host decide on it.
    """
    if job_id is None or overdue_seconds is None or overdue_seconds < spec.stuck_timeout_seconds:
        return None
    return f"a task of job {job_id} should have stopped {overdue_seconds:.0f} s ago and has not"


def intended_event(host_id: str, name: str, pool: str, offer: str, reason: str) -> NewEvent:
    """Return the event that reports a host that is to be rented."""
    return NewEvent(
        kind="host.intended",
        host_id=host_id,
        message=reason,
        data={"name": name, "pool": pool, "offer": offer},
    )


def made_event(rental: RentedHost, ref: str) -> NewEvent:
    """Return the event that reports a machine that its provider made."""
    return NewEvent(
        kind="host.made",
        host_id=rental.host_id,
        message=f"pool {rental.pool}: the machine of host {rental.name} was made",
        data={"name": rental.name, "pool": rental.pool, "offer": rental.offer, "ref": ref},
    )


def ended_event(rental: RentedHost, event: InstanceEvent, reason: str) -> NewEvent:
    """Return the event that reports a machine that is gone, or was never made."""
    return NewEvent(
        kind="host.gone",
        host_id=rental.host_id,
        message=reason,
        data={
            "name": rental.name,
            "pool": rental.pool,
            "offer": rental.offer,
            "ref": rental.ref,
            "event": str(event),
        },
    )


def failed_event(rental: RentedHost, before: HostState, fault: str, reason: str) -> NewEvent:
    """Return the event that reports a pool's host that is in error."""
    return NewEvent(
        kind="host.failed",
        host_id=rental.host_id,
        message=reason,
        data={
            "name": rental.name,
            "pool": rental.pool,
            "offer": rental.offer,
            "from": str(before),
            "fault": fault,
        },
    )
