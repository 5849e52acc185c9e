"""The processors and memory that a running task uses, as its host reads them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import MemoryBytes
from holdfast.core.ids import TaskKey

Cores = Annotated[float, Meta(ge=0, le=65_536)]


class RankUsage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Readings of a running task since those told before; an array, because a host may run hundreds.
    cores: how many processors it kept busy on average; cores_max: the highest reading. memory_bytes:
    the most that a reading found, without the file cache."""

    key: TaskKey
    cores: Cores
    memory_bytes: MemoryBytes
    cores_max: Cores = 0.0
