"""The agents' routes: register, sync, logs, forensics. Hot, so they are raw ASGI and msgspec.
How a sync goes on is decided in `poll.py`.
"""

import logging
from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from holdfast.controller.http.bodies import (
    Gone,
    decode_packed,
    decode_report,
    read_body,
    wait_unless_gone,
)
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import hash_secret, read_bearer
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.hosts.orders import make_orders
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.runtime.wakes import HostPolls, WaitingRoom
from holdfast.controller.sync.poll import (
    ROOM_SECONDS,
    Moment,
    asks_again,
    begin_poll,
    choose_wait,
    choose_wakes,
)
from holdfast.controller.sync.reports import NO_FACTS, read_sync
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.records import HostRecord
from holdfast.errors import Forbidden, NotFound, Stale, Unauthorized, ValidationError
from holdfast.moves.jobs.reports import guess_room
from holdfast.moves.rows import clean_text
from holdfast.moves.values import HostSync, HostSynced, LogAppend, TaskBeat
from holdfast.wire import agent as wire
from holdfast.wire.logs.uploads import LogsAnswer, LogsRequest

log = logging.getLogger("holdfast.controller")
MOST_EXCUSED_SECONDS = 30.0  # at once: a section that ends early excuses no rank for much longer
LIVE_SECONDS = 15.0
"""The silence up to which a host counts as alive, so that no other host may use its name
(NAME-2)."""
MAX_REGISTER_BYTES = 1024 * 1024
_REGISTER = msgspec.json.Decoder(wire.RegisterRequest)
_FORENSICS = msgspec.json.Decoder(wire.Forensics)
_LOGS = msgspec.msgpack.Decoder(LogsRequest)
_LOGS_FRAME_BYTES = 1024 * 1024  # what 4096 uploads take beside their bytes


async def register(call: ApiCall) -> Response:
    """Exchange a join token for a host key, or record a new incarnation of a known host."""
    controller = call.controller
    request = decode_report(
        await read_body(call.scope, call.receive, MAX_REGISTER_BYTES), _REGISTER
    )
    indices = [gpu.index for gpu in request.facts.gpus]
    if len(set(indices)) != len(indices):
        raise ValidationError("facts.gpus: two devices have the same index", field="facts.gpus")
    digest = hash_secret(read_bearer(call.header("authorization")))
    settings = await controller.settings.current()
    interval = settings.number("sync_interval_seconds")
    host = (await controller.store.hosts.find_hosts_by_keys([digest])).get(digest)
    if host is not None:
        await controller.store.hosts.register_host(
            host.id,
            None,
            request.incarnation,
            request.facts,
            faults=_read_faults(request.faults),
            held=request.held,
            announced=request.earlier,
        )
        answer = wire.RegisterAnswer(host_id=host.id, sync_interval_seconds=interval)
    else:
        host_id, key = await controller.joins.join(digest, request, max(LIVE_SECONDS, 3 * interval))
        answer = wire.RegisterAnswer(host_id=host_id, host_key=key, sync_interval_seconds=interval)
    log.info("host %s registered", request.facts.name, extra={"host": answer.host_id})
    controller.poke("admit", "drain", "members", "events", "fleet", f"host:{answer.host_id}")
    return answer_json(answer)


# ---- sync


async def sync(call: ApiCall) -> Response:
    """Record a host's state, and answer with its orders."""
    controller, host = call.controller, call.host
    assert host is not None
    request, unread = read_sync(await read_body(call.scope, call.receive, wire.MAX_SYNC_BYTES))
    if unread:
        text = "reports of host %s cannot be read: %s"
        log.error(text, host.name, "; ".join(unread), extra={"host": host.id})
    if request.gpus or request.ranks:
        controller.telemetry.keep_readings(host.id, request.gpus, request.ranks)
    try:
        answer = await _poll(controller, host, request, call.receive)
    except Gone:
        newest = controller.wakes.host(host.id).is_newest(request.incarnation, request.seq)
        if host.pool and request.tasks and newest:
            controller.doubt(host.id, host.pool)
        raise
    if request.leaving:
        controller.poke("members")
        controller.guard.forget()
        controller.wakes.forget_host(host.id)
    if unread:
        answer = msgspec.structs.replace(answer, unread=unread)
    return Response(wire.encode(answer), 200, None, "application/json")


