"""The supervisor: mechanisms for a policy script over live hosts. Usable alone.

    from holdfast.supervisor import Context, as_completed

    with Context(log_format="logs/{name}.txt") as ctx:
        print("start managers with:", *ctx.manager_command())
        hosts = ctx.request_hosts(2)
        group = ctx.create_process_group(hosts, ["python", "train.py"], processes_per_host=8)
        for future in as_completed([process.returncode() for process in group]):
            print(future.whom, "ended with", future.result())

Inside a process, `get_message_queue()` talks to the script, without loading ZeroMQ or the context.
"""

from __future__ import annotations

from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from typing import TYPE_CHECKING, Any

from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.futures.waits import as_completed, wait
from holdfast.supervisor.rosters.failures import (
    ContextClosed,
    HostLost,
    ProcessEnded,
    ProcessFailedToStart,
)

if TYPE_CHECKING:
    from holdfast.supervisor.member.messages import MessageQueue, get_message_queue
    from holdfast.supervisor.rosters.events import Event
    from holdfast.supervisor.rosters.groups import Process, ProcessGroup
    from holdfast.supervisor.rosters.hosts import Host
    from holdfast.supervisor.script.context import Context
    from holdfast.supervisor.script.status import Status
    from holdfast.supervisor.tree.mapreduce import Reduction

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "CancelledError",
    "Context",
    "ContextClosed",
    "Event",
    "Future",
    "Host",
    "HostLost",
    "MessageQueue",
    "Process",
    "ProcessEnded",
    "ProcessFailedToStart",
    "ProcessGroup",
    "Reduction",
    "Status",
    "as_completed",
    "get_message_queue",
    "wait",
]

_HOMES = {
    "Context": "script.context",
    "Event": "rosters.events",
    "Host": "rosters.hosts",
    "MessageQueue": "member.messages",
    "Process": "rosters.groups",
    "ProcessGroup": "rosters.groups",
    "Reduction": "tree.mapreduce",
    "Status": "script.status",
    "get_message_queue": "member.messages",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.supervisor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"holdfast.supervisor.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
