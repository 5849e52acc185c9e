"""The agents' route of caches: the caches that are warm on a host (CACHE-2)."""

import msgspec
from starlette.responses import Response

from holdfast.controller.http.bodies import decode_report, read_body
from holdfast.controller.http.endpoints import ApiCall
from holdfast.wire.data.caches import CachesReport

_MAX_BYTES = 1 << 20
_REPORT = msgspec.json.Decoder(CachesReport)


async def put_caches(call: ApiCall) -> Response:
    """Record the caches that are warm on a host."""
    assert call.host is not None
    report = decode_report(await read_body(call.scope, call.receive, _MAX_BYTES), _REPORT)
    await call.store.hosts.note_caches(call.host.id, report.incarnation, report.caches)
    return Response(status_code=204)
