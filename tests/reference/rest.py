"""The pages `docs/reference/rest.md` and `metrics.md`, made from the route table and the registry.

python -m tests.reference.rest rest > docs/reference/rest.md
python -m tests.reference.rest metrics > docs/reference/metrics.md
"""

import sys
from typing import Any

from holdfast.controller.http.endpoints import Endpoint
from holdfast.controller.openapi import build_openapi
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.runtime.metrics import Metrics
from holdfast.moves.values import Gauges
from holdfast.wire.operations.operation import PageOf, Role

_REST = """\
# REST

Made from the server's route table (`python -m tests.reference.rest rest`); `GET /v1/openapi.json` says the
same for machines, with every schema.

## How to call

- JSON over HTTP under `/v1`. Send `Authorization: Bearer TOKEN`. Roles: `read` < `submit` < `admin`; `host` routes take
  a host's key and `join` a join token. A revoked token is refused within 5 seconds.
- Jobs, arrays, call sets, runs and schedules belong to the `user` of the token that submitted them (`owner`). With the
  role `submit` one changes one's own, and reads all; others' are refused with 403 `not_the_owner`, unless the project's
  setting `shared` is on. `?owner=` lists those of one user, `?owner=@me` one's own.
- Errors are problems (RFC 9457, `application/problem+json`): `status`, `title`, `detail` (what happened and what to
  do), `code` (the stable word to match on) and `field` (the place in what you sent). 503 carries `Retry-After`: the
  database is away, nothing is known to have changed, and trying again is right.
- Lists are pages, `{"items": [...], "next": cursor | null}`; give `next` back as `cursor` (of events: as `after`).
- A submission with an `Idempotency-Key` header (or the field `idempotency_key`) may be repeated: the first job is
  returned, with 200 in place of 201. The same key with another spec is 409 `idempotency_mismatch`.
- An unknown parameter or field is refused, so that a misspelt filter does not list everything.
- A name with a slash in it is written `%2F` in a path.

## Streams

`GET /v1/jobs/{id}/logs?follow=1` and `GET /v1/events` with `Accept: text/event-stream` answer with server-sent events.
Logs: `log` (bytes in base64 with `attempt`, `rank`, `stream`, `offset`; `gap` counts bytes dropped just before),
`state` (the job, when it changed) and `end` (the job, at the end of the stream). Without `attempt=` the stream goes
on to the next attempt of a requeued job; it begins with `since=` or the current attempt. Events: the SSE id is the
event's; reconnect with `Last-Event-ID` (or `after=`) and no event is missed or repeated. Where events after that id
were deleted with the history (`history_days`), the stream begins with an event `events.pruned`, whose `data` has
`after` and `until`. A stream is written at its reader's pace, and is closed after 60 s in which its reader took
nothing.

## Limits

A body is at most 4 MiB (agents: sync 8 MiB, logs 1 MiB of bytes, forensics 2 MiB), a head 32 KiB and 100 headers, a
batch 1000 jobs. A head must arrive within 15 s and a body within 30 s.

## Routes
"""

_METRICS = """\
# Metrics

`GET /metrics`, in Prometheus' text format. It takes a `read` token, except from the same machine and not through
a proxy.
Made from the registry (`python -m tests.reference.rest metrics`).

Gauges come from one consistent read of the store at the scrape: every replica shows the same. When the store cannot be
read they are absent, never zero, and `holdfast_store_up` is 0. Busy slots come from live leases, never from what a
host says of itself. Counters and histograms count what this replica did: sum them over replicas.

| name | kind | labels | meaning |
|---|---|---|---|
"""

_NO_GAUGES = Gauges(
    jobs={("q", "s"): 0},
    hosts={"s": 0},
    dead_hosts=0,
    busy_cpu_slots=0,
    busy_gpus=0,
    total_cpu_slots=0,
    total_gpus=0,
    oldest_queued_seconds=0,
    oldest_transaction_seconds=0,
)


def render_rest_page() -> str:
    """Return the REST page."""
    operations = build_openapi(ENDPOINTS)["paths"]
    lines = [_REST, "| | path | role | body → answer | |", "|---|---|---|---|---|"]
    for endpoint in sorted(
        ENDPOINTS,
        key=lambda e: (
            e.role in (Role.HOST, Role.JOIN, Role.REPLICA),
            e.path.startswith("/v1") is False,
        ),
    ):
        operation = operations[endpoint.path][endpoint.method.lower()]
        query = ", ".join(f"`{p['name']}`" for p in operation["parameters"] if p["in"] == "query")
        text = endpoint.summary + (f" Query: {query}." if query else "")
        role = "" if endpoint.role is Role.ANYONE else endpoint.role.name.lower()
        lines.append(
            f"| {endpoint.method} | `{endpoint.path}` | {role} | {_say_types(endpoint)} | {text} |"
        )
    return "\n".join(lines) + "\n"


def _say_types(endpoint: Endpoint) -> str:
    raw = (
        "LogsRequest (msgpack)"
        if "application/msgpack" in endpoint.media_in
        else ", ".join(endpoint.media_in)
    )
    body = raw if endpoint.raw else getattr(endpoint.body, "__name__", "")
    answers = [
        f"{status} {_say_type(answer, endpoint)}".strip()
        for status, answer in endpoint.answers.items()
    ]
    return f"{body} → {', '.join(answers)}" if body else ", ".join(answers)


def _say_type(answer: Any, endpoint: Endpoint) -> str:
    if isinstance(answer, PageOf):
        return f"page of {answer.item.__name__}"
    if answer is None:
        return "" if 204 in endpoint.answers else " or ".join(endpoint.media)
    return getattr(answer, "__name__", "object")


def render_metrics_page() -> str:
    """Return the metrics page."""
    metrics = Metrics()
    metrics.render(_NO_GAUGES, {}, 0, False)
    rows = []
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = _LABELS.get(name, "")
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return _METRICS + "\n".join(sorted(rows)) + "\n"


# A family without a sample yet does not show its labels.
_LABELS = {
    "holdfast_jobs": "`queue`, `state`",
    "holdfast_hosts": "`state`",
    "holdfast_ledger_seconds_total": "`name`, `unit`",
    "holdfast_ledger_open_seconds": "`name`, `unit`",
    "holdfast_jobs_ended_total": "`outcome`, `cause`",
    "holdfast_drains_begun_total": "`cause`",
    "holdfast_suspects_total": "`kind`",
    "holdfast_gangs_completed_total": "`outcome`",
    "holdfast_members_replaced_total": "`cause`",
    "holdfast_retry_scheduled_total": "`cause`",
    "holdfast_retry_exhausted_total": "`cause`",
    "holdfast_webhook_deliveries_total": "`outcome`",
    "holdfast_webhook_backlog": "`state`",
    "holdfast_trips_total": "`watchdog`",
    "holdfast_loop_seconds": "`loop`",
    "holdfast_loop_failures_total": "`loop`",
    "holdfast_http_requests_total": "`method`, `route`, `status`",
    "holdfast_calls_ended_total": "`family`, `end`",
    "holdfast_calls_running": "`queue`, `family`, `model`",
    "holdfast_call_batches_total": "`model`, `warm`",
    "holdfast_model_load_seconds": "`model`",
    "holdfast_calls_ready": "`family`, `model`",
    "holdfast_calls_oldest_seconds": "`family`, `model`",
    "holdfast_executors": "`family`, `state`",
}

if __name__ == "__main__":
    sys.stdout.write(render_metrics_page() if sys.argv[1:] == ["metrics"] else render_rest_page())
