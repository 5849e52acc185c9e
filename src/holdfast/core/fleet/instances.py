"""The values of renting: an offer, the order for one machine, and the machine in a provider's
listing.

The *intent* is the id of the host for which a machine is rented. It is on record before the
provider is asked, and stands in the machine's name and environment, so that a machine whose
creation was never answered is found again in a listing (RENT-1).
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.bounds import MemoryBytes
from holdfast.core.spec import Name, ShortText


class Offer(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One kind of machine that a pool may rent; a pool tries its offers in their order.

    gpus, memory_bytes, cpu_slots: the size of the whole machine as it is rented; preflight compares
    the machine with them. gpu_memory_bytes: memory of each GPU. usd_per_hour: the price to plan
    with; 0 for machines that the operator owns. config: settings of this offer for its provider, on
    top of the pool's.
    """

    name: Name
    gpu_type: ShortText = ""
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    gpu_memory_bytes: MemoryBytes = 0
    cpu_slots: Annotated[int, Meta(ge=0, le=65_536)] = 1
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    region: ShortText = ""
    usd_per_hour: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    config: dict[str, Any] = {}


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's current price and availability of an offer. None: the provider does not say."""

    offer: str
    usd_per_hour: float | None = None
    available: bool | None = None
    note: str = ""


class MachineState(StrEnum):
    """The state of a machine, as its provider reports it."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"  # ended or failed, and no longer charged for
    UNKNOWN = "unknown"  # no machine, but a place that the provider could not list (LEAK-4)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider shows it.

    ref: the provider's own id. intent: the id of the host it was made for, "" where it carries none.
    reason: the provider's words for its state. lost: why it ended, where the provider says so, in
    Holdfast's words: "preempted", "node_failure", "evicted", "oom_killed", "image_pull_failure",
    "unschedulable", "refused". A machine that still runs and is "preempted" is about to be taken
    away, at `leaves_at` where the provider says when (EVICT-2).
    """

    ref: str
    intent: str = ""
    pool: str = ""
    name: str = ""
    state: MachineState
    reason: str = ""
    lost: str = ""
    leaves_at: datetime | None = None
    usd_per_hour: float | None = None
    created_at: datetime | None = None


class CreateOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One machine to make.

    installation: the id of this Holdfast; its provider lists and ends only machines that carry it.
    intent: see the module. name: the machine's name where the provider takes one; it holds the
    installation, the pool and the intent, and is at most 63 characters of [a-z0-9-].
    host_name: the host's name in `holdfast hosts` and for its tasks; "": the machine's own name.
    env: environment variables of the agent on the machine: HOLDFAST_URL, HOLDFAST_JOIN_TOKEN,
    HOLDFAST_INTENT, HOLDFAST_POOL, HOLDFAST_INSTALLATION, HOLDFAST_SELF_DESTRUCT_SECONDS, and the
    queues and labels to serve. spawn_seconds: time after which the controller gives the machine up.
    """

    installation: str
    pool: str
    intent: str
    name: str
    host_name: str = ""
    offer: Offer
    env: dict[str, str]
    spawn_seconds: float = 300.0
