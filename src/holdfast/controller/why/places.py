"""The lines of `why` about places: which hosts could take a queued job, and which jobs make room.
Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.pools import COMING, list_renting
from holdfast.controller.why.words import line
from holdfast.core.calls.executors import find_listed_app
from holdfast.core.data.named import find_missing_mounts
from holdfast.core.host_faults import find_hindrance, find_runtime_word
from holdfast.core.placement.candidates import as_candidate
from holdfast.core.placement.eligible import carries, serves
from holdfast.core.placement.plan import describe_need
from holdfast.core.placement.preemption import find_weighed, find_winner
from holdfast.core.placement.ranks import say_names
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.states import HostState
from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine

MAX_NAMED = 5
"""The most hosts and jobs that are named one by one; the rest are counted."""


def explain_room_made(found: Circumstances) -> Iterator[WhyLine]:
    """Name the jobs that are being stopped for the queued job, and the room that is held back for
    it."""
    for victim in found.victims[:MAX_NAMED]:
        winner = find_winner(victim.drain_reason)
        what = f"priority {victim.priority}), which is being stopped"
        if winner is not None and winner.project is not None:
            what = f"project {victim.project}), which gives back what its project borrowed"
        weighed = find_weighed(victim.drain_reason)
        because = f"; it was chosen because it loses least: {weighed}" if weighed else ""
        yield line(
            "taking_place",
            f"it takes the place of job {victim.id} ({victim.name}, {what}{because}"
            f"{_say_notice(victim, found.now)}",
            f"holdfast why {victim.id}",
        )
    if len(found.victims) > MAX_NAMED:
        more = len(found.victims) - MAX_NAMED
        yield line("taking_place", f"and that of {more} more job{'s' * (more != 1)}")
    if found.refusal and found.refusal.startswith("room is held back"):
        hint = "other jobs may use that room only if they end in time"
        yield line("room_held_back", found.refusal, hint)


def _say_notice(victim: JobRecord, now: datetime) -> str:
    """Return how long a job that is being stopped may still take to save (EVICT-1)."""
    if victim.drain_since is None or victim.drain_notice_seconds is None:
        return ""
    left = victim.drain_notice_seconds - (now - victim.drain_since).total_seconds()
    return f"; it has up to {say_span(left)} more to save" if left > 0 else ""


def explain_place(found: Circumstances) -> Iterator[WhyLine]:
    """Explain why no host, or too few of them, can take the job now; yields nothing where there is
    room."""
    job = found.job
    alive = [h for h in found.hosts if h.state is not HostState.TERMINATED]
    serving = [h for h in alive if serves(h.queues, job.queue)]
    wanted = job.spec.host_labels
    labelled = [h for h in serving if carries(h.labels, wanted)]
    runtime = find_runtime_word(job.spec.image, job.spec.runtime)
    aside = {
        h.name: hindrance
        for h in labelled
        if (hindrance := find_hindrance(h.faults, runtime, find_listed_app(job.spec)))
    }
    silent = _list_silent(found, labelled)
    active = [
        h
        for h in labelled
        if h.state is HostState.ACTIVE and h.name not in aside and h.name not in silent
    ]
    # Where a pool may bring a host, its user is not told to start one.
    rents = " or ".join(pool.name for pool in list_renting(found)[:MAX_NAMED])
    coming = f"a host comes from pool {rents}: holdfast pools" if rents else ""
    if not alive:
        yield line(
            "no_hosts",
            "there is no host yet" if rents else "there is no host at all",
            coming or "start one: holdfast agent --join URL --token JOIN_TOKEN",
        )
    elif not serving:
        yield line(
            "no_host_serves_queue",
            f"no host serves queue {job.queue}{' yet' if rents else ''}",
            coming
            or f"start an agent with `--queues {job.queue}`, or without `--queues` to serve them all",
        )
    elif not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(wanted.items()))
        yield line(
            "no_host_with_labels",
            f"no host that serves queue {job.queue} has the labels {labels}{' yet' if rents else ''}",
            coming or _advise_labels(job),
        )
    elif not active:
        yield from _explain_aside("no_able_host", aside)
        yield from _explain_idlers(job, labelled, silent, coming)
    else:
        yield from _explain_size(found, active)
        yield from _explain_aside("host_set_aside", aside)
        flagged = {h.name for h in labelled if h.flagged_dead_at}
        for name in [name for name in silent if name not in flagged][:MAX_NAMED]:
            yield line(
                "host_silent", f"host {silent[name]}, and is given nothing until it is heard"
            )
    yield from _explain_dead(labelled)


def _advise_labels(job: JobRecord) -> str:
    """Return how a host with the labels that the job wants is started."""
    if app := find_listed_app(job.spec) if job.spec.executor else "":
        return f"start one that lists its app: holdfast agent --app {app}"
    if missing := find_missing_mounts(job.spec.host_labels, {}):
        named = " --mount ".join(f"{name}=DIR" for name in missing)
        return f"start an agent that offers it: holdfast agent --mount {named}"
    return "start an agent with `--label K=V`, or submit it without --host-label"


_WAYS_BACK = {HostState.DRAINING: "undrain", HostState.QUARANTINED: "release"}


def _explain_idlers(
    job: JobRecord, hosts: Sequence[HostRecord], silent: Mapping[str, str], coming: str
) -> Iterator[WhyLine]:
    """Explain why none of these hosts takes work: each is silent, or in a state that takes none."""
    said = [
        silent.get(h.name) or f"{h.name} is {h.state}"
        for h in hosts
        if h.name in silent or h.state is not HostState.ACTIVE
    ]
    message = f"no host that serves queue {job.queue} takes work"
    if all(h.state in COMING for h in hosts):
        yield line("no_active_host", f"{message} yet", coming)
    elif said:
        backs = [
            f"holdfast hosts {_WAYS_BACK[h.state]} {h.name}" for h in hosts if h.state in _WAYS_BACK
        ]
        hint = " or ".join(backs[:2]) or coming
        yield line("no_active_host", f"{message}: {', '.join(said[:MAX_NAMED])}", hint)


def _list_silent(found: Circumstances, hosts: Sequence[HostRecord]) -> dict[str, str]:
    """Return host name → a sentence, for the active hosts that admission passes over as silent."""
    said = {}
    for host in hosts:
        if host.state is HostState.ACTIVE and host.heartbeat_at is not None:
            silent = (found.now - host.heartbeat_at).total_seconds()
            if silent > found.silence_seconds:
                said[host.name] = f"{host.name} is silent for {say_span(silent)}"
    return said


def _explain_dead(hosts: Sequence[HostRecord]) -> Iterator[WhyLine]:
    """Name the dead hosts. Work may run there until its lease ends."""
    for verb, works in (("runs", True), ("ran", False)):
        dead = [h.name for h in hosts if h.flagged_dead_at and bool(h.running) is works]
        if dead:
            message = (
                f"no heartbeat comes from {say_names(dead, MAX_NAMED)}, though work {verb} there"
            )
            yield line("dead_hosts", message, "holdfast hosts --dead")


def _explain_aside(code: str, aside: Mapping[str, str]) -> Iterator[WhyLine]:
    """Name the hosts that reported that they cannot start the job now (ASIDE-1)."""
    for name, reason in list(aside.items())[:MAX_NAMED]:
        hint = "the host tries itself, and is used again as soon as that works"
        yield line(code, f"host {name} is set aside: {reason}", hint)


def _explain_size(found: Circumstances, active: Sequence[HostRecord]) -> Iterator[WhyLine]:
    """Explain whether the hosts are large enough at all, and whether enough of them is free."""
    job = found.job
    need = describe_need(as_candidate(job))
    idle = sum(_count(job, h.cpu_slots, len(h.gpus), h.memory_bytes) for h in active)
    free = sum(
        _count(
            job,
            h.cpu_slots - h.busy_cpu_slots,
            len(h.gpus) - len(h.busy_gpus),
            h.memory_bytes - h.busy_memory_bytes,
        )
        for h in active
    )
    if idle < job.tasks:
        text, hint = f"no active host is large enough: it needs {need}", "add a larger host"
        if job.tasks > 1 and idle:
            text = f"it needs {need} at once, and only {idle} would fit if all hosts were idle"
            hint = "add hosts"
        yield line("impossible_resources", text, f"ask for less, or {hint}")
    elif free < job.tasks:
        text = f"no host has {need} free now"
        if job.tasks > 1:
            text = f"it needs {need} at once, and there is room for {free} now"
        hint = "it starts when running work ends; `holdfast hosts` shows what is busy"
        yield line("no_room", text, hint)
        yield from _explain_young(found, {host.id for host in active})


def _count(job: JobRecord, cpu_slots: int, gpus: int, memory_bytes: int) -> int:
    """Return how many of the job's ranks fit into this much room."""
    needs = ((job.cpu_slots, cpu_slots), (job.gpus, gpus), (job.memory_bytes, memory_bytes))
    return min([job.tasks, *(max(0, room) // wanted for wanted, room in needs if wanted)])


def _explain_young(found: Circumstances, host_ids: Collection[str]) -> Iterator[WhyLine]:
    """Name the jobs that could make room once they have run for long enough. Yields nothing where
    others make room already."""
    young_jobs = () if found.victims else found.young
    for young in [y for y in young_jobs if not y.host_ids.isdisjoint(host_ids)][:MAX_NAMED]:
        may = f"of priority {young.priority} may be preempted for it"
        if not young.preemptible or young.priority >= found.job.priority:
            may = f"of project {young.project}, which borrows, may be stopped for it"
        yield line(
            "may_make_room",
            f"job {young.job_id} {may} in "
            f"{say_span(young.left_seconds)}, after {say_span(young.least_seconds)} of running",
            "preempt_min_run_seconds is how long a job runs before it may be stopped for another",
        )
