"""The operations on pools."""

from typing import Annotated, Any

from msgspec import Meta

from holdfast.core.fleet.actions import CycleSummary, PoolPlan
from holdfast.core.fleet.records import FleetStatus, HostCount, HostHealth, HostPerformance
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import Flag
from holdfast.wire.pools import PoolPause, PoolStatus, ScaleRequest

POOL = "/v1/pools/{name}"


class CyclesQuery(Query, frozen=True, kw_only=True):
    """limit: the most cycles to list, newest first."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class DeleteQuery(Query, frozen=True, kw_only=True):
    """forget: "1" to forget the pool at once, where the caller vouches that its machines are
    gone."""

    forget: Flag = "0"


LIST_POOLS = reads("/v1/pools", "Every pool of hosts, its hosts and its money.", PageOf(PoolStatus))
GET_POOL = reads(POOL, "One pool.", PoolStatus)
PUT_POOL = Operation(
    "PUT", POOL, Role.ADMIN, "Make a pool, or replace it whole; the keys of a [pool.NAME] table.",
    body=dict[str, Any], answers={200: PoolStatus}
)  # fmt: skip
PATCH_POOL = Operation(
    "PATCH", POOL, Role.ADMIN, "Change some keys of a pool.", body=dict[str, Any],
    answers={200: PoolStatus}
)  # fmt: skip
DELETE_POOL = Operation(
    "DELETE", POOL, Role.ADMIN, "Shrink it to nothing as its hosts fall idle, then forget it.",
    query=DeleteQuery, answers={200: PoolStatus}
)  # fmt: skip
PAUSE_POOL = Operation(
    "POST", POOL + "/pause", Role.ADMIN, "Rent no machine and end none until it is resumed.",
    body=PoolPause,
    optional_body=True, answers={200: PoolStatus}
)  # fmt: skip
RESUME_POOL = Operation(
    "POST", POOL + "/resume", Role.ADMIN,
    "Rent and end machines again, at once, as if no rental had failed.", answers={200: PoolStatus}
)  # fmt: skip
SCALE_POOL = Operation(
    "POST", POOL + "/scale", Role.ADMIN, "Change its bounds; those that are left out stay.", body=ScaleRequest,
    answers={200: PoolStatus}
)  # fmt: skip
LIST_CYCLES = reads(
    POOL + "/cycles", "Its last cycles, newest first.", PageOf(CycleSummary), CyclesQuery
)  # fmt: skip
GET_PLAN = reads(
    POOL + "/plan", "What a cycle would do now, and why; nothing is changed.", PoolPlan
)  # fmt: skip
RUN_CYCLE = Operation(
    "POST", POOL + "/run", Role.ADMIN, "Run one cycle now, by the replica that leads.",
    answers={200: CycleSummary}, repeatable=False
)  # fmt: skip
GET_STATUS = reads(
    "/v1/fleet/status", "Counts of the whole fleet, and its health in a word.", FleetStatus
)  # fmt: skip
COUNT_HOSTS = reads(
    "/v1/fleet/hosts", "How many hosts are in each state, and their slots and GPUs.",
    PageOf(HostCount)
)  # fmt: skip
LIST_HEALTH = reads(
    "/v1/fleet/health", "Active hosts: heartbeat, task, GPU memory, a verdict.",
    PageOf(HostHealth)
)  # fmt: skip
LIST_PERFORMANCE = reads("/v1/fleet/performance", "What each host did.", PageOf(HostPerformance))
