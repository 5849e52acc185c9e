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
RENT_AFTER_SECONDS = 30.0


class HostChecks(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The checks that a pool's hosts must pass before they serve, besides the size of the offer.

    enabled: false lets hosts serve unchecked. mounts: paths that must be usable. disk_free_bytes,
    disk_mb_per_second: least free space and speed of the disk that tasks write to; 0: not checked.
    script: a shell line that must exit 0. deadline_seconds: time for all checks together.
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

    config: settings for the provider, which checks them itself.
    offers: the machines that may be rented, in the order in which they are tried.
    min: least number of hosts that serve or start. max: most hosts that are not over. buffer:
    number of idle hosts kept ready while others are busy or jobs wait.
    jobs_per_host: number of waiting jobs for which one host is rented. rent_after_seconds: a job that
    has waited for so long, because it fits no host as it is, is worth a host of its own; None: never.
    idle_timeout_seconds: time since a host's last lease ended, after which it is given back.
    spawn_timeout_seconds: longest time from the intent to the agent's first call.
    preflight_timeout_seconds: longest time from that call to the end of the host's checks.
    stuck_timeout_seconds: how long a task may be silent after its watchdogs should have acted.
    heartbeat_timeout_seconds: how long an agent may be silent while it has work or could get some.
    telemetry_stale_seconds: age of a GPU reading from which on a warning is shown.
    shutdown_grace_seconds: time that tasks get on a host that is scaled down, before they are
    stopped. poll_seconds: time between two cycles.
    max_usd_per_hour, max_usd_per_day: ceilings that no spawn may cross; None: no ceiling.
    self_destruct_seconds: an agent that cannot reach the controller for so long ends its machine.
    queues, labels: queues that its hosts serve (none: all), and labels that they carry.
    checks: the checks of its hosts before they serve, at intervals, and after failures.
    """

    name: Name
    provider: Name
    offers: Annotated[tuple[Offer, ...], Meta(min_length=1, max_length=64)]
    config: dict[str, Any] = {}
    min: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0
    max: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 10
    buffer: Annotated[int, Meta(ge=0, le=MAX_HOSTS)] = 0
    jobs_per_host: Annotated[float, Meta(gt=0, le=100_000)] = 3.0
    rent_after_seconds: Wait | None = RENT_AFTER_SECONDS
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

    def rents_alone(self, waited_seconds: float) -> bool:
        """Return whether a job that has waited for so long is worth a host of its own (DEMAND-5)."""
        return self.rent_after_seconds is not None and waited_seconds >= self.rent_after_seconds

    def offer(self, name: str) -> Offer | None:
        """Return the offer of this name."""
        return next((offer for offer in self.offers if offer.name == name), None)


def check_pool(spec: PoolSpec) -> PoolSpec:
    """Check the rules that types cannot express, and return the spec.

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
