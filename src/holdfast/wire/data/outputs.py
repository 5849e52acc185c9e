"""Messages about outputs: the order to keep them, a host's report, and what people see."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Large
from holdfast.core.data.outputs import MAX_LEFT, LeftOut
from holdfast.core.states import OutputsState

_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class OutputsOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The order to keep what a task leaves. paths: below its folder. max_bytes: most bytes of one
    rank."""

    paths: list[str]
    max_bytes: Large


class OutputsMissing(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a host which of these digests its task's project has no bytes of."""

    digests: Annotated[list[_Digest], Meta(max_length=20_000)]


class OutputsReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host's word on the outputs of a task. manifest: of the bundle, whose bytes were sent before;
    None where nothing is kept. ended: the task has ended, and this is all. reason: why the whole is
    not complete."""

    manifest: bytes | None = None
    ended: bool = False
    left: Annotated[list[LeftOut], Meta(max_length=MAX_LEFT)] = []
    left_more: int = 0
    reason: Annotated[str, Meta(max_length=2048)] = ""


class OutputsStored(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report."""

    state: OutputsState


encode = msgspec.json.Encoder().encode
encode_report = msgspec.msgpack.Encoder().encode
