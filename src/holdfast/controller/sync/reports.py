"""Read an agent's reports, so that a report that cannot be read does not hold up the others.

REPORT-1  A sync is decoded in one go. Only where that fails is each task's report read by itself:
          an end whose facts cannot be read, or are missing, is recorded as `malformed` and never
          retried, because a guess might run finished work again; a live task whose beat cannot be
          read keeps its lease; a report without a readable key and state is left out and named in
          the answer. So is a reading of a GPU or a task, and a fault of the host.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.controller.http.bodies import decode_report, replace_nul
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.readings.usage import RankUsage
from holdfast.errors import ValidationError
from holdfast.wire.agent import MAX_REPORTS, MAX_UNREAD, SyncRequest, TaskReport

log = logging.getLogger("holdfast.controller")
NO_FACTS = TaskFacts(malformed="it was reported as ended and nothing else")
_SYNC = msgspec.json.Decoder(SyncRequest)
_MAX_CHARS = 256


_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _Place(msgspec.Struct, frozen=True):
    """The part of a report that must be readable."""

    key: TaskKey
    state: str


def read_sync(body: bytes) -> tuple[SyncRequest, list[str]]:
    """Return the request, and the problems of the reports that are left out (REPORT-1).

    Raises:
        BadSyntax: the body is not JSON.
        ValidationError: the parts around the tasks' reports do not fit.
    """
    try:
        request, unread = decode_report(body, _SYNC), list[str]()
    except ValidationError as error:
        request, unread = _read_apart(body, error)
    gpus = list({gpu.index: gpu for gpu in request.gpus}.values())
    if len(gpus) < len(request.gpus):
        unread.append("gpus: two readings are of the same index; the last one counts")
        request = msgspec.structs.replace(request, gpus=gpus)
    ranks = list({usage.key: usage for usage in request.ranks}.values())
    if len(ranks) < len(request.ranks):
        unread.append("ranks: two readings are of the same task; the last one counts")
        request = msgspec.structs.replace(request, ranks=ranks)
    return request, unread[:MAX_UNREAD]


def _read_apart(body: bytes, error: ValidationError) -> tuple[SyncRequest, list[str]]:
    found = decode_report(body, _ANYTHING)
    if not isinstance(found, dict):
        raise error
    lists = {name: found.get(name, []) for name in ("tasks", "gpus", "faults", "ranks")}
    try:
        request = msgspec.convert({**found, **{name: [] for name in lists}}, SyncRequest)
    except msgspec.ValidationError:
        raise error from None
    if not all(isinstance(items, list) and len(items) <= MAX_REPORTS for items in lists.values()):
        raise error
    unread: list[str] = []
    read: dict[str, Callable[[Any], Any]] = {
        "tasks": _read_report,
        "gpus": lambda raw: msgspec.convert(raw, GpuTelemetry),
        "faults": lambda raw: msgspec.convert(raw, Hindrance),
        "ranks": lambda raw: msgspec.convert(raw, RankUsage),
    }
    kept: dict[str, list[Any]] = {name: [] for name in lists}
    for name, items in lists.items():
        for number, raw in enumerate(items):
            try:
                kept[name].append(read[name](raw))
            except msgspec.ValidationError as problem:
                unread.append(f"{name}[{number}]: {_describe(problem)}")
    return msgspec.structs.replace(request, **kept), unread


def _read_report(raw: Any) -> TaskReport:
    """Return the readable part of a report. Raises msgspec.ValidationError for an unreadable key or
    state."""
    try:
        return msgspec.convert(raw, TaskReport)
    except msgspec.ValidationError as problem:
        place = msgspec.convert(raw, _Place)
        if place.state not in ("starting", "running", "ended"):
            raise
        what = _describe(problem)
        about = {"job": place.key.job_id, "epoch": place.key.epoch}
        log.error("a task's report cannot be read: %s", what, extra=about)
        if place.state == "ended":
            return TaskReport(key=place.key, state="ended", facts=TaskFacts(malformed=what))
        running = place.state == "running"
        return TaskReport(key=place.key, state="running" if running else "starting")


def _describe(problem: msgspec.ValidationError) -> str:
    return str(replace_nul(str(problem)))[:_MAX_CHARS]
