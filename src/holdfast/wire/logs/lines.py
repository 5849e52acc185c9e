"""A piece of output, as a reader of a job's logs gets it."""

from datetime import datetime

from holdfast.wire.api import ApiBody


class LogLine(ApiBody, frozen=True, kw_only=True):
    """Bytes of a stream in an SSE `log` event, base64 in `data`.

    gap: number of bytes missing just before; reason: with `full=1`, why the host could not send
    them. at: the time at which the controller received the bytes; null where the host sent them
    now.
    """

    attempt: int
    rank: int
    stream: str
    offset: int
    data: bytes
    gap: int = 0
    reason: str = ""
    at: datetime | None = None
