"""The routes of hosts."""

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import REVOKED
from holdfast.core.readings.records import HostTelemetryView
from holdfast.core.records import HostRecord
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.api import HostActionRequest, HostView
from holdfast.wire.operations.queries import HostsQuery, TelemetryQuery, is_on

ACTIONS = ("drain", "undrain", "quarantine", "release", "terminate", "revoke")


def view_host(host: HostRecord, models: Sequence[str] = ()) -> HostView:
    """Return a host with its slots, those under live leases busy, and the models in its memory."""
    slots = {
        "cpu": {"total": host.cpu_slots, "busy": host.busy_cpu_slots},
        "gpu": {"total": len(host.gpus), "busy": len(host.busy_gpus)},
    }
    return HostView(
        **msgspec.structs.asdict(host),
        slots=slots,
        dead=host.flagged_dead_at is not None,
        models=tuple(models),
    )


async def list_hosts(call: ApiCall) -> Response:
    """List every host."""
    query = call.query(HostsQuery)
    hosts = await call.store.hosts.list_hosts(
        include_terminated=is_on(query.all),
        dead=is_on(query.dead),
        trouble=is_on(query.trouble),
        gpus=is_on(query.gpus),
        part=query.match,
        limit=query.limit,
    )
    models = call.controller.calls.find_models()
    return answer_page([view_host(host, models.get(host.id, ())) for host in hosts])


async def get_host(call: ApiCall) -> Response:
    """Return one host, by id or name."""
    host = await _find(call)
    return answer_json(view_host(host, call.controller.calls.find_models().get(host.id, ())))


async def list_checks(call: ApiCall) -> Response:
    """List the last health checks of one host, newest first."""
    host = await _find(call)
    return answer_page(await call.store.health.list_checks(host.id))


async def get_telemetry(call: ApiCall) -> Response:
    """Return the newest reading of a host's GPUs, and their minutes or hours."""
    query = call.query(TelemetryQuery)
    host = await _find(call)
    store = call.store.telemetry
    latest = await store.read_latest(host.id)
    points = await store.read_history(host.id, query.step, float(query.seconds))
    return answer_json(HostTelemetryView(latest=latest, step=query.step, points=points))


async def act_on_host(call: ApiCall) -> Response:
    """Drain, undrain, quarantine, release or terminate the host, or revoke its key."""
    controller = call.controller
    request = await call.body(HostActionRequest, default=HostActionRequest())
    action = call.params["action"]
    if action not in ACTIONS:
        raise NotFound(f"a host takes {', '.join(ACTIONS)}, not {action[:64]!r}")
    host = await _find(call)
    done = action + ("d" if action.endswith("e") else "ed")
    word = "scaled down" if request.scale_down else done
    reason = request.reason or f"{word} by {call.caller_name}"
    if request.deadline_seconds is not None and action != "drain":
        raise ValidationError("a deadline is for drain alone", field="deadline_seconds")
    if request.scale_down and (action != "drain" or request.hard):
        raise ValidationError(
            "scale_down is for drain alone, and stops what runs there by itself", field="scale_down"
        )
    if action == "revoke":
        moved = await controller.store.hosts.revoke_key(host.id, f"key {reason}")
    else:
        moved = await controller.store.hosts.move_host(
            host.id,
            action,
            reason,
            hard=request.hard,
            deadline_seconds=request.deadline_seconds,
            scale_down=request.scale_down,
        )
    if action in ("terminate", "revoke"):
        controller.poke(REVOKED)
    controller.poke("drain", "members", "admit", "events", f"host:{host.id}")
    return answer_json(view_host(moved))


async def _find(call: ApiCall) -> HostRecord:
    host = call.params["host"]
    if "\x00" in host or len(host) > 128:
        raise NotFound(f"there is no host {host[:64]!r}; `holdfast hosts` lists them")
    return await call.store.hosts.get_host(host)
