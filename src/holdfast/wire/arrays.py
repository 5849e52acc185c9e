"""The REST API's bodies about arrays.

POST   /v1/arrays                       ArrayRequest → 201 ArrayRecord (200 as for jobs)
GET    /v1/arrays                       ?state=&queue=&project=&name=&prefix=&limit=&cursor= → page of ArrayRecord
GET    /v1/arrays/{id}                  → ArrayRecord
POST   /v1/arrays/{id}/cancel           CancelRequest → ArrayRecord (202 while members go on)
POST   /v1/arrays/{id}/retry            → ArrayRecord: its failed members have another attempt
GET    /v1/jobs                         also ?array=ID (its members) or ?array=none (jobs of no array)
…      /v1/jobs/{array}[7]…             a member, wherever a job's id stands
"""

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
