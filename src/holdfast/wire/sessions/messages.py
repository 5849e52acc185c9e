"""Name what a client asks of a session, what a host is told of it, and how it ends."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, Large, Whole
from holdfast.core.ids import TaskKey

Kind = Literal["exec", "shell", "attach", "forward", "copy", "ssh"]
Argv = Annotated[list[Annotated[str, Meta(max_length=65_536)]], Meta(max_length=4096)]
Side = Annotated[int, Meta(ge=0, le=65_535)]
MAX_ARGV_BYTES = 96 << 10
"""The longest command, because the guardian takes an order in one message."""
LINGER_SECONDS = 600.0
"""How long a session waits for its user without a link."""


class SessionMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the messages. Unknown fields are ignored, so that versions one apart can talk."""


class SessionRequest(SessionMessage, frozen=True, kw_only=True):
    """The first message of a client, as JSON.

    rank: the task of a gang. argv: the command; empty for the user's shell. tty: True for a
    terminal of `rows` × `cols`, of the sort `term`. port: of a forward. session: the session to
    link to anew, or to read along with; else a new one is opened. seen: how many bytes of its
    output the client has. watch: True to read along without a key.
    """

    kind: Kind = "exec"
    rank: Annotated[int, Meta(ge=0, le=65_535)] = 0
    argv: Argv = []
    tty: bool = False
    rows: Side = 0
    cols: Side = 0
    term: Annotated[str, Meta(max_length=64, pattern=r"^[ -~]*$")] = ""
    port: Side = 0
    session: Annotated[str, Meta(max_length=64)] = ""
    seen: Large = 0
    watch: bool = False


class SessionOrder(SessionMessage, frozen=True, kw_only=True):
    """The order to a host to open a link. It repeats until the link is there, or given up.

    id: of the link. session: its session. key: the task. ticket: the one-use secret with which the
    agent dials `/v1/agent/sessions/{id}`. new: True where the session is to be begun, if it is not
    there. stop: True where it is to be ended instead, and no link is dialled. The others: see
    SessionRequest.
    """

    id: str
    session: str
    key: TaskKey
    ticket: str
    kind: Kind = "exec"
    new: bool = False
    stop: bool = False
    argv: list[str] = []
    tty: bool = False
    rows: Count = 0
    cols: Count = 0
    term: str = ""
    port: Count = 0
    seen: Large = 0
    watch: bool = False


class SessionBegun(SessionMessage, frozen=True, kw_only=True):
    """The news that a link works. session: its id. start: the offset of the output that follows;
    over what the client has where older output is lost. taken: how many bytes of its input the
    session has had. tty: True if it has a terminal. life: a word that changes where both are counted
    anew, because the agent was replaced. watch: the link reads along, because another user is
    there."""

    session: str
    start: Large = 0
    taken: Large = 0
    tty: bool = False
    life: str = ""
    watch: bool = False


class SessionStatus(SessionMessage, frozen=True, kw_only=True):
    """The end of a link, as the last frame. exit_code, signal: how the command ended; both None
    where the session goes on or never began. code, detail, status: the problem, as in answers of
    the API."""

    exit_code: Whole | None = None
    signal: Count | None = None
    code: str = ""
    detail: str = ""
    status: Count = 0


class SessionEnd(SessionMessage, frozen=True, kw_only=True):
    """The report of an agent that a session is over (`POST /v1/agent/sessions/{id}/end`)."""

    exit_code: Whole | None = None
    signal: Count | None = None
    reason: Annotated[str, Meta(max_length=2048)] = ""


class TicketRequest(SessionMessage, frozen=True, kw_only=True):
    """The task of a job into which a browser is to come. rank: of a gang."""

    rank: Annotated[int, Meta(ge=0, le=65_535)] = 0


class SessionTicket(SessionMessage, frozen=True, kw_only=True):
    """The ticket with which one browser opens one shell, once, before `expires_at`."""

    ticket: str
    expires_at: datetime


class SessionRight(SessionMessage, frozen=True, kw_only=True):
    """Whether the caller may come into a job's tasks. code, reason: of the refusal; empty where the
    caller may."""

    allowed: bool
    code: str = ""
    reason: str = ""


class SessionRecord(SessionMessage, frozen=True, kw_only=True):
    """A session as it is shown. owner: the user that came in. from_address: from where. command: the
    words, as one line. state: opening, running or ended."""

    id: str
    job_id: str
    rank: int
    epoch: int
    host_id: str
    kind: str
    command: str
    owner: str
    token_name: str = ""
    from_address: str = ""
    state: Literal["opening", "running", "ended"]
    created_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
