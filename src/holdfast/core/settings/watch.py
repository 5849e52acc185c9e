"""The settings of a task's watchdogs, resolved for one task and sent with its launch."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.bounds import Count, Elapsed, Figure
from holdfast.core.settings.resolve import Effective


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The watchdogs' settings, named as in `core.settings.table`; None is off."""

    time_limit_seconds: Elapsed | None = None
    stall_watch: bool = True
    stall_timeout_seconds: Elapsed | None = 120.0
    stall_samples: Count = 3
    stall_sample_interval_seconds: Elapsed = 1.0
    silence_limit_seconds: Elapsed | None = 1800.0
    first_beat_timeout_seconds: Elapsed | None = None
    idle_timeout_seconds: Elapsed | None = None
    section_factor: Figure = 5.0
    on_standstill: str = "tell"
    standstill_seconds: Elapsed | None = 600.0
    health_watch: str = "auto"
    health_window_seconds: Elapsed = 300.0
    health_load_grace_seconds: Elapsed = 1200.0
    health_sample_interval_seconds: Elapsed = 5.0
    gpu_idle_percent: Figure = 5.0
    gpu_memory_moving_mb: Figure = 5120.0
    cpu_idle_percent: Figure = 5.0
    memory_moving_mb_per_second: Figure = 2.0
    io_moving_mb_per_second: Figure = 0.25
    grace_seconds: Elapsed = 15.0
    stop_tells: Literal["main", "tree"] = "main"
    forensics_seconds: Elapsed = 10.0
    log_keep_mb: Figure = 16.0
    log_disk_mb: Figure = 256.0


def watch_settings(
    effective: Mapping[str, Effective], *, supervised: bool = False, attended: bool = False
) -> WatchSettings:
    """Pick the watch settings out of all effective settings.

    supervised: the task is a host manager of a supervised job. Its host may idle for as long as the
    script likes (a spare, for example), so its GPUs are watched only where a queue says "on", and
    no first beat is expected, because a host manager sends none; it passes no TERM on, so a stop
    tells its whole tree. attended: a person sits at the task,
    which idles as long as that person thinks; it ends by the idle timeout, and no other task does.
    Of neither is a standstill told.
    """
    values = {name: effective[name].value for name in WatchSettings.__struct_fields__}
    if not attended:
        values["idle_timeout_seconds"] = None
    if supervised:
        values["stop_tells"] = "tree"
    if supervised or attended:
        values["first_beat_timeout_seconds"] = values["standstill_seconds"] = None
        if values["health_watch"] == "auto":
            values["health_watch"] = "off"
    return msgspec.convert(values, WatchSettings, strict=False)