async def _poll(
    controller: Controller, host: HostRecord, request: wire.SyncRequest, receive: Receive
) -> wire.SyncAnswer:
    """Return the first answer with something new for the agent, or the last answer when the time of
    the poll is over (POLL-1…3)."""
    line, clock = controller.wakes.host(host.id), controller.clock
    began = clock()
    newest = line.begin_poll(request.incarnation, request.seq)
    settings = await controller.settings.current()
    seconds = min(request.wait_seconds, settings.number("sync_interval_seconds"))
    report = _read_report(host, request, newest=newest)
    poll = begin_poll(report, newest=newest, now=clock(), seconds=seconds)

    def look() -> Moment:
        newest = line.is_newest(request.incarnation, request.seq)
        return Moment(clock(), newest, controller.wakes.closing)

    await controller.gangs.compare_last(host.id, request.tasks)
    seen = line.wake.version
    found = await _ask_store(controller, host, poll.report)
    _act_on(controller, request, found)
    answer = await _make_answer(controller, host, request, found, settings)
    answer = msgspec.structs.replace(answer, excused=await _excuse(controller, host, request))
    line.take_answer()  # the store's answer contains any order placed for an earlier poll
    line.room, line.poll = _guess_room(host, request), poll.again
    while (left := choose_wait(poll, answer, look())) is not None:
        woken = await _wait(line, seen, left, receive)
        if not asks_again(look(), woken=woken):
            break
        seen = line.wake.version
        given = line.take_answer()
        found = given or await _ask_store(controller, host, poll.again)
        if not look().newest:
            break
        _act_on(controller, None, found)
        if given is None:  # an answer that was placed needs no newer settings
            settings = await controller.settings.current()
        answer = await _make_answer(controller, host, request, found, settings)
    return msgspec.structs.replace(answer, held_seconds=max(0.0, clock() - began))


async def _excuse(
    controller: Controller, host: HostRecord, request: wire.SyncRequest
) -> list[wire.Excused]:
    """Record the sections that tasks report, and the checkpoints that tasks did not go on from
    (UNSAVED-2), and return the waiting ranks that sections of others excuse (EXCUSE-1). Most syncs
    carry none of these."""
    members = controller.store.members
    broken = [(t.key, *t.broken) for t in request.tasks if t.broken is not None]
    if broken:
        await controller.store.checkpoints.note_broken(host.id, broken)
    told = [(t.key, t.section_seconds) for t in request.tasks if t.section_seconds is not None]
    waits = [t.key for t in request.tasks if t.waits]
    if told:
        await members.tell_sections(host.id, told)
    found = await members.find_excuses(waits) if waits else {}
    return [wire.Excused(key, min(seconds, MOST_EXCUSED_SECONDS)) for key, seconds in found.items()]


def _guess_room(host: HostRecord, request: wire.SyncRequest) -> WaitingRoom:
    """Return the room that may be free on the host. It is an estimate, because only the store knows
    how much each task holds."""
    return WaitingRoom(
        cpu_slots=host.cpu_slots - len(request.tasks),
        devices=len(host.gpus) - len(request.tasks),
        queues=host.queues,
    )


