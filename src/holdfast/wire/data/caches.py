"""The report of the caches on a host."""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_CACHES = 1024
CacheKey = Annotated[str, Meta(min_length=3, max_length=256)]
"""The project, a slash, and the cache's name."""


class CachesReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caches that are warm on a host: a task that used each of them has ended there."""

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    caches: Annotated[list[CacheKey], Meta(max_length=MAX_CACHES)] = []


encode = msgspec.json.Encoder().encode
