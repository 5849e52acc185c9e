"""A GPU as a host describes it, and as it is now."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import Elapsed, MemoryBytes
from holdfast.core.spec import ShortText


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a host. index: its number for `CUDA_VISIBLE_DEVICES`. word: its name there
    instead of the index, a UUID or a part of a device (MIG), or "".

    vendor: "declared" where the operator named the device (`up --gpus`) and no driver was queried.
    """

    index: Annotated[int, Meta(ge=0, le=1023)]
    uuid: ShortText = ""
    model: ShortText = ""
    memory_bytes: MemoryBytes = 0
    vendor: Literal["nvidia", "amd", "declared"] = "nvidia"
    word: ShortText = ""


class GpuTelemetry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading of one device, `age_seconds` old when it was reported. None: the driver does not
    say. strain: in words, what may make it slow: a lowered clock and why, a narrow PCIe link, memory
    errors; "" where it says nothing of that."""

    index: Annotated[int, Meta(ge=0, le=1023)]
    memory_total_bytes: MemoryBytes = 0
    memory_used_bytes: MemoryBytes | None = None
    utilisation_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    temperature_celsius: Annotated[float, Meta(ge=-100, le=1000)] | None = None
    strain: Annotated[str, Meta(max_length=256)] = ""
    age_seconds: Elapsed = 0.0
