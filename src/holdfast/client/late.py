# ruff: noqa: F401  other modules import these names
"""Modules that are imported when they are first used, because most commands need few of them: those
of the API's operations, and its bodies (`wire`)."""

import importlib
from typing import TYPE_CHECKING, Any


class LateModule:
    """Stands for a module, and imports it when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    from holdfast.wire import api as wire
    from holdfast.wire.operations.cluster import events as on_events
    from holdfast.wire.operations.cluster import notices as on_notices
    from holdfast.wire.operations.cluster import projects as on_projects
    from holdfast.wire.operations.cluster import queues as on_queues
    from holdfast.wire.operations.cluster import reports as on_reports
    from holdfast.wire.operations.cluster import settings as on_settings
    from holdfast.wire.operations.cluster import tokens as on_tokens
    from holdfast.wire.operations.cluster import webhooks as on_webhooks
    from holdfast.wire.operations.fleet import hosts as on_hosts
    from holdfast.wire.operations.fleet import pools as on_pools
    from holdfast.wire.operations.work import arrays as on_arrays
    from holdfast.wire.operations.work import bundles as on_bundles
    from holdfast.wire.operations.work import calls as on_calls
    from holdfast.wire.operations.work import jobs as on_jobs
    from holdfast.wire.operations.work import outputs as on_outputs
    from holdfast.wire.operations.work import schedules as on_schedules
    from holdfast.wire.operations.work import sessions as on_sessions
    from holdfast.wire.operations.work import workflows as on_workflows
else:
    _ROOMS = {
        "cluster": "events notices projects queues reports settings tokens webhooks",
        "fleet": "hosts pools",
        "work": "arrays bundles calls jobs outputs schedules sessions workflows",
    }
    wire = LateModule("holdfast.wire.api")
    for _room, _things in _ROOMS.items():
        for _thing in _things.split():
            globals()[f"on_{_thing}"] = LateModule(f"holdfast.wire.operations.{_room}.{_thing}")
