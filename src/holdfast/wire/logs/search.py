"""Messages that a search of logs sends."""

from datetime import datetime

from holdfast.wire.api import ApiBody


class LogFound(ApiBody, frozen=True, kw_only=True):
    """A line that matches a search, or that stands beside one (`match` false), in a `found` event.

    offset: where the line begins in its stream. cut: bytes of a long line that `text` leaves out.
    start, end: the first match within `text`, in characters. call: the call that printed it, as
    SET.INDEX; empty where no call did.
    """

    job: str
    attempt: int
    rank: int
    stream: str
    offset: int
    text: str
    match: bool = True
    start: int = 0
    end: int = 0
    cut: int = 0
    at: datetime | None = None
    call: str = ""


class LogSearchEnd(ApiBody, frozen=True, kw_only=True):
    """The extent of a search, in its `end` event. stopped: "max" or "time" where there may be more
    to find. missing_bytes: what is no longer kept, and was not searched."""

    matches: int
    jobs: int
    streams: int
    kept_bytes: int
    read_bytes: int
    read_chunks: int
    missing_bytes: int
    stopped: str = ""
