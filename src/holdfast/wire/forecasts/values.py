"""When a queued job should start, and what would let it start now."""

from datetime import datetime

import msgspec


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A queued job's place in line, and when it should start. ahead: number of jobs that are considered before
    it; more: it is at least that many. by: "plan", "pace", or "" where no start is foretold, with null times.
    Four of five jobs start between both ends of the interval."""

    job_id: str
    ahead: int
    more: bool = False
    by: str = ""
    expected_start: datetime | None = None
    earliest_start: datetime | None = None
    latest_start: datetime | None = None


class WouldStart(msgspec.Struct, frozen=True, kw_only=True):
    """A change with which a queued job would start now: "it would start now", and then the message."""

    what: str  # resume, max_running, quota, tasks, gpus, cpus, memory, host_label, time_limit, queue, priority, price
    message: str
    hint: str = ""
