"""The readings of hosts' GPUs, on their way into the store."""

import msgspec

from holdfast.core.gpus import GpuTelemetry


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of a host's GPUs. held_seconds: time between the report and its writing."""

    host_id: str
    gpus: tuple[GpuTelemetry, ...]
    held_seconds: float = 0.0
