"""Decisions on a host that registers or changes its state, the same in both stores."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.facts import say_lost
from holdfast.core.host_faults import Hindrance, is_set_aside
from holdfast.core.ids import TaskKey
from holdfast.core.records import HostRecord
from holdfast.core.states import HostEvent, HostState, JobState
from holdfast.core.transitions import HOST, step
from holdfast.errors import Conflict, InvalidTransition, NotFound, Stale
from holdfast.moves.fleet.rented import RentedHost, check_registration
from holdfast.moves.jobs import drains, members, runs
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import HostSync
from holdfast.wire.agent import HostFacts

MAX_EARLIER_INCARNATIONS = 16
BOOT_SECONDS = 10.0
"""The shortest time in which a machine restarts, from its last call to the first of its new
boot."""
ASKED = frozenset(map(HostEvent, ("drain", "undrain", "quarantine", "release", "terminate")))
"""The events that people ask for."""


def register_state(
    before: HostState | None, rental: RentedHost | None, *, repeated: bool = False
) -> HostState:
    """Return the state after a registration. A rented host must pass its checks first; any other
    host has no checks, so it is active at once.

    repeated: the incarnation is known already, so a rented host keeps its state.

    Raises:
        Forbidden: the host was given back to its provider.
    """
    if rental is not None:
        after = check_registration(rental)
        return rental.host if repeated else after
    after = step(HOST, before or HostState.SPAWNING, HostEvent.REGISTER)
    return step(HOST, after, HostEvent.PASS) if after is HostState.PREFLIGHT else after


def keep_place(facts: HostFacts, rental: RentedHost | None) -> HostFacts:
    """Return the facts with the name and the pool on record for a rented host, even if its agent
    reports others."""
    if rental is None:
        return facts
    return msgspec.structs.replace(facts, name=rental.name, pool=rental.pool)


class Namesake(msgspec.Struct, frozen=True, kw_only=True):
    """Another host of the same name that has not ended. silent_seconds: time since its last call,
    None before the first."""

    id: str
    name: str
    silent_seconds: float | None = None


def check_name(
    before: str | None, facts: HostFacts, rental: RentedHost | None, others: Sequence[Namesake]
) -> None:
    """Check that a host's name is not another host's (NAME-1), because an order for a host is given
    by its name.

    before: the host's name on record, which it may keep even if another host has it. others: other
    hosts with the name in `facts`.

    Raises:
        Conflict: the name is another host's.
    """
    if not others or rental is not None or before == facts.name:
        return
    raise take_name(facts.name, others[0])


def take_name(name: str, other: Namesake) -> Conflict:
    """Return the error for a name that is another host's."""
    silent = other.silent_seconds
    heard = "has not called yet" if silent is None else f"was heard {silent:.0f} s ago"
    return Conflict(
        f"another host called {name} is on record ({other.id}, which {heard}); give this one another "
        f"name (`--name`), or end the other with `holdfast hosts terminate {other.id}`",
        code="host_name_taken",
    )


def check_boot(host_id: str, before: str, facts: HostFacts, silent_seconds: float | None) -> None:
    """Check that a key used under another boot id belongs to a silent host (NAME-3). A machine that
    restarted was silent for a while. A clone of its disk, which has the same key, registers while
    the original still calls, and would end the original's work.

    before: the boot id on record. silent_seconds: time since the host's last call.

    Raises:
        Conflict: the host lives under the other boot.
    """
    known = before and facts.boot_id and before != facts.boot_id
    if not known or silent_seconds is None or silent_seconds >= BOOT_SECONDS:
        return
    raise Conflict(
        f"host {host_id} ({facts.name}) was heard {silent_seconds:.0f} s ago from another machine, or "
        "before a start of this one a moment ago. Two machines must not share a key: on a cloned one "
        "delete the agent's state folder, and start it with a join token and a name of its own",
        code="host_lives_elsewhere",
    )


def check_takeover(host: HostRecord, now: datetime, live_seconds: float) -> None:
    """Check that a machine which joins with a token may take over the record of a host of its name
    (NAME-2): only where that host has ended or is silent, as when the machine was set up anew. A
    host that calls, or has work, is another machine.

    live_seconds: time after its last call for which a host counts as live.

    Raises:
        Conflict: the host lives, or has work running.
    """
    if host.state is HostState.TERMINATED:
        return
    if host.running or host.busy_cpu_slots or host.busy_gpus:
        raise Conflict(
            f"a host called {host.name} has work running; give this one another name (`--name`), "
            "start it with the key it was given, or end the other with `holdfast hosts "
            f"terminate {host.name}`",
            code="host_name_taken",
        )
    if host.heartbeat_at is not None:
        silent = max(0.0, (now - host.heartbeat_at).total_seconds())
        if silent < live_seconds:
            raise take_name(host.name, Namesake(id=host.id, name=host.name, silent_seconds=silent))