def _read_report(host: HostRecord, request: wire.SyncRequest, *, newest: bool) -> HostSync:
    ended = [t for t in request.tasks if t.state == "ended"]
    others = (
        [t for t in request.tasks if t.state != "ended"] if len(ended) < len(request.tasks) else []
    )
    return HostSync(
        host_id=host.id,
        incarnation=request.incarnation,
        live=tuple(t.key for t in others if t.state in ("starting", "running")),
        started=tuple(t.key for t in others if t.state == "running"),
        claimed=tuple((t.key, t.port) for t in others if t.state == "claimed"),
        ended=tuple((t.key, t.facts or NO_FACTS) for t in ended),
        beats=tuple(
            TaskBeat(
                key=t.key,
                step=t.beat.step,
                total=t.beat.total,
                age_seconds=t.beat.age_seconds,
                section=t.beat.section,
                rate=t.beat.rate,
                still_seconds=t.beat.still_seconds,
                nan_beats=t.beat.nan_beats,
            )
            for t in request.tasks
            if t.beat is not None
        ),
        tallies=tuple((t.key, t.tally) for t in others if t.tally is not None),
        leaving=request.leaving,
        faults=_read_faults(request.faults),
        # The leader gives out the room of a stopped task, because its gang or another job wants it.
        takes=newest and bool(ended) and not any(t.facts and t.facts.stopped for t in ended),
        room=guess_room(host.cpu_slots, len(request.tasks) - len(ended), len(ended)),
    )


def _read_faults(faults: Sequence[Hindrance]) -> tuple[Hindrance, ...]:
    return tuple(msgspec.structs.replace(f, reason=clean_text(f.reason)) for f in faults)


async def _wait(line: HostPolls, seen: int, seconds: float, receive: Receive) -> bool:
    """Return True when the host was woken, False when the time is over. Raises Gone when the client
    hung up."""
    with line.wait():
        return await wait_unless_gone({line.wake: seen}, seconds, receive)


async def _ask_store(controller: Controller, host: HostRecord, wanted: HostSync) -> HostSynced:
    """Send a sync to the store and return its answer. Raises Stale for an older incarnation, and
    Unauthorized for a host that is gone."""
    found = await controller.batcher.submit(wanted)
    if found.status == "stale":
        raise Stale(
            f"a newer incarnation of host {host.name} has registered; this one is over: end its "
            "tasks and register anew",
            code="stale_incarnation",
        )
    if found.status != "ok":
        raise Unauthorized(f"host {host.name} is not known any more; register with a join token")
    return found


def _act_on(controller: Controller, request: wire.SyncRequest | None, found: HostSynced) -> None:
    """Wake the loops and hosts that have work now; count and log the tasks that ended."""
    runs = request is not None and any(t.state == "running" for t in request.tasks)
    wakes = choose_wakes(found, runs=runs)
    if wakes.at_once:
        controller.poke(*wakes.at_once)
    for topic in wakes.here:
        controller.wakes.fire(topic)
    if wakes.later:
        controller.poke_soon(*wakes.later, seconds=ROOM_SECONDS)
    if found.succeeded or found.acked:
        if controller.saved.forget_jobs(found.succeeded):
            controller.poke("checkpoints")
        controller.metrics.ended.labels("succeeded", "").inc(len(found.succeeded))
        controller.metrics.retry_succeeded.inc(len(found.retried))
    if request is not None and found.acked:
        for task in request.tasks:
            if task.facts is not None and (trip := task.facts.trip) and task.key in found.acked:
                controller.metrics.trips.labels(trip.watchdog).inc()
                about = {"job": task.key.job_id, "epoch": task.key.epoch, "host": found.host_id}
                log.warning("watchdog %s tripped: %s", trip.watchdog, trip.reason, extra=about)
    if request is not None:
        refused = {*found.refused, *found.lost}
        kept = [t for t in request.tasks if t.key not in refused] if refused else request.tasks
        controller.metrics.run_counts.add_counts(kept)
        controller.gangs.keep_reports(found.host_id, request, kept)
    for key in found.refused:
        about = {"job": key.job_id, "epoch": key.epoch, "host": found.host_id}
        log.warning("a stale report was refused", extra=about)


