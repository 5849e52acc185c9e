"""`POST /v1/agent/calls`, a long poll: the executors of one host report ends and receive batches of
calls.

POLL-1…3 of `controller/sync/route.py` hold here too. An exchange waits for the wakes of its
executors' families, because executors wait for calls that become ready.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import Receive

from holdfast.bounds import UNREADABLE
from holdfast.controller.http.bodies import decode_packed, read_body, wait_unless_gone
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import explain_bad_value
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.calls.executors import is_lent, read_family
from holdfast.core.calls.rooms import list_hosts_of
from holdfast.core.calls.unable import AppHosts
from holdfast.core.records import HostRecord
from holdfast.core.spec import JobSpec
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned
from holdfast.wire.calls import (
    MAX_CALLS_BYTES,
    Batch,
    CallsAnswer,
    CallsRequest,
    ExecutorAnswer,
    ExecutorReport,
)

log = logging.getLogger("holdfast.controller")
MAX_UNREAD = 64
LOOK_SECONDS = 5.0


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A `CallsRequest` whose reports are not read yet, so that one bad report spoils no other."""

    incarnation: str
    seq: int = 0
    wait_seconds: float = 0.0
    executors: Annotated[list[msgspec.Raw], Meta(max_length=4096)] = []


_ENVELOPE = msgspec.msgpack.Decoder(_Envelope)
_REPORT = msgspec.msgpack.Decoder(ExecutorReport)
_encode = msgspec.msgpack.Encoder().encode


async def poll_calls(call: ApiCall) -> Response:
    """Record the reports of a host's executors, and answer each executor."""
    controller, host = call.controller, call.host
    assert host is not None
    arrived = controller.calls.exchanges
    request, unread = read_calls(await read_body(call.scope, call.receive, MAX_CALLS_BYTES))
    if unread:
        text = "reports of executors of host %s cannot be read: %s"
        log.error(text, host.name, "; ".join(unread), extra={"host": host.id})
    visit = _Visit(host, request, arrived, bool(unread))
    answer = await _poll(controller, visit, call.receive)
    if unread:
        answer = msgspec.structs.replace(answer, unread=unread)
    return Response(_encode(answer), 200, None, "application/msgpack")


def read_calls(body: bytes) -> tuple[CallsRequest, list[str]]:
    """Return the request with the reports that can be read, and a sentence for each report that
    cannot. Raises as `decode_packed` does where the envelope itself cannot be read."""
    envelope = decode_packed(body, _ENVELOPE)
    reports, unread = [], []
    for number, raw in enumerate(envelope.executors):
        try:
            reports.append(_clean(_REPORT.decode(raw)))
        except UNREADABLE as error:
            unread.append(f"executors[{number}]: {error}")
    fields = {name: getattr(envelope, name) for name in ("incarnation", "seq", "wait_seconds")}
    try:
        checked = msgspec.convert(fields, CallsRequest)
    except msgspec.ValidationError as error:
        raise explain_bad_value(error) from None
    return msgspec.structs.replace(checked, executors=reports), unread[:MAX_UNREAD]


def _clean(report: ExecutorReport) -> ExecutorReport:
    """Replace NUL characters in results, because the database cannot hold them and a call must end
    even if its executor sends one. JSON text contains none."""
    if not any("\x00" in end.value for each in report.ends for end in each.ends):
        return report
    ends = [
        msgspec.structs.replace(
            each,
            ends=[
                msgspec.structs.replace(end, value=end.value.replace("\x00", "�"))
                for end in each.ends
            ],
        )
        for each in report.ends
    ]
    return msgspec.structs.replace(report, ends=ends)


class _Guest(msgspec.Struct):
    """One executor of a request. turned: the store's last answer to it; None where the turn of this
    executor failed alone, which leaves it out of the answer, so that it asks again. news: True
    where the answer must not wait."""

    turn: ExecutorTurn
    queue: str
    spec: JobSpec
    turned: ExecutorTurned | None = None
    leave: bool = False
    news: bool = False


class _Visit(msgspec.Struct, frozen=True):
    """One request of a host. arrived: the number of exchanges that this replica had made when the
    request arrived."""

    host: HostRecord
    request: CallsRequest
    arrived: int
    answers_at_once: bool


