"""How full queues were."""

from datetime import datetime

from holdfast.core.records import Record


class QueueDepth(Record, frozen=True, kw_only=True):
    """How full a queue was in a stretch of time from `at` on: the most jobs that were queued at once,
    and the age of the oldest of them in seconds. A stretch in which none was queued has no such
    record."""

    queue: str
    at: datetime
    queued: int
    oldest_seconds: float
