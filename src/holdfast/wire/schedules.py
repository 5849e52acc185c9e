"""The REST API's bodies about schedules."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta


class SchedulePause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a schedule is paused."""

    reason: Annotated[str, Meta(max_length=512)] = ""


class ScheduleTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times to come, in UTC, and the zone that they are written for."""

    times: list[datetime]
    time_zone: str
