"""The REST API's bodies about pools of hosts."""

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
