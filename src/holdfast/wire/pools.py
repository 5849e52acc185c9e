"""The REST API's bodies about pools of hosts.

GET    /v1/pools                        → page of PoolStatus
GET    /v1/pools/{name}                 → PoolStatus
PUT    /v1/pools/{name}                 the keys of a [pool.NAME] table → PoolStatus: made, or replaced whole
PATCH  /v1/pools/{name}                 some of these keys → PoolStatus
DELETE /v1/pools/{name}                 ?forget= → PoolStatus: it shrinks to nothing, and is forgotten then; with
                                        forget=1 at once, on the caller's word that its machines are gone
POST   /v1/pools/{name}/pause           PoolPause → PoolStatus
POST   /v1/pools/{name}/resume          → PoolStatus
POST   /v1/pools/{name}/scale           ScaleRequest → PoolStatus
GET    /v1/pools/{name}/cycles          ?limit= → page of CycleSummary, newest first
GET    /v1/pools/{name}/plan            → PoolPlan: what a cycle would do now; changes nothing
POST   /v1/pools/{name}/run             → CycleSummary: one cycle now, by the replica that leads
GET    /v1/fleet/status                 → OrchestratorStatus, the view orchestrator_status
GET    /v1/fleet/health                 → page of WorkerHealth, the view active_workers_health
GET    /v1/fleet/performance            → page of WorkerPerformance, the view worker_performance
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.fleet.pools import MAX_HOSTS
from holdfast.core.fleet.records import PoolRecord

Count = Annotated[int, Meta(ge=0, le=MAX_HOSTS)]


class PoolStatus(PoolRecord, frozen=True, kw_only=True):
    """A pool, its hosts by state, and its money.

    hosts: state → number of hosts. forecast_today_usd: the cost of today if its hosts run on until
    midnight UTC. provider_says: its provider's messages about machines that start, each once.
    """

    hosts: dict[str, int] = {}  # noqa: RUF012  msgspec copies an empty default
    usd_per_hour: float = 0.0
    spent_today_usd: float = 0.0
    forecast_today_usd: float = 0.0
    provider_says: tuple[str, ...] = ()


class PoolPause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a pool is paused."""

    reason: Annotated[str, Meta(max_length=512)] = ""


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New bounds of a pool; a bound that is left out stays."""

    min: Count | None = None
    max: Count | None = None
    buffer: Count | None = None
