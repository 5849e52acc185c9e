"""Routes of the ledger: the names of all GPU and CPU-slot seconds, summed as the caller asks."""

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.core.arrays.schedules import read_zone
from holdfast.core.ledger.values import LedgerView
from holdfast.errors import ValidationError
from holdfast.wire.operations.queries import LedgerQuery

DEFAULT_DAYS = 1.0


async def get_ledger(call: ApiCall) -> Response:
    """Return the ledger's sums between two times, by the fields that the query names."""
    query = call.query(LedgerQuery)
    until = await call.store.now() if query.until is None else _read_time(query.until)
    since = until - timedelta(days=DEFAULT_DAYS) if query.since is None else _read_time(query.since)
    if since >= until:
        raise ValidationError("the ledger's time has to begin before it ends", field="since")
    where = dict(text.split("=", 1) for text in query.where)
    since, until, kept = await call.store.ledger.read_counted(since, until)
    sums = await call.store.ledger.read_sums(
        since,
        until,
        by=query.by,
        filters=where,
        unit=query.unit,
        step=query.step,
        zone=None if query.zone == "UTC" else read_zone(query.zone, "zone"),
        kept=kept,
    )
    view = LedgerView(since=since, until=until, unit=query.unit, by=query.by, sums=sums)
    return answer_json(view)


def _read_time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
