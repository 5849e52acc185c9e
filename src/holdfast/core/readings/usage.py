"""What a running task uses, as its host reads it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import MemoryBytes
from holdfast.core.ids import TaskKey


class RankUsage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reading of a running task; an array, because a host may run hundreds. cores: how many
    processors it kept busy on average since the reading before. memory_bytes: what it holds,
    without the file cache."""

    key: TaskKey
    cores: Annotated[float, Meta(ge=0, le=65_536)]
    memory_bytes: MemoryBytes
