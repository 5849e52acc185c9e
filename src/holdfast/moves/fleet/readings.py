"""The readings of hosts' GPUs and tasks, on their way into the store."""

import msgspec

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.readings.usage import RankUsage


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of a host's GPUs, and of the tasks on it. held_seconds: time between the report
    and its writing."""

    host_id: str
    gpus: tuple[GpuTelemetry, ...]
    ranks: tuple[RankUsage, ...] = ()
    held_seconds: float = 0.0
