"""A pool: its provider, the machines it may rent, and the bounds within which it scales."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.bounds import MAX_FIGURE, Large
from holdfast.core.fleet.instances import Offer
from holdfast.core.spec import Name, ShortText
from holdfast.errors import ValidationError

Wait = Annotated[float, Meta(ge=0, le=30 * 86_400)]
Usd = Annotated[float, Meta(ge=0, le=10_000_000)]
MAX_HOSTS = 100_000


class HostChecks(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a pool's hosts are measured for before they serve, besides what was rented.

    enabled: false lets a host serve on its own word. mounts: paths that must be usable.
    disk_free_bytes, disk_mb_per_second: of the disk that tasks write to; 0: nothing is asked.
    script: a shell line that must end with 0. deadline_seconds: for all of it.
    """

    enabled: bool = True
    mounts: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    disk_free_bytes: Large = 0
    disk_mb_per_second: Annotated[float, Meta(ge=0, le=MAX_FIGURE)] = 0.0
    script: Annotated[str, Meta(max_length=16_384)] | None = None
    deadline_seconds: Annotated[float, Meta(ge=1, le=3600)] = 120.0


class PoolSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A pool as its operator wrote it.

    config: for the provider; its own struct checks it.
    offers: in the order in which they are tried.
    min: hosts that serve or start. max: all that are not over. buffer: idle hosts kept ready while others are busy
    or jobs wait.
    jobs_per_host: waiting jobs that are worth one host.
    idle_timeout_seconds: since the last lease on a host ended.
    spawn_timeout_seconds: from the intent to the agent's first call; preflight_timeout_seconds: from
    there to the end of its checks.
    stuck_timeout_seconds: of a task that does not beat, after its watchdogs should have acted.
    heartbeat_timeout_seconds: silence of an agent that has work, or could have it.
    telemetry_stale_seconds: age of a GPU reading that is worth a warning.
    shutdown_grace_seconds: for work on a host that is scaled down; then it drains.
    poll_seconds: between two cycles.
    max_usd_per_hour, max_usd_per_day: ceilings that no spawn may cross; None: without.
    self_destruct_seconds: an agent that cannot reach the controller for so long ends its machine.
    queues, labels: what its hosts serve; queues empty: all.
    checks: what they are measured for before they serve, every while, and after failures.
    """

    name: Name
    provider: Name
    offers: Annotated[tuple[Offer, ...], Meta(min_length=1, max_length=64)]
    config: dict[str, Any] = {}
    min: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0
    max: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 10
    buffer: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0
    jobs_per_host: Annotated[float, Meta(gt=0, le=100_000)] = 3.0
    idle_timeout_seconds: Wait = 300.0
    spawn_timeout_seconds: Wait = 300.0
    preflight_timeout_seconds: Wait = 300.0
    stuck_timeout_seconds: Wait = 300.0
    heartbeat_timeout_seconds: Wait = 300.0
    telemetry_stale_seconds: Wait = 120.0
    shutdown_grace_seconds: Wait = 600.0
    poll_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    max_usd_per_hour: Usd | None = None
    max_usd_per_day: Usd | None = None
    self_destruct_seconds: Annotated[float, Meta(ge=60, le=30 * 86_400)] = 1800.0
    queues: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()
    labels: Annotated[dict[Name, ShortText], Meta(max_length=64)] = {}
    checks: HostChecks = HostChecks()

    def offer(self, name: str) -> Offer | None:
        """Return the offer of this name."""
        return next((offer for offer in self.offers if offer.name == name), None)


def check_pool(spec: PoolSpec) -> PoolSpec:
    """Check what types alone cannot say, and return the spec.

    Raises:
        ValidationError: names the field and what would do.
    """
    if spec.min > spec.max:
        raise ValidationError(
            f"pool {spec.name}: min is {spec.min} and max {spec.max}; min is at most max",
            field="min",
        )
    names = [offer.name for offer in spec.offers]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValidationError(
            f"pool {spec.name}: two offers are named {double[0]}; give each its own name",
            field="offers",
        )
    cheapest = min(offer.usd_per_hour for offer in spec.offers)
    ceiling = spec.max_usd_per_hour
    if ceiling is not None and spec.min and cheapest * spec.min > ceiling:
        raise ValidationError(
            f"pool {spec.name}: min = {spec.min} hosts cost ${cheapest * spec.min:.2f} an hour, over "
            f"max_usd_per_hour = {ceiling:.2f}",
            field="max_usd_per_hour",
        )
    return spec
