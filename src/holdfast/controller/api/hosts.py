"""The routes of hosts."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.http.queries import HostsQuery, is_on
from holdfast.controller.runtime.auth import host_not_found
from holdfast.core.records import HostRecord
from holdfast.core.states import HostEvent
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.api import HostActionRequest, HostView

ACTIONS = (
    HostEvent.DRAIN,
    HostEvent.UNDRAIN,
    HostEvent.QUARANTINE,
    HostEvent.RELEASE,
    HostEvent.TERMINATE,
)
_ACTION = msgspec.json.Decoder(HostActionRequest)


def view_host(host: HostRecord) -> HostView:
    """A host with its slots, busy by live leases."""
    slots = {
        "cpu": {"total": host.cpu_slots, "busy": host.busy_cpu_slots},
        "gpu": {"total": len(host.gpus), "busy": len(host.busy_gpus)},
    }
    return HostView(
        **msgspec.structs.asdict(host), slots=slots, dead=host.flagged_dead_at is not None
    )


async def list_hosts(call: ApiCall) -> Response:
    """Every host."""
    query = call.query(HostsQuery)
    hosts = await call.controller.store.hosts.list_hosts(
        include_terminated=is_on(query.all), dead=is_on(query.dead)
    )
    return answer_page([view_host(host) for host in hosts])


async def get_host(call: ApiCall) -> Response:
    """One host, by id or name."""
    return answer_json(view_host(await _find(call)))


async def act_on_host(call: ApiCall) -> Response:
    """Drain, undrain, quarantine, release or terminate it."""
    controller = call.controller
    request = await call.body(_ACTION, default=HostActionRequest())
    action = call.params["action"]
    if action not in ACTIONS:
        raise NotFound(f"a host takes {', '.join(ACTIONS)}, not {action[:64]!r}")
    host = await _find(call)
    word = "scaled down" if request.scale_down else action
    reason = request.reason or f"{word} by {call.caller.name or call.caller.id}"
    if request.deadline_seconds is not None and action != "drain":
        raise ValidationError("a deadline is for drain alone", field="deadline_seconds")
    if request.scale_down and (action != "drain" or request.hard):
        raise ValidationError(
            "scale_down is for drain alone, and stops what runs there by itself", field="scale_down"
        )
    moved = await controller.store.hosts.move_host(
        host.id,
        action,
        reason,
        hard=request.hard,
        deadline_seconds=request.deadline_seconds,
        scale_down=request.scale_down,
    )
    if action == HostEvent.TERMINATE:
        controller.guard.forget()
    controller.poke("drain", "admit", "events", f"host:{host.id}")
    return answer_json(view_host(moved))


async def _find(call: ApiCall) -> HostRecord:
    host = call.params["host"]
    if "\x00" in host or len(host) > 128:
        raise host_not_found(host[:64])
    return await call.controller.store.hosts.get_host(host)