async def _poll(controller: Controller, visit: _Visit, receive: Receive) -> CallsAnswer:
    """Return the first answer with something new for an executor, or the last answer when the time
    of the poll is over (POLL-1…3)."""
    host, request = visit.host, visit.request
    wakes, line = controller.wakes, controller.wakes.calls(host.id)
    newest = line.begin_poll(request.incarnation, request.seq)
    told = any(report.ends or report.closing for report in request.executors)
    waits = newest and not told and not visit.answers_at_once
    until = controller.clock() + (request.wait_seconds if waits else 0.0)
    guests, strangers = await _make_guests(controller, host, request)
    bells = [line.wake, *{wakes.topic(f"calls:{guest.turn.family}") for guest in guests}]
    seen = {bell: bell.version for bell in bells}
    await _ask(controller, visit, guests, told=told)
    while (
        not (strangers or any(guest.news for guest in guests))
        and until > controller.clock()
        and not wakes.closing
        and line.is_newest(request.incarnation, request.seq)
    ):
        with line.wait():
            # Wait in parts: a slot may become wanted, and a wake may be lost.
            left = min(LOOK_SECONDS, until - controller.clock())
            woken = await wait_unless_gone(seen, left, receive)
        if not line.is_newest(request.incarnation, request.seq) or wakes.closing:
            break
        seen = {bell: bell.version for bell in bells}
        await _ask(controller, visit, guests, woken=woken)
    settings = await controller.settings.recent()
    return CallsAnswer(
        executors=[*strangers, *(_answer(guest, settings) for guest in guests if guest.turned)]
    )


async def _make_guests(
    controller: Controller, host: HostRecord, request: CallsRequest
) -> tuple[list[_Guest], list[ExecutorAnswer]]:
    """Return the executors of a request, and answers for reports of tasks that are no executors."""
    guests, strangers = [], []
    for report in request.executors:
        try:
            queue, spec = await controller.specs.find(report.key.job_id)
        except NotFound:
            queue, spec = "", JobSpec()
        if not spec.executor:
            strangers.append(ExecutorAnswer(key=report.key, lost=True))
            continue
        turn = ExecutorTurn(
            host_id=host.id, incarnation=request.incarnation, report=report, family=spec.executor
        )
        guests.append(_Guest(turn, queue, spec))
    return guests, strangers


async def _ask(
    controller: Controller,
    visit: _Visit,
    guests: Sequence[_Guest],
    *,
    woken: bool = False,
    told: bool = False,
) -> None:
    """Exchange all executors' reports with the store, and note its answers in `guests`. woken:
    calls may have become ready. told: the reports carry ends to record. In both cases no other read
    comes before the exchange, and the view of wanted slots may be `LOOK_SECONDS` old. Raises
    Unavailable where the store is away."""
    calls, host = controller.calls, visit.host
    wants, hurries = any(guest.turn.report.want for guest in guests), woken or told
    await _note_unable(controller, host, guests)
    if wants and not hurries:
        await calls.slots.refresh()
    if any(is_lent(guest.spec) for guest in guests):
        await calls.slots.refresh_lent()
    for guest in guests:
        surplus = calls.slots.is_surplus(guest.turn.report.key.job_id)
        if not guest.leave and (surplus or calls.slots.gives_way(guest.spec, host, idle=False)):
            guest.leave = True
        if guest.leave and guest.turn.report.want:
            guest.turn = msgspec.structs.replace(
                guest.turn, report=msgspec.structs.replace(guest.turn.report, want=0)
            )
    results = await _turn(controller, visit, guests)
    idles = [_is_idle(guest, result) for guest, result in zip(guests, results, strict=True)]
    for number, (guest, result) in enumerate(zip(guests, results, strict=True)):
        if isinstance(result, ExecutorTurned):
            calls.note_report(guest.turn, result)
            _poke(controller, guest.turn, result)
            guest.turned = result
            if guest.turn.report.loads:  # counted once, however often this call asks again
                report = msgspec.structs.replace(guest.turn.report, loads=[])
                guest.turn = msgspec.structs.replace(guest.turn, report=report)
            if idles[number] and not guest.leave:
                if not hurries:
                    await calls.slots.refresh_jobs()
                beside = [other.spec for n, other in enumerate(guests) if idles[n] and n != number]
                guest.leave = calls.slots.gives_way(guest.spec, host, idle=True) or (
                    (calls.slots.knows_jobs or not hurries)
                    and calls.slots.yields_to_job(guest.spec, host.id, beside)
                )
            news = calls.is_news(guest.turn.report, result, leave=guest.leave)
            guest.news = bool(
                news or result.batches or result.recorded or result.dropped or result.lost
            )
        elif isinstance(result, Unavailable) or not isinstance(result, Exception):
            raise result
        elif isinstance(result, HoldfastError):
            text = "the report of executor %s was refused: %s"
            about = {"host": guest.turn.host_id}
            log.warning(text, guest.turn.report.key, result.message, extra=about)
    if wants and told:
        calls.slots.refresh_behind(controller.background, jobs=any(idles))