def pick_host(host: str, found: Sequence[tuple[str, bool]]) -> str:
    """Return the id of the host that an id or a name means.

    found: (id, whether it has ended) of hosts with this id or name: first the host with the id,
    then hosts in use, the newest first.

    Raises:
        NotFound: there is no such host.
        Conflict: several hosts in use have the name.
    """
    if not found:
        raise no_host(host)
    used = [host_id for host_id, ended in found if not ended]
    if found[0][0] != host and len(used) > 1:
        raise Conflict(
            f"{len(used)} hosts are called {host}: {', '.join(used)}; name one by its id",
            code="host_name_ambiguous",
        )
    return found[0][0]


def follow_incarnation(
    host: str,
    present: str | None,
    earlier: Sequence[str],
    incarnation: str,
    announced: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the host's earlier incarnations, newest first, once `incarnation` is the present one.

    announced: incarnations that the host says it announced before, also in vain; one of those whose
    registration still lies in a frozen controller's buffer is over too.

    LEASE-3 takes a new incarnation as evidence that the one before is gone. A registration from a
    frozen controller's buffer, or from a copied state folder, comes from an incarnation that is
    over, so it frees nothing.

    Raises:
        Stale: `incarnation` was followed by another one.
    """
    if not present or present == incarnation:  # "": its agent has not called yet
        return _gather_incarnations(earlier, announced, incarnation)
    if incarnation in earlier:
        raise Stale(
            f"a newer incarnation of host {host} has registered; this one is over",
            code="stale_incarnation",
        )
    return _gather_incarnations((present, *earlier), announced, incarnation)


def _gather_incarnations(
    earlier: Sequence[str], announced: Sequence[str], present: str
) -> tuple[str, ...]:
    """Return all incarnations that are over, each once, the newest first."""
    found = dict.fromkeys((*announced, *earlier))
    found.pop(present, None)
    return tuple(found)[:MAX_EARLIER_INCARNATIONS]


def move_state(host: str, before: HostState, event: str) -> HostState:
    """Return the state after an operator's `event`.

    Raises:
        Conflict: the state does not accept it; the message names the events that it accepts.
    """
    try:
        wanted = HostEvent(event)
        if wanted not in ASKED:
            raise ValueError
        return step(HOST, before, wanted)
    except (ValueError, InvalidTransition):
        taken = sorted(str(e) for s, e in HOST if s == before and e in ASKED) or ["nothing"]
        raise Conflict(
            f"host {host} is {before} and does not take {event!r}; it takes {', '.join(taken)}"
        ) from None


def no_host(host: str) -> NotFound:
    """Return the error for an unknown id or name."""
    return NotFound(f"there is no host {host!r}; `holdfast hosts` lists them")


def dead_event(host: HostRecord, at: datetime) -> NewEvent:
    """Return the event that reports a host that is flagged dead."""
    silent = (at - host.heartbeat_at).total_seconds() if host.heartbeat_at else 0.0
    return NewEvent(
        kind="host.dead",
        host_id=host.id,
        message=f"host {host.name} is silent for {silent:.0f} s with {host.running} live tasks",
        data={"name": host.name, "silent_seconds": round(silent, 3), "running": host.running},
    )


def registered_event(host_id: str, name: str, incarnation: str, state: HostState) -> NewEvent:
    """Return the event that reports a host's new incarnation."""
    data = {"name": name, "incarnation": incarnation, "state": str(state)}
    text = f"host {name} registered"
    return NewEvent(kind="host.registered", host_id=host_id, message=text, data=data)


def lost_event(host_id: str, name: str, why: str, jobs: list[str]) -> list[NewEvent]:
    """Return the event that reports a host whose tasks were freed, if any were."""
    if not jobs:
        return []
    text = f"host {name} lost the tasks of {len(jobs)} job{'s' * (len(jobs) != 1)}: {say_lost(why)}"
    return [
        NewEvent(
            kind="host.lost",
            host_id=host_id,
            message=text,
            data={"name": name, "why": why, "jobs": jobs[:100]},
        )
    ]


def moved_event(
    host_id: str,
    name: str,
    before: HostState,
    after: HostState,
    event: str,
    reason: str,
    hard: bool,
    *,
    scaled: bool = False,
) -> NewEvent:
    """Return the event that reports a host whose state an operator or evidence changed. scaled: the
    host is scaled down."""
    data = {"name": name, "event": event, "from": str(before), "to": str(after), "hard": hard}
    if scaled:
        data["cause"] = str(Cause.SCALED_DOWN)
    return NewEvent(
        kind="host.moved", host_id=host_id, message=reason or f"host {name}: {event}", data=data
    )


def faults_event(
    host_id: str, name: str, before: Collection[Hindrance], after: Collection[Hindrance]
) -> list[NewEvent]:
    """Return the event that reports a host whose faults changed; none where they did not."""
    if tuple(before) == tuple(after):
        return []
    text, kind = f"host {name} can start everything again", "host.able"
    if after:
        kind, only = "host.faulty", "" if is_set_aside(after) else _say_parts(after)
        text = f"host {name} is set aside{only}: {'; '.join(fault.reason for fault in after)}"
    data = {"name": name, "faults": [msgspec.to_builtins(fault) for fault in after]}
    return [NewEvent(kind=kind, host_id=host_id, message=text, data=data)]


def _say_parts(faults: Collection[Hindrance]) -> str:
    apps = [app for fault in faults for app in fault.apps]
    parts = ["containers"] * any(fault.part == "containers" for fault in faults)
    return f" for {' and '.join(parts + [f'calls of app {app}' for app in apps])}"


def lose_tasks_on(
    m: Moves, host_id: str, lost: str, keep: str | None, held: Collection[TaskKey] = ()
) -> list[str]:
    """End the host's live tasks as lost, except those of incarnation `keep` and those in `held`.
    Return the ids of their jobs."""
    freed = []
    for job in m.jobs.values():
        for task in m.ranks(job):
            here = task.host_id == host_id and task.incarnation != keep
            if here and task.state.holds_lease and task.key not in held:
                runs.lose_task(m, job, task, lost)
                freed.append(job.id)
    return list(dict.fromkeys(freed))


def is_unheard(m: Moves, sync: HostSync) -> bool:
    """Return whether an agent's goodbye leaves out ends of tasks that it lists as live or that have
    begun.

    The goodbye is no evidence of these ends (LEASE-3), so the host keeps its state: its guardian
    may still give the tasks their grace, and reports their ends when they come.
    """
    told = {key for key, _ in sync.ended}
    living = {*sync.live, *sync.started} - told
    return any(
        task.host_id == sync.host_id
        and task.incarnation == sync.incarnation
        and task.state.holds_lease
        and task.key not in told
        and (task.started_at is not None or task.key in living)
        for job in m.jobs.values()
        for task in m.ranks(job)
    )


def deadline_of(state: HostState, deadline_seconds: float | None, now: datetime) -> datetime | None:
    """Return the time until which work may run on a draining host; None: no limit."""
    if state is not HostState.DRAINING or deadline_seconds is None:
        return None
    return now + timedelta(seconds=deadline_seconds)


def cause_of(state: HostState, *, scale_down: bool) -> Cause:
    """Return the cause for which a moved host's work will be stopped, if it is."""
    return Cause.SCALED_DOWN if scale_down and state is HostState.DRAINING else Cause.HOST_DRAINED


def deadline_reason(name: str, cause: Cause) -> str:
    """Return the reason for work that is stopped at a host's deadline."""
    state = "scaled down" if cause is Cause.SCALED_DOWN else "being drained"
    return f"host {name} is {state}, and its deadline has come"


def stop_work(m: Moves, host_id: str, name: str, cause: Cause, reason: str) -> list[str]:
    """Stop the work on a host now, for an operator or because the host is scaled down. Returns the
    jobs."""
    if cause is Cause.SCALED_DOWN:
        sentence = f"host {name} is scaled down" + (f": {reason}" if reason else "")
        return drain_jobs_for(m, cause, sentence, host_id, stop=False)
    return drain_jobs_for(m, cause, reason or "its host was drained by an operator", host_id)


def give_notice(m: Moves, host_id: str, name: str, reason: str, seconds: float | None) -> list[str]:
    """Have the tasks of a host save and go, because its provider takes it away (EVICT-2). Returns
    the jobs. seconds: how long they have; None: their grace."""
    sentence = f"host {name} goes: {reason}"
    return drain_jobs_for(m, Cause.PREEMPTED, sentence, host_id, stop=False, notice_seconds=seconds)


def drain_jobs_for(
    m: Moves,
    cause: Cause,
    reason: str,
    host_id: str | None,
    *,
    stop: bool = True,
    notice_seconds: float | None = None,
) -> list[str]:
    """Begin the drain of every loaded job that runs (on `host_id`, where given) and return these
    jobs. A supervised job whose script runs elsewhere loses only its members on that host.

    stop: the drain counts as an operator's hard stop.
    """
    begun = []
    for job in m.jobs.values():
        here = host_id is None or any(
            t.host_id == host_id and t.state.holds_lease for t in m.ranks(job)
        )
        if here and job.state in (JobState.RESERVED, JobState.RUNNING):
            begun.append(job.id)
            if host_id is None or not members.stop_on_host(m, job, host_id, cause, reason):
                drains.begin_drain(
                    m, job, cause, reason, operator_stop=stop, notice_seconds=notice_seconds
                )
    return begun


def register_reason(state: HostState) -> str:
    """Return the reason of a host that has just registered."""
    return "registered" if state is HostState.ACTIVE else f"registered; it stays {state}"
