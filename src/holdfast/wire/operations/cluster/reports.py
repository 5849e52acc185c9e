"""The operations on reports."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.core.ledger.values import LedgerView
from holdfast.core.report.idle import IdleJob
from holdfast.core.report.money import PriceEffect
from holdfast.core.report.rows import HoursReport
from holdfast.wire.api import PriceRequest
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import LedgerQuery, Limit, Moment, Owner, Text


class IdleQuery(Query, frozen=True, kw_only=True):
    """project, owner: of the jobs to list."""

    project: Text | None = None
    owner: Owner | None = None


class ReportQuery(Query, frozen=True, kw_only=True):
    """The span and the lines of a report.

    since, until: Unix seconds; without them, the last 7 days. by: job, owner, project, queue, pool,
    host, label:KEY or time; may be repeated. step: with `time`, the length of its stretches. zone: the
    time zone whose days these are, as Europe/Berlin. unit: whose hours. The others choose the jobs;
    label is `name=value`. limit: the most lines.
    """

    since: Moment | None = None
    until: Moment | None = None
    by: Annotated[tuple[Text, ...], Meta(max_length=3)] = ()
    step: Literal["minute", "hour", "day"] = "day"
    zone: Text = "UTC"
    unit: Literal["gpu", "cpu"] = "gpu"
    job: Text | None = None
    owner: Owner | None = None
    project: Text | None = None
    queue: Text | None = None
    pool: Text | None = None
    host: Text | None = None
    label: Annotated[
        tuple[Annotated[str, Meta(max_length=400, pattern=r"^[^=]+=")], ...], Meta(max_length=8)
    ] = ()
    limit: Limit = 100


GET_LEDGER = reads(
    "/v1/ledger", "What every second of every GPU or CPU slot was spent on.", LedgerView,
    LedgerQuery
)  # fmt: skip
GET_REPORT = reads(
    "/v1/report", "What hours were spent on, what they cost, and what was lost.", HoursReport,
    ReportQuery
)  # fmt: skip
LIST_IDLE_JOBS = reads(
    "/v1/report/idle", "Jobs that hold idle GPUs, the dearest first.", PageOf(IdleJob), IdleQuery
)  # fmt: skip
PUT_PRICE = Operation(
    "PUT", "/v1/prices", Role.ADMIN,
    "Set a price of GPU-hours from a time on, and say what it does to hours on record.",
    body=PriceRequest, answers={200: PriceEffect}
)  # fmt: skip
