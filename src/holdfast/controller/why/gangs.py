"""What `why` says of places: which hosts could take a job, who makes room, who has not claimed a
rank's place. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.retries import say_span
from holdfast.core.placement.plan import Candidate, describe_need
from holdfast.core.placement.preemption import find_winner
from holdfast.core.placement.ranks import name_ranks, say_names
from holdfast.core.records import AttemptRecord, HostRecord, JobRecord, TaskRecord
from holdfast.core.states import HostState, TaskState
from holdfast.wire.api import WhyLine

MAX_HOSTS = 5
"""Hosts named one by one; the rest are counted."""


_START_RULES = ("start-error", "runtime-error", "checkpoint")


# ---- a queued job


def explain_room_made(found: Circumstances) -> Iterator[WhyLine]:
    """Who is being stopped for it, and what room is held back."""
    for victim in found.victims[:MAX_HOSTS]:
        yield WhyLine(
            code="taking_place",
            hint=f"holdfast why {victim.id}",
            message=f"it takes the place of job {victim.id} ({victim.name}, priority "
            f"{victim.priority}), which is being stopped",
        )
    if len(found.victims) > MAX_HOSTS:
        more = len(found.victims) - MAX_HOSTS
        yield WhyLine(
            code="taking_place", message=f"and that of {more} more job{'s' * (more != 1)}"
        )
    if found.refusal and found.refusal.startswith("room is held back"):
        yield WhyLine(
            code="room_held_back",
            message=found.refusal,
            hint="others use that room only while they end in time",
        )


def explain_place(found: Circumstances) -> Iterator[WhyLine]:
    """Why no host, or not enough of them, can take it now; nothing where there is room."""
    job = found.job
    alive = [h for h in found.hosts if h.state is not HostState.TERMINATED]
    serving = [h for h in alive if not h.queues or job.queue in h.queues]
    labelled = [h for h in serving if _carries(h, job)]
    active = [h for h in labelled if h.state is HostState.ACTIVE]
    if not alive:
        yield WhyLine(
            code="no_hosts",
            message="there is no host at all",
            hint="start one: holdfast agent --join URL --token JOIN_TOKEN",
        )
    elif not serving:
        yield WhyLine(
            code="no_host_serves_queue",
            message=f"no host serves queue {job.queue}",
            hint=f"start an agent with `--queues {job.queue}`, or with none to serve them all",
        )
    elif not labelled:
        wanted = ", ".join(
            f"{name}={value}" for name, value in sorted(job.spec.host_labels.items())
        )
        yield WhyLine(
            code="no_host_with_labels",
            message=f"no host that serves queue {job.queue} carries {wanted}",
            hint="start an agent with `--label K=V`, or submit it without --host-label",
        )
    elif not active:
        states = ", ".join(f"{h.name} is {h.state}" for h in labelled[:MAX_HOSTS])
        yield WhyLine(
            code="no_active_host",
            message=f"no host that serves queue {job.queue} takes work: {states}",
            hint="holdfast hosts undrain|release HOST",
        )
    else:
        yield from _explain_size(found, active)
    dead = [h.name for h in labelled if h.flagged_dead_at is not None]
    if dead:
        yield WhyLine(
            code="dead_hosts",
            message=f"{say_names(dead, MAX_HOSTS)} sent no heartbeat while work runs there",
            hint="holdfast hosts --dead",
        )


def _explain_young(found: Circumstances, host_ids: Collection[str]) -> Iterator[WhyLine]:
    """Who could make room but for the time it has run; nothing where somebody makes some
    already."""
    young_ones = () if found.victims else found.young
    for young in [y for y in young_ones if not y.host_ids.isdisjoint(host_ids)][:MAX_HOSTS]:
        yield WhyLine(
            code="may_make_room",
            hint="preempt_min_run_seconds says how long nobody is preempted",
            message=f"job {young.job_id} of priority {young.priority} may be asked to make room "
            f"in {say_span(young.left_seconds)}: "
            f"by then it has run for {say_span(young.least_seconds)}",
        )


def _explain_size(found: Circumstances, active: Sequence[HostRecord]) -> Iterator[WhyLine]:
    """Whether the hosts are large enough at all, and whether enough of them is free."""
    job = found.job
    need = describe_need(
        Candidate(
            job_id=job.id,
            epoch=job.epoch,
            queue=job.queue,
            priority=job.priority,
            tasks=job.tasks,
            gpus=job.gpus,
            cpu_slots=job.cpu_slots,
            memory_bytes=job.memory_bytes,
        )
    )
    idle, free = (sum(count(host, job) for host in active) for count in (_count_idle, _count_free))
    if idle < job.tasks:
        text = f"no active host is large enough: it needs {need}"
        if job.tasks > 1 and idle:
            text = f"it needs {need} at once, and no more than {idle} would fit if all active hosts were idle"
        yield WhyLine(
            code="impossible_resources",
            message=text,
            hint="ask for less, or add a larger host"
            if job.tasks == 1 or not idle
            else "ask for less, or add hosts",
        )
    elif free < job.tasks:
        text = (
            f"no host has {need} free now"
            if job.tasks == 1
            else f"it needs {need} at once, and {free} fit now"
        )
        yield WhyLine(
            code="no_room",
            message=text,
            hint="it starts when running work ends; `holdfast hosts` shows what is busy",
        )
        yield from _explain_young(found, {host.id for host in active})


def _carries(host: HostRecord, job: JobRecord) -> bool:
    return all(host.labels.get(name) == value for name, value in job.spec.host_labels.items())


def _count_idle(host: HostRecord, job: JobRecord) -> int:
    return _count(job, host.cpu_slots, len(host.gpus), host.memory_bytes)


def _count_free(host: HostRecord, job: JobRecord) -> int:
    gpus = len(host.gpus) - len(host.busy_gpus)
    return _count(
        job, host.cpu_slots - host.busy_cpu_slots, gpus, host.memory_bytes - host.busy_memory_bytes
    )


def _count(job: JobRecord, cpu_slots: int, gpus: int, memory_bytes: int) -> int:
    """How many of its ranks fit into so much."""
    count = job.tasks
    for wanted, room in (
        (job.cpu_slots, cpu_slots),
        (job.gpus, gpus),
        (job.memory_bytes, memory_bytes),
    ):
        if wanted:
            count = min(count, max(0, room) // wanted)
    return count


def explain_last_attempt(found: Circumstances) -> Iterator[WhyLine]:
    """What became of the attempt before, where it is to be run again."""
    job = found.job
    if not job.attempts:
        return
    winner = find_winner(job.reason)
    if winner is not None:
        yield WhyLine(
            code="preempted",
            hint=f"it starts again when there is room; holdfast show {winner[0]}",
            message=f"attempt {job.attempts} gave its place to job {winner[0]} of priority "
            f"{winner[1]}, at no charge "
            f"(this one has {job.priority})",
        )
        return
    yield WhyLine(
        code="last_attempt",
        message=f"attempt {job.attempts}: {job.reason}",
        hint=f"holdfast attempts {job.id}",
    )
    yield from explain_start_error(found)


# ---- starts


def explain_start_error(found: Circumstances) -> Iterator[WhyLine]:
    """Where the last attempt could not be started: the host is as much to be looked at as the
    job."""
    last = found.last_attempt
    if last is None or last.rule not in _START_RULES:
        return
    host = _host_of_trigger(last)
    where = f" on host {host}" if host else ""
    yield WhyLine(
        code="start_error",
        message=f"attempt {last.number} could not be started{where}: {_words_of_trigger(last)}",
        hint="put right what the host or the job lacks, or keep the job off such hosts: "
        "--host-label K=V",
    )


def _host_of_trigger(attempt: AttemptRecord) -> str | None:
    member = next((m for m in attempt.members if m.trigger), None)
    return attempt.host if member is None else member.host


def _words_of_trigger(attempt: AttemptRecord) -> str:
    member = next((m for m in attempt.members if m.trigger), None)
    facts = None if member is None else member.facts
    words = (
        None
        if facts is None
        else facts.start_error or facts.runtime_error or facts.checkpoint_error
    )
    return words or attempt.reason


def explain_failed_starts(
    found: Circumstances, left: Callable[[datetime], str]
) -> Iterator[WhyLine]:
    """A start that failed and is tried again later. left: how a moment to come is told."""
    job = found.job
    limit = found.policy.start_failure_limit
    due = job.retry_at or job.wait_until
    when = "" if due is None else f" {left(due)}"
    yield WhyLine(
        code="failed_starts",
        hint=f"after {limit} in a row it is parked; holdfast attempts {job.id} says where they "
        "failed",
        message=f"{_count_starts(job)}; it is tried again{when}: {job.reason}",
    )
    yield from explain_start_error(found)


def _count_starts(job: JobRecord) -> str:
    return (
        "its start failed"
        if job.start_failures == 1
        else f"{job.start_failures} starts in a row failed"
    )


def explain_parked(found: Circumstances) -> Iterator[WhyLine]:
    """Too many starts failed in a row: only a person lets it go on."""
    job = found.job
    yield WhyLine(
        code="parked",
        message=f"it is parked: {_count_starts(job)}, and no time brings it back: {job.reason}",
        hint=f"find out why: holdfast attempts {job.id}; then let it go on: holdfast retry "
        f"{job.id}; or holdfast cancel {job.id}",
    )
    yield from explain_start_error(found)


# ---- a reserved job


def explain_claims(found: Circumstances) -> Iterator[WhyLine]:
    """A reserved job: whose place is not claimed yet (GANG-1), what has not started, and how long
    the start may take."""
    job, tasks = found.job, found.tasks
    closed = [t for t in tasks if t.state is TaskState.RESERVED and not t.barrier]
    unclaimed = [t for t in closed if t.claimed_at is None]
    waits = [t for t in tasks if t.state is TaskState.RESERVED and t.barrier and not t.replaced]
    if job.tasks > 1 and closed:
        have = len(tasks) - len(unclaimed)
        yield WhyLine(
            code="claiming",
            message=f"its {job.tasks} ranks start together, once each has its place: {have} have, "
            f"{len(unclaimed)} have not",
        )
    elif job.tasks > 1 and waits:
        yield WhyLine(
            code="starting_together",
            message=f"all {job.tasks} ranks have their places; {job.tasks - len(waits)} have "
            f"started, {len(waits)} have not",
        )
    yield from explain_members(found)
    yield from _explain_unclaimed(found, unclaimed)
    yield from _explain_starting(found, waits)
    yield from _explain_start_limit(
        found, outstanding=any(t.offered_at is None for t in tasks) or bool(unclaimed)
    )


def _explain_unclaimed(found: Circumstances, tasks: Sequence[TaskRecord]) -> Iterator[WhyLine]:
    for host, ranks, some in _by_host(tasks):
        told = all(t.offered_at is not None for t in some)
        what = "was told and has not answered yet" if told else "has not asked for work yet"
        yield WhyLine(
            code="claim_outstanding",
            message=f"host {host} has not claimed the place of {ranks}: it {what}",
            hint=say_heartbeat(found, some[0]),
        )
    yield from _count_rest(tasks, "claim_outstanding", "have not claimed their places either")


def _explain_starting(found: Circumstances, tasks: Sequence[TaskRecord]) -> Iterator[WhyLine]:
    job, image = found.job, found.job.spec.image
    for host, ranks, some in _by_host(tasks):
        has = "has its place" if len(some) == 1 else "have their places"
        told = all(t.offered_at is not None for t in some)
        if told and image is not None:
            yield WhyLine(
                code="container_starting",
                hint=f"holdfast logs {job.id} --stream stderr shows how far the pull is",
                message=f"{ranks} {has} on host {host}, which pulls its image {image}, where it "
                "is not there yet, or makes its container",
            )
            continue
        what = "was told and has not reported it yet" if told else "has not asked yet"
        yield WhyLine(
            code="starting",
            message=f"{ranks} {has} on host {host}, which {what}",
            hint=say_heartbeat(found, some[0]),
        )
    yield from _count_rest(tasks, "starting", "have not reported their starts either")


def _explain_start_limit(found: Circumstances, *, outstanding: bool) -> Iterator[WhyLine]:
    """When the start is given up: soon where a host has not answered, else by the start or recovery
    timeout."""
    if found.reserved_at is None or found.start_limit is None:
        return
    name, limit = found.start_limit
    flag = "--start-timeout" if name.startswith("start") else "--recovery-timeout"
    hint = f"from the reservation on, pulls included; {flag} TIME at the submission, or holdfast config set {name} N"
    if outstanding and found.reservation_seconds is not None and found.reservation_seconds < limit:
        name, limit, hint = "reservation_seconds", found.reservation_seconds, ""
    left = limit - (found.now - found.reserved_at).total_seconds()
    when = f"in {say_span(left)}" if left > 0 else "any moment now"
    what = (
        "unless every host has answered"
        if name == "reservation_seconds"
        else "unless every task runs"
    )
    yield WhyLine(
        code="start_timeout",
        message=f"its places are given back {when}, {what} ({name} is {limit:g} s)",
        hint=hint,
    )


# ---- members of a supervised job


def explain_members(found: Circumstances) -> Iterator[WhyLine]:
    """Which ranks of a supervised job are without a host, or on their way to another, while the
    others run."""
    waiting = [t for t in found.tasks if t.state is TaskState.BLOCKED and not t.is_parked]
    fallen = [t for t in found.tasks if t.state in (TaskState.FAILED, TaskState.PREEMPTED)]
    coming = [t for t in found.tasks if t.state is TaskState.RESERVED and t.replaced]
    if not found.job.spec.supervised:
        return
    yield from _explain_parked_members(found)
    if waiting:
        later = [t.ready_at for t in waiting if t.ready_at is not None and t.ready_at > found.now]
        all_later = len(later) == len(
            waiting
        )  # it fell soon after its start, more than once (MEMBER-3)
        when = (
            f"; not before {say_span((min(later) - found.now).total_seconds())} from now"
            if all_later
            else ""
        )
        why = f": {found.refusal}" if found.refusal and not all_later else ""
        failed = max(t.start_failures for t in waiting)
        if failed:
            why += f" (failed start {failed} of {found.policy.start_failure_limit} in a row)"
        yield WhyLine(
            code="member_waits",
            hint="the others run on; `holdfast hosts` shows what is busy, draining or quarantined",
            message=f"{name_ranks([t.rank for t in waiting])} {_waits(waiting)} for another "
            f"host{why}{when}",
        )
    if fallen:
        ranks = name_ranks([t.rank for t in fallen])
        yield WhyLine(code="member_fell", message=f"{ranks} fell; the next run of the loop decides")
    for host, ranks, some in _by_host(coming):
        yield WhyLine(
            code="member_starts",
            message=f"{ranks} {'is' if len(some) == 1 else 'are'} to start anew on host {host}",
            hint=say_heartbeat(found, some[0]),
        )


def _explain_parked_members(found: Circumstances) -> Iterator[WhyLine]:
    """Ranks that no time brings another host (MEMBER-5), and why."""
    parked = [t for t in found.tasks if t.is_parked]
    for task in parked[:MAX_HOSTS]:
        yield WhyLine(
            code="member_parked",
            message=task.stop_reason or f"rank {task.rank} is parked",
            hint=f"the others run on; find out why: holdfast show {task.job_id} --events; then "
            "let it be tried again: "
            f"holdfast retry {task.job_id}",
        )
    if parked[MAX_HOSTS:]:
        text = f"{name_ranks([t.rank for t in parked[MAX_HOSTS:]])} {'is' if len(parked) == MAX_HOSTS + 1 else 'are'} parked too"
        yield WhyLine(code="member_parked", message=text)


def _waits(tasks: Sequence[TaskRecord]) -> str:
    return "waits" if len(tasks) == 1 else "wait"


# ---- a draining gang


def explain_unconfirmed(found: Circumstances, holding: Sequence[TaskRecord]) -> Iterator[WhyLine]:
    """Whose ends a drain still waits for, host by host."""
    for host, ranks, some in _by_host(holding):
        leases = [t.lease_until for t in some if t.lease_until is not None]
        until = f"; its lease ends at {max(leases):%H:%M:%S} UTC at the latest" if leases else ""
        yield WhyLine(
            code="unconfirmed",
            message=f"host {host} has not confirmed the end of {ranks}{until}",
            hint=say_heartbeat(found, some[0]),
        )
    yield from _count_rest(holding, "unconfirmed", "have not confirmed theirs either")


def say_trigger(found: Circumstances) -> str:
    """Which rank of a gang began the fall, as far as is known while it drains."""
    job = found.job
    if job.tasks == 1 or job.trigger_rank is None:
        return ""
    task = next((t for t in found.tasks if t.rank == job.trigger_rank), None)
    return f"rank {job.trigger_rank} on {task.host_name if task else '?'} fell first: "


def say_steps(tasks: Iterable[TaskRecord]) -> str:
    """How far the ranks of a gang are apart; empty where that says nothing."""
    steps = {t.rank: t.step for t in tasks if t.step is not None}
    if len(steps) < 2 or min(steps.values()) == max(steps.values()):
        return ""
    low, high = min(steps.values()), max(steps.values())
    return f"; its ranks are at steps {low} to {high}, the furthest behind {name_ranks([r for r in steps if steps[r] == low])}"


def say_heartbeat(found: Circumstances, task: TaskRecord) -> str:
    """When the task's host was heard last."""
    host = next((h for h in found.hosts if h.id == task.host_id), None)
    if host is None or host.heartbeat_at is None:
        return ""
    return f"its last heartbeat was {say_span((found.now - host.heartbeat_at).total_seconds())} ago"


def _by_host(tasks: Sequence[TaskRecord]) -> Iterator[tuple[str, str, list[TaskRecord]]]:
    """The first hosts, the ranks there in words, and their tasks."""
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        groups.setdefault(task.host_name or "?", []).append(task)
    for host in list(groups)[:MAX_HOSTS]:
        yield host, name_ranks([t.rank for t in groups[host]]), groups[host]


def _count_rest(tasks: Sequence[TaskRecord], code: str, what: str) -> Iterator[WhyLine]:
    more = len({t.host_name for t in tasks}) - MAX_HOSTS
    if more > 0:
        yield WhyLine(code=code, message=f"{more} more host{'s' * (more != 1)} {what}")
