"""The operations on notices."""

from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import Text
from holdfast.wire.webhooks import NoticeTarget, TargetRequest, TestResult

NOTICE = "/v1/notices/{name}"


class TargetQuery(Query, frozen=True, kw_only=True):
    """project: the project that the target belongs to; the cluster's without it."""

    project: Text | None = None


LIST_TARGETS = reads("/v1/notices", "Every notice target.", PageOf(NoticeTarget))
GET_TARGET = reads(NOTICE, "One target.", NoticeTarget, TargetQuery)
PUT_TARGET = Operation(
    "PUT", NOTICE, Role.SUBMIT, "Make a target, or give it another url.", query=TargetQuery,
    body=TargetRequest, answers={200: NoticeTarget}
)  # fmt: skip
DELETE_TARGET = Operation(
    "DELETE", NOTICE, Role.SUBMIT, "Forget a target and its messages.", query=TargetQuery,
    answers={204: None}, repeatable=False
)  # fmt: skip
TEST_TARGET = Operation(
    "POST", NOTICE + "/test", Role.SUBMIT, "Send one message now; nothing is kept.",
    query=TargetQuery, answers={200: TestResult}, repeatable=False
)  # fmt: skip
