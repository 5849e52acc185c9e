"""The contract of a provider of hosts. Every provider passes `tests/providers/conformance/`.

RENT-1  `create` puts the order's intent and installation into the machine's name and environment
        (or tags), so `list_machines` finds a machine whose creation was never answered.
RENT-2  `create` with an intent that has a machine already returns this machine and makes no other,
        as far as the provider can know; where its service has no idempotency, the caller lists
        before it tries again.
RENT-3  `list_machines` returns every machine of this installation, or raises. A part of the list is
        never returned as the whole: a place that could not be read is listed as `unknown`, with the
        beginning of its machines' refs. Machines of other installations are never shown.
RENT-4  `terminate` is idempotent: for a machine that is gone it returns without an error. A return
        means that the provider accepted the order, not that the machine is gone; a listing shows
        that.
RENT-5  Every call ends within its deadline, also where a program below it hangs, and leaves no
        process behind.

How a call may fail, and what the caller then knows:

    NoCapacity        nothing was made; another offer may do, this one later
    Refused           nothing was made, and the same order will never do: the message says why
    Throttled         nothing was done; `retry_seconds` says when to come again
    ProviderDown      the outcome is unknown: a machine may have been made (RENT-1)
"""

import math
from typing import Protocol

from holdfast.core.fleet.instances import CreateOrder, Machine, Offer, Quote
from holdfast.errors import HoldfastError, Unavailable, ValidationError

MAX_RETRY_SECONDS = 86_400.0


class NoCapacity(HoldfastError):
    """The offer has no machine now. Nothing was made."""

    code = "no_capacity"
    status = 503


class Throttled(HoldfastError):
    """The provider asks for patience. Nothing was done. retry_seconds: the time until the next
    call."""

    code = "throttled"
    status = 503

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message)
        # A provider may answer any number, also a thousand years.
        known = math.isfinite(retry_seconds)
        self.retry_seconds = min(max(retry_seconds, 0.0), MAX_RETRY_SECONDS) if known else 60.0


class Refused(ValidationError):
    """The order or the credentials are refused, now and later. Nothing was made."""

    code = "provider_refused"


class ProviderDown(Unavailable):
    """The provider did not answer, or not in time. Whether the call took effect is unknown."""

    code = "provider_down"


class Provider(Protocol):
    """One account at one provider, as one pool's config names it."""

    kind: str

    @property
    def tells_prices(self) -> bool:
        """Return whether the provider's quotes have prices of their own; else they repeat the
        offers'."""

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the price and the availability of these offers, as far as they are known now.
        Never raises NoCapacity."""

    async def create(self, order: CreateOrder) -> Machine:
        """Make one machine, and return it as soon as the provider has accepted the order.

        Raises:
            NoCapacity, Refused, Throttled, ProviderDown: see the module.
        """

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return every machine of this installation (RENT-3). Machines that ended recently may be
        among them, as `gone`."""

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one machine; None where the provider answers that there is none."""

    async def terminate(self, ref: str) -> None:
        """End a machine (RENT-4)."""

    async def close(self) -> None:
        """Close the connections. Machines live on."""
