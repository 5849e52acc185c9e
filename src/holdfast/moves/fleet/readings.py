"""What hosts tell of their GPUs, on its way into the store."""

import msgspec

from holdfast.core.gpus import GpuTelemetry


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a host as it told of them, `held_seconds` before they are written."""

    host_id: str
    gpus: tuple[GpuTelemetry, ...]
    held_seconds: float = 0.0
