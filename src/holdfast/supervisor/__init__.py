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

TYPE_CHECKING = False  # importing `typing` costs more than all that a run's process needs
if TYPE_CHECKING:
    from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
    from typing import Any

    from holdfast.supervisor.futures.future import Future
    from holdfast.supervisor.futures.waits import as_completed, wait
    from holdfast.supervisor.gather.report import DebugReport, gather_debug
    from holdfast.supervisor.member.flight import answer_flight_requests
    from holdfast.supervisor.member.flight_records import make_flight_environment
    from holdfast.supervisor.member.messages import MessageQueue, get_message_queue
    from holdfast.supervisor.policy.measures import HostMeasures, HostScore, judge_host
    from holdfast.supervisor.policy.output import follow_output
    from holdfast.supervisor.policy.progress import Progress, find_hang, watch_progress
    from holdfast.supervisor.policy.rendezvous import find_rendezvous
    from holdfast.supervisor.policy.runs import (
        RunFailure,
        end_group,
        find_failure,
        replace_lost,
        run_group,
        running,
    )
    from holdfast.supervisor.policy.selection import UnfitHosts, choose_hosts, start_check
    from holdfast.supervisor.rosters.events import Event
    from holdfast.supervisor.rosters.failures import (
        ContextClosed,
        HostLost,
        ProcessEnded,
        ProcessFailedToStart,
    )
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
    "DebugReport",
    "Event",
    "Future",
    "Host",
    "HostLost",
    "HostMeasures",
    "HostScore",
    "MessageQueue",
    "Process",
    "ProcessEnded",
    "ProcessFailedToStart",
    "ProcessGroup",
    "Progress",
    "Reduction",
    "RunFailure",
    "Status",
    "UnfitHosts",
    "answer_flight_requests",
    "as_completed",
    "choose_hosts",
    "end_group",
    "find_failure",
    "find_hang",
    "find_rendezvous",
    "follow_output",
    "gather_debug",
    "get_message_queue",
    "judge_end",
    "judge_host",
    "make_flight_environment",
    "replace_lost",
    "run_group",
    "running",
    "start_check",
    "wait",
    "watch_progress",
]

_STANDARD = ("ALL_COMPLETED", "CancelledError", "FIRST_COMPLETED", "FIRST_EXCEPTION")
_HOMES = {
    "Context": "script.context",
    "ContextClosed": "rosters.failures",
    "DebugReport": "gather.report",
    "Event": "rosters.events",
    "Future": "futures.future",
    "Host": "rosters.hosts",
    "HostLost": "rosters.failures",
    "HostMeasures": "policy.measures",
    "HostScore": "policy.measures",
    "MessageQueue": "member.messages",
    "Process": "rosters.groups",
    "ProcessEnded": "rosters.failures",
    "ProcessFailedToStart": "rosters.failures",
    "ProcessGroup": "rosters.groups",
    "Progress": "policy.progress",
    "Reduction": "tree.mapreduce",
    "RunFailure": "policy.runs",
    "Status": "script.status",
    "UnfitHosts": "policy.selection",
    "answer_flight_requests": "member.flight",
    "as_completed": "futures.waits",
    "choose_hosts": "policy.selection",
    "end_group": "policy.runs",
    "find_failure": "policy.runs",
    "find_hang": "policy.progress",
    "find_rendezvous": "policy.rendezvous",
    "follow_output": "policy.output",
    "gather_debug": "gather.report",
    "get_message_queue": "member.messages",
    "judge_end": "policy.runs",
    "judge_host": "policy.measures",
    "make_flight_environment": "member.flight_records",
    "replace_lost": "policy.runs",
    "run_group": "policy.runs",
    "running": "policy.runs",
    "start_check": "policy.selection",
    "wait": "futures.waits",
    "watch_progress": "policy.progress",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = f"holdfast.supervisor.{_HOMES[name]}"
    elif name in _STANDARD:
        home = "concurrent.futures"
    else:
        raise AttributeError(f"module 'holdfast.supervisor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
