"""The REST API's bodies about schedules.

GET    /v1/schedules                    → page of ScheduleRecord, by name
GET    /v1/schedules/{name}             → ScheduleRecord
PUT    /v1/schedules/{name}             ScheduleSpec → ScheduleRecord: made, or changed whole
DELETE /v1/schedules/{name}             → 204; its jobs stay
POST   /v1/schedules/{name}/pause       SchedulePause → ScheduleRecord
POST   /v1/schedules/{name}/resume      → ScheduleRecord: the times of the pause are not caught up
POST   /v1/schedules/{name}/code        CodeRef → ScheduleRecord: other code, from its next run on
POST   /v1/schedules/{name}/run         → 201 JobRecord: its job now, beside its times
GET    /v1/schedules/{name}/next        ?count= → ScheduleTimes
GET    /v1/schedules/{name}/runs        ?limit= → page of ScheduleRunRecord, newest first
"""

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
