"""The lines of `why` about starts, members, and gangs that are being stopped. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.places import MAX_NAMED
from holdfast.controller.why.words import line, say_due
from holdfast.core.placement.preemption import find_winner
from holdfast.core.placement.ranks import name_ranks
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.states import TaskState
from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine

_START_RULES = ("start-error", "never-starts", "runtime-error", "checkpoint")


# ---- starts


def explain_last_attempt(found: Circumstances) -> Iterator[WhyLine]:
    """Explain how the attempt before ended, where the job is to run again."""
    job = found.job
    if not job.attempts:
        return
    winner = find_winner(job.reason)
    if winner is not None:
        whose = f"of priority {winner.priority}, at no charge (this one has {job.priority})"
        if winner.project is not None:
            whose = f"of project {winner.project}, which asked for its share, at no charge"
        yield line(
            "preempted",
            f"attempt {job.attempts} gave its place to job {winner.job_id} {whose}",
            f"it starts again when there is room; holdfast show {winner.job_id}",
        )
        return
    message = f"attempt {job.attempts}: {job.reason}"
    yield line("last_attempt", message, f"holdfast attempts {job.id}")
    yield from explain_start_error(found)


def explain_start_error(found: Circumstances) -> Iterator[WhyLine]:
    """Name the host on which the last attempt could not be started, because the fault may be the
    host's as well as the job's. The error is left out where the job's reason contains it."""
    last = found.last_attempt
    if last is None or last.rule not in _START_RULES:
        return
    member = next((m for m in last.members if m.trigger), None)
    host = last.host if member is None else member.host
    facts = None if member is None else member.facts
    words = None
    if facts is not None:
        words = facts.start_error or facts.runtime_error or facts.checkpoint_error
    where = f" on host {host}" if host else ""
    said = words or last.reason
    what = "" if said in found.job.reason else f": {said}"
    yield line(
        "start_error",
        f"attempt {last.number} could not be started{where}{what}",
        "fix the host or the job, or keep the job off such hosts: --host-label K=V",
    )


def explain_failed_starts(found: Circumstances) -> Iterator[WhyLine]:
    """Explain when a start that failed is tried again."""
    job, limit = found.job, found.policy.start_failure_limit
    when = say_due(job.retry_at or job.wait_until, found.now)
    yield line(
        "failed_starts",
        f"{_count_starts(job)}; it is tried again{when}: {job.reason}",
        f"after {limit} in a row it is parked; holdfast attempts {job.id} says where they failed",
    )
    yield from explain_start_error(found)


def _count_starts(job: JobRecord) -> str:
    count = job.start_failures
    return "its start failed" if count == 1 else f"{count} starts in a row failed"


def explain_parked(found: Circumstances) -> Iterator[WhyLine]:
    """Explain why a job is parked after too many failed starts in a row, and how it can run
    again."""
    job = found.job
    yield line(
        "parked",
        f"it is parked until you retry it: {_count_starts(job)}: {job.reason}",
        f"find out why: holdfast attempts {job.id}; then let it go on: holdfast retry {job.id}; or "
        f"holdfast cancel {job.id}",
    )
    yield from explain_start_error(found)


def explain_claims(found: Circumstances) -> Iterator[WhyLine]:
    """Name the places of a reserved job that are not claimed yet (GANG-1), the ranks that have not
    started, and how long the start may take."""
    job, tasks = found.job, found.tasks
    closed = [t for t in tasks if t.state is TaskState.RESERVED and not t.barrier]
    unclaimed = [t for t in closed if t.claimed_at is None]
    waits = [t for t in tasks if t.state is TaskState.RESERVED and t.barrier and not t.replaced]
    if job.tasks > 1 and closed:
        have = len(tasks) - len(unclaimed)
        yield line(
            "claiming",
            f"its {job.tasks} ranks start together, once each has its place: {have} have, "
            f"{len(unclaimed)} have not",
        )
    elif job.tasks > 1 and waits:
        yield line(
            "starting_together",
            f"all {job.tasks} ranks have their places; {job.tasks - len(waits)} have started, "
            f"{len(waits)} have not",
        )
    yield from explain_members(found)
    for host, ranks, some in _by_host(unclaimed):
        told = all(t.offered_at is not None for t in some)
        what = "got the order and has not answered yet" if told else "has not asked for work yet"
        message = f"host {host} has not claimed the place of {ranks}: it {what}"
        yield line("claim_outstanding", message, say_heartbeat(found, some[0]))
    yield from _count_rest(unclaimed, "claim_outstanding", "have not claimed their places either")
    yield from _explain_starting(found, waits)
    yield from _explain_start_limit(
        found, outstanding=any(t.offered_at is None for t in tasks) or bool(unclaimed)
    )


