"""The operations on calls."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.core.calls.values import MAX_SET_CALLS
from holdfast.core.spec import Name
from holdfast.wire.calls import (
    CallLogLine,
    CallResults,
    CallsChange,
    CallSetView,
    CallView,
    MoreCalls,
    NewCallSet,
)
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import Attempt, Flag, Limit, Owner, Text

SET = "/v1/call-sets/{id}"
_BYTES = ("application/octet-stream",)
_SSE = ("text/event-stream",)


class CallLogsQuery(Query, frozen=True, kw_only=True):
    """The bytes to read. attempt: the number of the call's attempt; absent means its last one, and
    with `follow` also the later ones. since: with `follow`, the attempt to begin with after a lost
    connection."""

    attempt: Attempt | None = None
    since: Attempt | None = None
    stream: Literal["stdout", "stderr", "both"] = "both"
    follow: Flag = "0"


class ResultsQuery(Query, frozen=True, kw_only=True):
    """The results to return: those from `first` on without a gap, those at `index` ("3,17,…"), or
    those in a `state`, by index. wait: the seconds to wait for the first of them, at most 25."""

    first: Annotated[int, Meta(ge=0, le=MAX_SET_CALLS)] = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    index: Annotated[str, Meta(pattern=r"^[0-9]{1,8}(,[0-9]{1,8})*$")] | None = None
    state: tuple[str, ...] = ()
    wait: Annotated[str, Meta(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?$")] = "0"


class SetsQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of call sets, newest first."""

    project: Name | None = None
    owner: Owner | None = None
    limit: Limit = 100
    cursor: Text | None = None


CREATE_SET = Operation(
    "POST", "/v1/call-sets", Role.SUBMIT, "Submit calls of a function.", body=NewCallSet,
    answers={201: CallSetView}
)  # fmt: skip
LIST_SETS = reads("/v1/call-sets", "Call sets, newest first.", PageOf(CallSetView), SetsQuery)
GET_SET = reads(SET, "One call set and its counts.", CallSetView)
APPEND_CALLS = Operation(
    "POST", SET + "/calls", Role.SUBMIT, "More calls of an open set.", body=MoreCalls,
    answers={200: CallSetView}, owned="set"
)  # fmt: skip
GET_RESULTS = reads(
    SET + "/results", "Results in order, or of some calls: a long poll.", CallResults, ResultsQuery
)  # fmt: skip
GET_CALL = reads(
    SET + "/calls/{index}", "One call: its failed attempts, and why it is where it is.", CallView
)  # fmt: skip
GET_CALL_LOGS = Operation(
    "GET", SET + "/calls/{index}/logs", Role.READ, "What one call printed, as events.",
    query=CallLogsQuery, answers={200: CallLogLine}, media=_SSE
)  # fmt: skip
CANCEL_CALLS = Operation(
    "POST", SET + "/cancel", Role.SUBMIT, "Cancel calls, or all of the set.", body=CallsChange,
    optional_body=True, answers={200: CallSetView}, owned="set"
)  # fmt: skip
RETRY_CALLS = Operation(
    "POST", SET + "/retry", Role.SUBMIT, "Failed and cancelled calls again, with fresh budgets.",
    body=CallsChange, optional_body=True, answers={200: CallSetView}, owned="set"
)  # fmt: skip
PUT_VALUE = Operation(
    "PUT", "/v1/values/{sha256}", Role.SUBMIT,
    "Keep a large argument of a call under the SHA-256 of its bytes, which are the body.",
    raw=True, media_in=_BYTES, answers={204: None}
)  # fmt: skip
GET_VALUE = Operation(
    "GET", "/v1/values/{sha256}", Role.READ, "The bytes of a large argument or result.",
    answers={200: None}, media=_BYTES
)  # fmt: skip
