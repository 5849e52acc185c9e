"""explain(circumstances) → Why: everything that holds a job, a sentence each, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.controller.why_retries import Circumstances, explain_progress, explain_quota, explain_retry, say_span
from holdfast.core.placement import Candidate, describe_need
from holdfast.core.records import HostRecord, JobRecord, TaskRecord
from holdfast.core.states import HostState, JobState, TaskState
from holdfast.wire.api import Why, WhyLine


def explain(found: Circumstances) -> Why:
    """Say why the job is where it is."""
    job = found.job
    lines = list(_SAYERS[job.state](found))
    summary = lines[0].message if lines else (job.reason or str(job.state))
    return Why(job_id=job.id, state=job.state, summary=summary, lines=lines)


def _explain_waiting(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    until = f" until {job.wait_until:%Y-%m-%d %H:%M:%S} UTC" if job.wait_until else ""
    left = f" ({say_span((job.wait_until - found.now).total_seconds())} from now)" if job.wait_until else ""
    if job.wait_cause == "start_time":
        yield WhyLine(code="waiting_start_time", message=f"it waits for its start time{until}{left}",
                      hint="submit it without a start time to run it at once")  # fmt: skip
    elif job.wait_cause in ("back_off", "retries_held"):
        yield from explain_retry(found)
    elif job.wait_cause == "dependency":
        yield WhyLine(code="dependency", message=f"it waits for another job: {job.reason}")
    else:
        yield WhyLine(code=job.wait_cause or "held", message=f"it is held{until}: {job.reason}")
    yield from _explain_queue(found)
    yield from explain_quota(found)
    yield from explain_progress(found)


def _explain_queue(found: Circumstances) -> Iterator[WhyLine]:
    job, queue = found.job, found.queue
    if queue is None:
        yield WhyLine(code="unknown_queue", message=f"its queue {job.queue} is gone",
                      hint=f"make it again: holdfast queues set {job.queue}")  # fmt: skip
        return
    if queue.paused_at is not None:
        because = f": {queue.paused_reason}" if queue.paused_reason else ""
        yield WhyLine(code="queue_paused", message=f"queue {job.queue} is paused{because}",
                      hint=f"holdfast queues resume {job.queue}")  # fmt: skip
    if isinstance(found.max_running, int) and queue.running >= found.max_running:
        yield WhyLine(
            code="max_running",
            message=f"queue {job.queue} runs {queue.running} jobs, and may run {found.max_running} at once",
            hint=f"holdfast queues set {job.queue} max_running=N",
        )


def _explain_queued(found: Circumstances) -> Iterator[WhyLine]:
    held = list(_explain_holds(found))
    yield from held
    if found.refusal and not held:
        yield WhyLine(code="refused", message=f"the last admission passed it over: {found.refusal}")
    if not found.led:
        yield WhyLine(
            code="not_leading", message="this server does not run the loops; another does, or will within seconds"
        )
    if found.job.attempts:
        yield WhyLine(code="last_attempt", message=f"attempt {found.job.attempts}: {found.job.reason}",
                      hint=f"holdfast attempts {found.job.id}")  # fmt: skip
    yield from explain_progress(found)
    if not held:
        yield WhyLine(code="queued", message="it is next: admission takes it as soon as it looks")


def _explain_holds(found: Circumstances) -> Iterator[WhyLine]:
    """What keeps a queued job from starting now; nothing when it is simply next."""
    job = found.job
    yield from _explain_queue(found)
    yield from explain_quota(found)
    alive = [h for h in found.hosts if h.state is not HostState.TERMINATED]
    serving = [h for h in alive if not h.queues or job.queue in h.queues]
    active = [h for h in serving if h.state is HostState.ACTIVE]
    need = describe_need(
        Candidate(job_id=job.id, epoch=job.epoch, queue=job.queue, priority=job.priority, tasks=job.tasks,
                  gpus=job.gpus, cpu_slots=job.cpu_slots, memory_bytes=job.memory_bytes)
    )  # fmt: skip
    if not alive:
        yield WhyLine(code="no_hosts", message="there is no host at all",
                      hint="start one: holdfast agent --join URL --token JOIN_TOKEN")  # fmt: skip
    elif not serving:
        yield WhyLine(code="no_host_serves_queue", message=f"no host serves queue {job.queue}",
                      hint=f"start an agent with `--queues {job.queue}`, or with none to serve them all")  # fmt: skip
    elif not active:
        states = ", ".join(f"{h.name} is {h.state}" for h in serving[:5])
        yield WhyLine(code="no_active_host", message=f"no host that serves queue {job.queue} takes work: {states}",
                      hint="holdfast hosts undrain|release HOST")  # fmt: skip
    elif not any(_could_run(h, job) for h in active):
        yield WhyLine(code="impossible_resources", message=f"no active host is large enough: it needs {need}",
                      hint="ask for less, or add a larger host")  # fmt: skip
    elif not any(_has_room(h, job) for h in active):
        yield WhyLine(code="no_room", message=f"no host has {need} free now",
                      hint="it starts when running work ends; `holdfast hosts` shows what is busy")  # fmt: skip
    dead = [h for h in serving if h.flagged_dead_at is not None]
    if dead:
        yield WhyLine(code="dead_hosts", message=f"{', '.join(h.name for h in dead[:5])} sent no heartbeat while work runs there",
                      hint="holdfast hosts --dead")  # fmt: skip
    if found.place:
        more = "10 000 or more" if found.place >= 10_000 else str(found.place)
        yield WhyLine(code="behind", message=f"{more} queued job{'s' * (found.place != 1)} of its queue stand before it",
                      hint="a higher priority moves it forward")  # fmt: skip


def _could_run(host: HostRecord, job: JobRecord) -> bool:
    return (
        host.cpu_slots >= job.cpu_slots
        and len(host.gpus) >= job.gpus
        and (not job.memory_bytes or host.memory_bytes >= job.memory_bytes)
    )


def _has_room(host: HostRecord, job: JobRecord) -> bool:
    return (
        host.cpu_slots - host.busy_cpu_slots >= job.cpu_slots
        and len(host.gpus) - len(host.busy_gpus) >= job.gpus
        and (not job.memory_bytes or host.memory_bytes - host.busy_memory_bytes >= job.memory_bytes)
    )


def _explain_reserved(found: Circumstances) -> Iterator[WhyLine]:
    for task in found.tasks:
        if task.state is TaskState.RESERVED:
            told = "was told and has not reported it yet" if task.offered_at else "has not asked yet"
            image = found.job.spec.image
            if task.offered_at and image is not None:
                yield WhyLine(
                    code="container_starting",
                    message=f"rank {task.rank} has its place on host {task.host_name}, which pulls its image {image}, where it is "
                    "not there yet, or makes its container",
                    hint=f"holdfast logs {found.job.id} --stream stderr shows how far the pull is",
                )
                continue
            yield WhyLine(code="starting", message=f"rank {task.rank} has its place on host {task.host_name}, which {told}",
                          hint=_say_heartbeat(found, task))  # fmt: skip


def _explain_running(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    where = ", ".join(sorted({t.host_name or "?" for t in found.tasks})) or "?"
    beat = "it has sent no beat" if job.beat_at is None else (
        f"its last beat was {say_span((found.now - job.beat_at).total_seconds())} ago"
        + (f" at step {job.step}" + (f" of {job.total}" if job.total else "") if job.step is not None else "")
    )  # fmt: skip
    yield WhyLine(code="running", message=f"attempt {job.attempts} runs on {where}; {beat}")
    yield from explain_progress(found)
    yield from _explain_silence(found)


def _explain_draining(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    since = f" for {say_span((found.now - job.drain_since).total_seconds())}" if job.drain_since else ""
    yield WhyLine(
        code="draining",
        message=f"its attempt {job.attempts} is being stopped{since}: {job.drain_reason or job.drain_cause}",
    )
    holding = [t for t in found.tasks if t.state.holds_lease]
    for task in holding:
        until = f"; its lease ends at {task.lease_until:%H:%M:%S} UTC at the latest" if task.lease_until else ""
        yield WhyLine(code="unconfirmed", message=f"host {task.host_name} has not confirmed the end of rank {task.rank}{until}",
                      hint=_say_heartbeat(found, task))  # fmt: skip
    if not holding:
        yield WhyLine(
            code="deciding", message="every end is confirmed; the decision comes with the next run of the loop"
        )


def _explain_ended(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    hint = "" if job.state is JobState.SUCCEEDED else f"holdfast logs {job.id}; holdfast retry {job.id}"
    yield WhyLine(
        code="ended",
        message=f"it {'was cancelled' if job.state is JobState.CANCELLED else job.state}: {job.reason}",
        hint=hint,
    )


def _explain_silence(found: Circumstances) -> Iterator[WhyLine]:
    running_on = {t.host_id for t in found.tasks if t.state.holds_lease}
    for host in found.hosts:
        if host.id in running_on and host.flagged_dead_at is not None:
            yield WhyLine(
                code="dead_host",
                message=f"host {host.name} sends no heartbeat; the job is placed again when its lease has lapsed",
                hint=f"if the machine is gone: holdfast hosts terminate {host.name}",
            )


def _say_heartbeat(found: Circumstances, task: TaskRecord) -> str:
    host = next((h for h in found.hosts if h.id == task.host_id), None)
    if host is None or host.heartbeat_at is None:
        return ""
    return f"its last heartbeat was {say_span((found.now - host.heartbeat_at).total_seconds())} ago"


_SAYERS: dict[JobState, Callable[[Circumstances], Iterator[WhyLine]]] = {
    JobState.WAITING: _explain_waiting,
    JobState.QUEUED: _explain_queued,
    JobState.RESERVED: _explain_reserved,
    JobState.RUNNING: _explain_running,
    JobState.DRAINING: _explain_draining,
    JobState.SUCCEEDED: _explain_ended,
    JobState.FAILED: _explain_ended,
    JobState.CANCELLED: _explain_ended,
}
