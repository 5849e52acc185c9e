"""The REST API's bodies about arrays. A member `ID[7]` stands wherever a job's id does."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.arrays.arrays import MAX_MEMBERS
from holdfast.core.spec import JobSpec

AtOnce = Annotated[int, Meta(ge=1, le=MAX_MEMBERS)]


class ArrayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to submit many times: for indices, `array` as "0-999%50", or for a grid of parameters,
    `sweep` (`core.arrays.sweeps`). at_once: number of members that run at once, where `array` has
    no %."""

    job: JobSpec
    array: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None
    sweep: dict[str, Any] | None = None
    at_once: AtOnce | None = None