def _explain_starting(found: Circumstances, tasks: Sequence[TaskRecord]) -> Iterator[WhyLine]:
    job, image = found.job, found.job.spec.image
    for host, ranks, some in _by_host(tasks):
        has = "has its place" if len(some) == 1 else "have their places"
        told = all(t.offered_at is not None for t in some)
        if told and image is not None:
            yield line(
                "container_starting",
                f"{ranks} {has} on host {host}, which pulls its image {image} if it is missing "
                "there, or creates its container",
                f"holdfast logs {job.id} --stream stderr shows how far the pull is",
            )
            continue
        if told and job.spec.makes_environment:
            yield line(
                "making_environment",
                f"{ranks} {has} on host {host}, which lays the code and makes the environment of "
                "--setup there, or waits until another job has made the same one",
                f"holdfast logs {job.id} shows how far the making is; --setup-timeout (setup_seconds) "
                "limits it, and no watchdog counts it",
            )
            continue
        what = "got the order and has not reported a start yet" if told else "has not asked yet"
        message = f"{ranks} {has} on host {host}, which {what}"
        yield line("starting", message, say_heartbeat(found, some[0]))
    yield from _count_rest(tasks, "starting", "have not reported their starts either")


def _explain_start_limit(found: Circumstances, *, outstanding: bool) -> Iterator[WhyLine]:
    """Explain when the start is given up: soon where a host has not answered, else at the start or
    recovery timeout."""
    last = found.last_attempt
    if last is None or found.start_limit is None:
        return
    name, limit = found.start_limit
    job_makes = found.job.spec.makes_environment
    flag = "--start-timeout" if name.startswith("start") else "--recovery-timeout"
    what = "every task runs"
    hint = (
        "counted from the reservation, image pulls and environments included; submit with "
        f"{flag} TIME, or holdfast config set {name} N"
    )
    if outstanding and found.reservation_seconds is not None and found.reservation_seconds < limit:
        name, limit, hint = "reservation_seconds", found.reservation_seconds, ""
        what = "every host has answered"
    left = limit - (found.now - last.reserved_at).total_seconds()
    when = f"in {say_span(left)}" if left > 0 else "any moment now"
    also = " with setup_seconds" * (job_makes and name != "reservation_seconds")
    message = (
        f"its places are given back {when}, unless {what} by then ({name}{also} is {limit:g} s)"
    )
    yield line("start_timeout", message, hint)


# ---- members of a supervised job


def explain_members(found: Circumstances) -> Iterator[WhyLine]:
    """Name the ranks of a supervised job that are without a host, or on their way to another, while
    the others run."""
    if not found.job.spec.supervised:
        return
    waiting = [t for t in found.tasks if t.state is TaskState.BLOCKED and not t.is_parked]
    fallen = [t for t in found.tasks if t.state in (TaskState.FAILED, TaskState.PREEMPTED)]
    coming = [t for t in found.tasks if t.state is TaskState.RESERVED and t.replaced]
    yield from _explain_parked_members(found)
    if waiting:
        yield _say_waiting(found, waiting)
    if fallen:
        ranks = name_ranks([t.rank for t in fallen])
        yield line("member_fell", f"{ranks} fell; the controller decides within seconds what next")
    for host, ranks, some in _by_host(coming):
        message = f"{ranks} {_be(some)} to start anew on host {host}"
        yield line("member_starts", message, say_heartbeat(found, some[0]))


_SUSPECT_CODES = {
    "slow": "straggler",
    "slowed": "gang_slowed",
    "corrupt": "silent_corruption",
    "still": "standstill",
}
_HINTS = {
    "slow": "on_straggler says what follows",
    "still": "`--on-standstill stop` ends such an attempt; `holdfast shell` looks into it",
}
_DONE = {
    "blame": "its host gets no other work for now",
    "replace": "the rank is being replaced",
    "restart": "the job restarts on other hosts",
}