async def _turn(
    controller: Controller, visit: _Visit, guests: Sequence[_Guest]
) -> list[ExecutorTurned | BaseException]:
    """Return the store's answer to each executor, or its failure. Raises Unavailable where an
    executor is lost only by one of two looks (DOUBT-1)."""
    results = await asyncio.gather(
        *(controller.calls.turns.submit((guest.turn, visit.arrived)) for guest in guests),
        return_exceptions=True,
    )
    lost = [each.key for each in results if isinstance(each, ExecutorTurned) and each.lost]
    await controller.doubts.confirm_tasks(lost, visit.host.id, visit.request.incarnation)
    return results


async def _note_unable(controller: Controller, host: HostRecord, guests: Sequence[_Guest]) -> None:
    """Find other hosts for calls whose app this host cannot run. An executor that reported such a
    call is told to leave where another host can run the app."""
    unable = [guest for guest in guests if _has_unable(guest.turn.report)]
    hosts = await controller.store.hosts.list_hosts() if unable else []
    for guest in unable:
        family = read_family(guest.spec, guest.queue)
        found = AppHosts(
            able=frozenset(each.id for each in list_hosts_of(family, hosts)),
            working=controller.calls.find_working(guest.turn.family),
        )
        guest.turn = msgspec.structs.replace(guest.turn, hosts=found)
        guest.leave = guest.leave or bool(found.able - {host.id})


def _has_unable(report: ExecutorReport) -> bool:
    return any(
        end.error and '"unable":true' in end.value for each in report.ends for end in each.ends
    )


def _is_idle(guest: _Guest, result: object) -> bool:
    """Return whether an executor asks for calls, holds none, and was given none."""
    report = guest.turn.report
    return (
        isinstance(result, ExecutorTurned)
        and report.want > 0
        and not (result.batches or report.held)
    )


def _poke(controller: Controller, turn: ExecutorTurn, turned: ExecutorTurned) -> None:
    """Wake the readers of results, and the executors that wait for calls that may be ready
    again."""
    if turned.touched_sets:
        controller.poke(*(f"set:{set_id}" for set_id in turned.touched_sets))
        controller.poke_soon("workflows")  # a call that ended seldom ends its set
    report = turn.report
    if turned.ready_again:
        controller.poke("executors", f"calls:{turn.family}")
    elif report.busy:
        controller.poke_soon("executors")  # another executor may be wanted
    if report.closing is not None or any(end.error for each in report.ends for end in each.ends):
        controller.poke("calls")  # a back-off may have begun


def _answer(guest: _Guest, settings: Settings) -> ExecutorAnswer:
    turned = guest.turned
    assert turned is not None
    return ExecutorAnswer(
        key=turned.key,
        batches=[_add_watches(batch, guest.queue, settings) for batch in turned.batches],
        recorded=list(turned.recorded),
        dropped=list(turned.dropped),
        cancelled=list(turned.cancelled),
        cancel_reasons=list(turned.cancel_reasons),
        killed=list(turned.killed),
        lost=turned.lost,
        leave=guest.leave,
    )


def _add_watches(batch: Batch, queue: str, settings: Settings) -> Batch:
    """Return a batch with the watchdogs' settings that are in force for the calls of each set."""
    sets = [
        msgspec.structs.replace(each, watch=settings.watch_call(queue, each.spec))
        for each in batch.sets
    ]
    return msgspec.structs.replace(batch, sets=sets)
