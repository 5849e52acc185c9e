"""The operations on arrays."""

from holdfast.core.arrays.records import ArrayRecord
from holdfast.wire.api import CancelRequest
from holdfast.wire.arrays import ArrayRequest
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import ArraysQuery

ARRAY = "/v1/arrays/{id}"
_KEY = {
    "Idempotency-Key": "A second submission with this key in the same project returns the first "
    "job."
}
SUBMIT_ARRAY = Operation(
    "POST", "/v1/arrays", Role.SUBMIT, "Submit an array: all of its jobs, or none.",
    body=ArrayRequest, headers=_KEY, answers={201: ArrayRecord, 200: ArrayRecord}
)  # fmt: skip
LIST_ARRAYS = reads("/v1/arrays", "Arrays, newest first.", PageOf(ArrayRecord), ArraysQuery)
GET_ARRAY = reads(ARRAY, "One array.", ArrayRecord)
CANCEL_ARRAY = Operation(
    "POST", ARRAY + "/cancel", Role.SUBMIT, "Cancel all of its members.", body=CancelRequest,
    optional_body=True, answers={200: ArrayRecord, 202: ArrayRecord}, owned="array"
)  # fmt: skip
RETRY_ARRAY = Operation(
    "POST", ARRAY + "/retry", Role.SUBMIT, "Another attempt for its failed members.",
    answers={200: ArrayRecord}, owned="array", repeatable=False
)  # fmt: skip