def explain_suspects(found: Circumstances) -> Iterator[WhyLine]:
    """Say which ranks are slow by themselves, computed wrongly or stand still, and what is done about
    it."""
    for suspect in found.suspects:
        done = _DONE.get(suspect.act, "")
        hint = done or _HINTS.get(suspect.kind, "")
        yield line(_SUSPECT_CODES[suspect.kind], suspect.message, hint)


def _say_waiting(found: Circumstances, waiting: Sequence[TaskRecord]) -> WhyLine:
    later = [t.ready_at for t in waiting if t.ready_at is not None and t.ready_at > found.now]
    why = when = ""
    if len(later) == len(waiting):  # each fell soon after its start, more than once (MEMBER-3)
        when = f"; not before {say_span((min(later) - found.now).total_seconds())} from now"
    elif found.refusal:
        why = f": {found.refusal}"
    failed = max(t.start_failures for t in waiting)
    if failed:
        why += f" (failed start {failed} of {found.policy.start_failure_limit} in a row)"
    verb = "waits" if len(waiting) == 1 else "wait"
    return line(
        "member_waits",
        f"{name_ranks([t.rank for t in waiting])} {verb} for another host{why}{when}",
        "the others run on; `holdfast hosts` shows what is busy, draining or quarantined",
    )


def _explain_parked_members(found: Circumstances) -> Iterator[WhyLine]:
    """Explain why ranks are parked (MEMBER-5), and how they can run again."""
    parked = [t for t in found.tasks if t.is_parked]
    for task in parked[:MAX_NAMED]:
        yield line(
            "member_parked",
            task.stop_reason or f"rank {task.rank} is parked",
            f"the others run on; find out why: holdfast show {task.job_id} --events; then let it "
            f"be tried again: holdfast retry {task.job_id}",
        )
    rest = parked[MAX_NAMED:]
    if rest:
        yield line("member_parked", f"{name_ranks([t.rank for t in rest])} {_be(rest)} parked too")


def _be(tasks: Sequence[TaskRecord]) -> str:
    return "is" if len(tasks) == 1 else "are"


# ---- a gang that runs or is being stopped


def explain_unconfirmed(found: Circumstances, holding: Sequence[TaskRecord]) -> Iterator[WhyLine]:
    """Name the ends that a drain still waits for, host by host."""
    for host, ranks, some in _by_host(holding):
        leases = [t.lease_until for t in some if t.lease_until is not None]
        until = f"; its lease ends at {max(leases):%H:%M:%S} UTC at the latest" if leases else ""
        message = f"host {host} has not confirmed the end of {ranks}{until}"
        yield line("unconfirmed", message, say_heartbeat(found, some[0]))
    yield from _count_rest(holding, "unconfirmed", "have not confirmed theirs either")


def say_steps(tasks: Iterable[TaskRecord]) -> str:
    """Return how far apart the ranks of a gang are, in words; empty where all are at one step."""
    steps = {t.rank: t.step for t in tasks if t.step is not None}
    low, high = min(steps.values(), default=0), max(steps.values(), default=0)
    if low == high:
        return ""
    last = [rank for rank, step in steps.items() if step == low]
    be = "is" if len(last) == 1 else "are"
    return f"; its ranks are at steps {low} to {high}, {name_ranks(last)} {be} furthest behind"


def say_heartbeat(found: Circumstances, task: TaskRecord) -> str:
    """Return when the last heartbeat of the task's host came, in words."""
    host = next((h for h in found.hosts if h.id == task.host_id), None)
    if host is None or host.heartbeat_at is None:
        return ""
    return f"its last heartbeat was {say_span((found.now - host.heartbeat_at).total_seconds())} ago"


def _by_host(tasks: Sequence[TaskRecord]) -> Iterator[tuple[str, str, list[TaskRecord]]]:
    """Yield each of the first hosts: its name, the ranks there in words, and their tasks."""
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        groups.setdefault(task.host_name or "?", []).append(task)
    for host, some in list(groups.items())[:MAX_NAMED]:
        yield host, name_ranks([t.rank for t in some]), some


def _count_rest(tasks: Sequence[TaskRecord], code: str, what: str) -> Iterator[WhyLine]:
    more = len({t.host_name for t in tasks}) - MAX_NAMED
    if more > 0:
        yield line(code, f"{more} more host{'s' * (more != 1)} {what}")
