"""A GPU as a host describes it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.spec import ShortText


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a host. `index` is what `CUDA_VISIBLE_DEVICES` takes.

    vendor "declared": the operator named it (`up --gpus`), no driver was asked.
    """

    index: Annotated[int, Meta(ge=0, le=1023)]
    uuid: ShortText = ""
    model: ShortText = ""
    memory_bytes: Annotated[int, Meta(ge=0)] = 0
    vendor: Literal["nvidia", "amd", "declared"] = "nvidia"
