"""The operations on sessions."""

import msgspec

from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.sessions.messages import (
    SessionEnd,
    SessionRecord,
    SessionRight,
    SessionTicket,
    TicketRequest,
)

JOB = "/v1/jobs/{id}"


class SessionsQuery(msgspec.Struct, frozen=True):
    """The sessions to list. all: `yes` to list ended sessions, too."""

    all: str = ""


OPEN_SESSION = Operation(
    "GET", f"{JOB}/sessions/open", Role.READ,
    "Come into a running task, as a WebSocket; the first message is a SessionRequest.",
    socket=True, answers={101: None}
)  # fmt: skip
CREATE_TICKET = Operation(
    "POST", f"{JOB}/sessions/tickets", Role.READ,
    "A ticket with which the browser that asks opens one shell, once.",
    body=TicketRequest, optional_body=True, answers={201: SessionTicket}
)  # fmt: skip
SHOW_RIGHT = reads(
    f"{JOB}/sessions/right", "Whether the caller may come into its tasks, and why not.",
    SessionRight
)  # fmt: skip
LIST_SESSIONS_OF_JOB = reads(
    f"{JOB}/sessions", "The sessions in a job's tasks.", PageOf(SessionRecord), SessionsQuery
)  # fmt: skip
LIST_SESSIONS = reads(
    "/v1/sessions", "The sessions in running tasks.", PageOf(SessionRecord), SessionsQuery
)  # fmt: skip
STOP_SESSION = Operation(
    "DELETE", "/v1/sessions/{id}", Role.SUBMIT, "End a session.", answers={204: None},
    repeatable=False
)  # fmt: skip
DIAL_SESSION = Operation(
    "GET", "/v1/agent/sessions/{id}", Role.HOST,
    "A host's end of a session's link, as a WebSocket; the ticket stands in the header Holdfast-Ticket.",
    socket=True, answers={101: None}
)  # fmt: skip
TAKE_RELAYED_DIAL = Operation(
    "GET", "/v1/replicas/sessions/{id}", Role.REPLICA,
    "The same, passed on by the replica that the host dialled; the cluster's own key proves it.",
    socket=True, answers={101: None}
)  # fmt: skip
REPORT_END = Operation(
    "POST", "/v1/agent/sessions/{id}/end", Role.HOST, "A session is over.", body=SessionEnd,
    answers={204: None}
)  # fmt: skip
