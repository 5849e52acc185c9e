"""Readings of GPUs and of tasks, as the store keeps them and the API returns them."""

from datetime import datetime

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.records import Record


class HostTelemetryRecord(Record, frozen=True, kw_only=True):
    """The newest reading of a host's GPUs; each age counts back from `at`."""

    host_id: str
    at: datetime
    gpus: tuple[GpuTelemetry, ...]


class GpuPoint(Record, frozen=True, kw_only=True):
    """One GPU over one minute or hour that begins at `at`: means, and the highest values. None: the
    driver did not say."""

    gpu: int
    at: datetime
    samples: int
    utilisation_percent: float | None = None
    utilisation_max: float | None = None
    memory_used_max_bytes: int | None = None
    memory_total_bytes: int = 0
    temperature_max_celsius: float | None = None


class HostTelemetryView(Record, frozen=True, kw_only=True):
    """The GPUs of a host: the newest reading (None: there is none), and a point for each minute or
    hour of each device, oldest first."""

    latest: HostTelemetryRecord | None
    step: str
    points: list[GpuPoint] = []  # noqa: RUF012  msgspec copies an empty default


class RankPoint(Record, frozen=True, kw_only=True):
    """One rank of one attempt over the seconds that begin at `at`. cores: how many processors it
    kept busy, the mean; cores_max: the highest reading. memory_max_bytes: the most memory that a
    reading found, without the file cache. devices: the indexes of its GPUs on its host."""

    rank: int
    attempt: int
    at: datetime
    samples: int
    cores: float
    cores_max: float
    memory_max_bytes: int
    devices: tuple[int, ...] = ()


class JobTelemetryView(Record, frozen=True, kw_only=True):
    """The processor time and the memory of a job's ranks, oldest first. point_seconds: the length of
    each point. tasks: how many ranks the job has; memory_limit_bytes: the limit of each, 0 for
    none."""

    step: str
    point_seconds: int
    tasks: int
    memory_limit_bytes: int = 0
    points: list[RankPoint] = []  # noqa: RUF012  msgspec copies an empty default
