"""The agents' route of health checks: the measurements in a report are judged here, and a check
that is due is ordered.

An order repeats until its report has come. The number of an order is the hour, or the incarnation,
in which it was due, so a repeated order is the same one.
"""

import time

import msgspec
from starlette.responses import Response

from holdfast.controller.http.bodies import decode_report, read_body
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import HostChecks, PoolSpec
from holdfast.core.health.due import choose_check, choose_pause
from holdfast.core.host_checks import CheckKind, Expected, describe, find_worst, judge
from holdfast.core.records import HostCheckRecord, HostRecord
from holdfast.errors import NotFound
from holdfast.version import VERSION
from holdfast.wire import health as wire

_REQUEST = msgspec.json.Decoder(wire.HealthRequest)


async def put_health(call: ApiCall) -> Response:
    """Record a health report, and answer with the next order."""
    controller, host = call.controller, call.host
    assert host is not None
    request = decode_report(
        await read_body(call.scope, call.receive, wire.MAX_HEALTH_BYTES), _REQUEST
    )
    settings = await controller.settings.current()
    period = settings.value("health_check_seconds")
    seconds = float(period) if isinstance(period, int | float) else None
    check = None if request.report is None else await _judge(call, host, request.report)
    state = await controller.store.health.note_health(
        host.id,
        request.incarnation,
        passed=request.passed,
        failed=request.failed,
        failures=request.failures,
        check=check,
    )
    if check is not None:
        controller.poke("fleet", "health", "events")
    kind = choose_check(state, seconds)
    if kind is None:
        pause = choose_pause(state, seconds)
        return answer_json(wire.HealthAnswer(next_seconds=pause))
    order = await _make_order(call, host, kind, request.incarnation)
    return answer_json(wire.HealthAnswer(order=order, next_seconds=0.0))


async def _judge(call: ApiCall, host: HostRecord, report: wire.HealthReport) -> HostCheckRecord:
    expected = await find_expected(call, host)
    results = judge(report.measured, expected, time.time())
    return HostCheckRecord(
        number=report.number,
        incarnation=host.incarnation,
        at=await call.store.now(),
        kind=report.kind,
        verdict=find_worst(results),
        message=describe(results),
        results=results,
        measured=report.measured,
    )


async def find_expected(call: ApiCall, host: HostRecord) -> Expected:
    """Return the hardware that the host must show: the rented offer's, or the hardware it
    registered with."""
    spec, offer = await _find_rented(call, host)
    if spec is None or offer is None:
        return Expected(gpus=len(host.gpus), version=VERSION)
    return Expected(
        gpus=offer.gpus,
        gpu_memory_bytes=offer.gpu_memory_bytes,
        memory_bytes=offer.memory_bytes,
        disk_free_bytes=spec.checks.disk_free_bytes,
        disk_mb_per_second=spec.checks.disk_mb_per_second,
        mounts=spec.checks.mounts,
        version=VERSION,
    )


async def _find_rented(call: ApiCall, host: HostRecord) -> tuple[PoolSpec | None, Offer | None]:
    """Return the pool and the offer that a rented host came from; None for any other host."""
    rental = (await call.store.fleet.find_instances([host.id])).get(host.id)
    if rental is None:
        return None, None
    try:
        spec = (await call.store.fleet.get_pool(rental.pool)).spec
    except NotFound:
        return None, None
    return spec, spec.offer(rental.offer)


async def _make_order(
    call: ApiCall, host: HostRecord, kind: CheckKind, incarnation: str
) -> wire.HealthOrder:
    now = await call.store.now()
    suffix = incarnation[:32] if kind == "preflight" else f"{now:%Y%m%dT%H%M%S}"
    spec, _ = await _find_rented(call, host)
    checks = HostChecks() if spec is None else spec.checks
    burn = (await call.controller.settings.current()).value("burn_in_seconds")
    seconds = float(burn) if isinstance(burn, int | float) and kind == "periodic" else 0.0
    return wire.HealthOrder(
        number=f"{kind}-{suffix}",
        kind=kind,
        mounts=checks.mounts,
        script=checks.script,
        deadline_seconds=checks.deadline_seconds + seconds,
        burn_seconds=seconds,
    )
