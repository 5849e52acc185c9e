"""The operations on outputs."""

from typing import Annotated

from msgspec import Meta

from holdfast.core.data.outputs import OutputFile, OutputsRecord
from holdfast.wire.operations.operation import Operation, Query, Role, reads

JOB = "/v1/jobs/{id}"
_BYTES = ("application/octet-stream",)


class OutputsQuery(Query, frozen=True, kw_only=True):
    """The outputs of a job that a request means. Without an attempt or a rank, it means those of
    all."""

    attempt: Annotated[int, Meta(ge=1, le=2**30)] | None = None
    rank: Annotated[int, Meta(ge=0, le=65_535)] | None = None


LIST_OUTPUTS = reads(
    f"{JOB}/outputs", "What the attempts of a job left.", list[OutputsRecord], OutputsQuery
)  # fmt: skip
LIST_OUTPUT_FILES = reads(
    f"{JOB}/outputs/{{attempt}}/{{rank}}/files", "The files that one rank of an attempt left.",
    list[OutputFile]
)  # fmt: skip
GET_OUTPUTS_PLAN = Operation(
    "GET", f"{JOB}/outputs/{{attempt}}/{{rank}}/plan", Role.READ,
    "The manifest of these files, and the places of their bytes.", media=_BYTES,
    answers={200: None}
)  # fmt: skip
GET_OUTPUTS_PACK = Operation(
    "GET", f"{JOB}/outputs/{{attempt}}/{{rank}}/packs/{{pack}}", Role.READ,
    "A pack of these files.", media=_BYTES, answers={200: None}
)  # fmt: skip
