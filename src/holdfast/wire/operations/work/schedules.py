"""The operations on schedules."""

from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.core.arrays.schedules import ScheduleSpec
from holdfast.core.bundles.code import CodeRef
from holdfast.core.records import JobRecord
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import NextQuery, RunsOfScheduleQuery, SchedulesQuery
from holdfast.wire.schedules import SchedulePause, ScheduleTimes

SCHEDULE = "/v1/schedules/{name}"
LIST_SCHEDULES = reads(
    "/v1/schedules", "Every schedule, by name.", PageOf(ScheduleRecord), SchedulesQuery
)  # fmt: skip
GET_SCHEDULE = reads(SCHEDULE, "One schedule and its newest run.", ScheduleRecord)
PUT_SCHEDULE = Operation(
    "PUT", SCHEDULE, Role.SUBMIT, "Make a schedule, or change it whole.", body=ScheduleSpec,
    answers={200: ScheduleRecord}, owned="schedule"
)  # fmt: skip
DELETE_SCHEDULE = Operation(
    "DELETE", SCHEDULE, Role.SUBMIT, "Forget it; its jobs stay.", answers={204: None},
    owned="schedule", repeatable=False
)  # fmt: skip
PAUSE_SCHEDULE = Operation(
    "POST", SCHEDULE + "/pause", Role.SUBMIT, "No time of it comes.", body=SchedulePause,
    optional_body=True, answers={200: ScheduleRecord}, owned="schedule"
)  # fmt: skip
RESUME_SCHEDULE = Operation(
    "POST", SCHEDULE + "/resume", Role.SUBMIT, "Its times come again, from now on.",
    answers={200: ScheduleRecord}, owned="schedule"
)  # fmt: skip
PIN_SCHEDULE = Operation(
    "POST", SCHEDULE + "/code", Role.SUBMIT, "Give its job other code, from its next run on.",
    body=CodeRef, answers={200: ScheduleRecord}, owned="schedule"
)  # fmt: skip
RUN_SCHEDULE = Operation(
    "POST", SCHEDULE + "/run", Role.SUBMIT, "Submit its job now, beside its times.",
    answers={201: JobRecord}, owned="schedule", repeatable=False
)  # fmt: skip
LIST_NEXT = reads(SCHEDULE + "/next", "Its times to come.", ScheduleTimes, NextQuery)
LIST_RUNS = reads(
    SCHEDULE + "/runs", "What became of its times, newest first.", PageOf(ScheduleRunRecord),
    RunsOfScheduleQuery
)  # fmt: skip