async def _make_answer(
    controller: Controller,
    host: HostRecord,
    request: wire.SyncRequest,
    found: HostSynced,
    settings: Settings,
) -> wire.SyncAnswer:
    watch: list[wire.NewWatch] = []
    alive = any(task.state != "ended" for task in request.tasks)
    if alive and request.settings_rev < settings.rev:
        for task in await controller.store.leases.list_live_tasks(host.id):
            watch.append(wire.NewWatch(key=task.key, watch=settings.watch(task.queue, task.spec)))
    preempt: list[wire.PreemptOrder] = []
    for row in found.preempts:  # few; each is looked up, because the job's own grace must hold
        queue, spec = await controller.specs.find(row.key.job_id)
        grace = settings.number("grace_seconds", queue, spec)
        preempt.append(
            wire.PreemptOrder(
                key=row.key,
                cause=row.cause,
                reason=row.reason,
                hard=row.hard,
                operator_stop=row.operator_stop,
                grace_seconds=0.0 if row.hard else max(grace, row.notice_seconds or 0.0),
            )
        )
    offers, claims = ((), ()) if request.leaving else (found.offers, found.claims)
    controller.specs.keep_offered(offers)
    return wire.SyncAnswer(
        claim=[
            wire.ClaimOrder(key=c.key, attempt=c.attempt, ttl_seconds=c.lease_ttl_seconds)
            for c in claims
        ],
        launch=await make_orders(controller.store, offers, settings, controller.layouts),
        gangs=controller.layouts.list_gangs(offers),
        preempt=preempt,
        renewed=[wire.Renewed(key=key, ttl_seconds=ttl) for key, ttl in found.renewed],
        lost=list(found.lost),
        acked=[*found.acked, *found.repeated],
        refused=[wire.RefusedReport(key=key) for key in found.refused],
        watch=watch,
        reads=await controller.store.logs.list_log_reads(host.id) if found.reads else [],
        sessions=await controller.store.sessions.tell_links(host.id) if found.sessions else [],
        fenced=found.fenced,
        settings_rev=settings.rev,
        sync_interval_seconds=settings.number("sync_interval_seconds"),
    )


# ---- logs and forensics


async def append_logs(call: ApiCall) -> Response:
    """Store uploads in order, and pass on the bytes that readers wait for. A task whose logs are
    refused is named in the answer and delays no other."""
    controller, host = call.controller, call.host
    assert host is not None
    limit = wire.MAX_LOG_CHUNK_BYTES + _LOGS_FRAME_BYTES
    request = decode_packed(await read_body(call.scope, call.receive, limit), _LOGS)
    if request.reads:
        await controller.store.logs.answer_log_reads(host.id, request.reads)
        controller.poke("log_reads")
    if not request.uploads:
        return answer_json(LogsAnswer())
    settings = await controller.settings.current()
    refused: dict[TaskKey, None] = {}
    appends: list[LogAppend] = []
    for upload in request.uploads:
        try:
            queue, spec = await controller.specs.find(upload.key.job_id)
        except NotFound:
            refused[upload.key] = None
            continue
        append = LogAppend(
            key=upload.key,
            stream=upload.stream,
            offset=upload.offset,
            data=upload.data,
            ended=upload.ended,
            keep_bytes=int(settings.number("log_keep_mb", queue, spec) * 2**20),
            marked=bool(spec.executor),
        )
        appends.append(append)
    sizes = await controller.store.logs.append_logs(host.id, appends)
    refused |= {a.key: None for a, size in zip(appends, sizes, strict=True) if size is None}
    controller.poke("logs")
    return answer_json(LogsAnswer(refused=list(refused)))


async def put_forensics(call: ApiCall) -> Response:
    """Keep the diagnostics that an agent gathered before it killed a task."""
    host = call.host
    assert host is not None
    forensics = decode_report(
        await read_body(call.scope, call.receive, wire.MAX_FORENSICS_BYTES), _FORENSICS
    )
    try:
        await call.store.logs.put_forensics(host.id, forensics)
    except (Stale, NotFound, Forbidden) as error:
        message = f"no attempt of {forensics.key} ran on host {host.name}: {error.message}"
        raise Stale(message, code="stale_epoch") from None
    return Response(status_code=204)
