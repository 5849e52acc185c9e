"""The settings that a task is watched by, resolved for one task and sent with its launch."""

from collections.abc import Mapping

import msgspec

from holdfast.core.settings.resolve import Effective


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The watchdogs' settings, named as in `core.settings.table`; None is off."""

    time_limit_seconds: float | None = None
    stall_watch: bool = True
    stall_timeout_seconds: float | None = 120.0
    stall_samples: int = 3
    stall_sample_interval_seconds: float = 1.0
    silence_limit_seconds: float | None = 1800.0
    first_beat_timeout_seconds: float | None = None
    section_factor: float = 5.0
    health_watch: str = "auto"
    health_window_seconds: float = 300.0
    health_load_grace_seconds: float = 1200.0
    health_sample_interval_seconds: float = 5.0
    gpu_idle_percent: float = 5.0
    gpu_memory_moving_mb: float = 5120.0
    cpu_idle_percent: float = 5.0
    memory_moving_mb_per_second: float = 2.0
    io_moving_mb_per_second: float = 0.25
    grace_seconds: float = 15.0
    forensics_seconds: float = 10.0
    log_keep_mb: float = 16.0
    log_disk_mb: float = 256.0


def watch_settings(
    effective: Mapping[str, Effective], *, supervised: bool = False
) -> WatchSettings:
    """Pick the watch settings out of all effective settings.

    A host of a supervised job may idle for as long as its script likes (a spare, or one that
    waits), so its GPUs are watched only where a queue says "on". Its host manager sends no beat, so
    none is waited for.
    """
    values = {name: effective[name].value for name in WatchSettings.__struct_fields__}
    if supervised:
        values["first_beat_timeout_seconds"] = None
        if values["health_watch"] == "auto":
            values["health_watch"] = "off"
    return msgspec.convert(values, WatchSettings, strict=False)
