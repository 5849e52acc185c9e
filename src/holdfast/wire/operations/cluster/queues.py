"""The operations on queues."""

from holdfast.core.records import QueueRecord
from holdfast.core.report.depths import QueueDepth
from holdfast.wire.api import PauseRequest, SettingsPatch
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import DepthsQuery, QueuesQuery

LIST_QUEUES = reads(
    "/v1/queues", "Every queue and what is in it.", PageOf(QueueRecord), QueuesQuery
)  # fmt: skip
LIST_DEPTHS = reads(
    "/v1/queue-depths", "How many jobs were queued in each queue, and how old the oldest was.",
    PageOf(QueueDepth), DepthsQuery
)  # fmt: skip
GET_QUEUE = reads("/v1/queues/{name}", "One queue.", QueueRecord)
PUT_QUEUE = Operation(
    "PUT", "/v1/queues/{name}", Role.ADMIN, "Make or change a queue.", body=SettingsPatch,
    optional_body=True, answers={200: QueueRecord}
)  # fmt: skip
DELETE_QUEUE = Operation(
    "DELETE", "/v1/queues/{name}", Role.ADMIN, "Delete an empty queue.", answers={204: None},
    repeatable=False
)  # fmt: skip
PAUSE_QUEUE = Operation(
    "POST", "/v1/queues/{name}/pause", Role.ADMIN, "No new starts; `hard` also stops what runs.",
    body=PauseRequest, optional_body=True, answers={200: QueueRecord}
)  # fmt: skip
RESUME_QUEUE = Operation(
    "POST", "/v1/queues/{name}/resume", Role.ADMIN, "Starts again.", answers={200: QueueRecord}
)  # fmt: skip
