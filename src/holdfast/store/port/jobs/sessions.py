"""Sessions: a person's lines into running tasks, and the links that hosts dial for them."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.records import JobRecord
from holdfast.moves.values import StoreValue
from holdfast.store.port.clock import Now
from holdfast.wire.sessions.messages import SessionEnd, SessionOrder, SessionRecord, SessionRequest


class Visitor(StoreValue, frozen=True, kw_only=True):
    """A user that comes in, by which token, and from where."""

    user: str
    token_id: str
    token_name: str
    address: str


class SessionStore(Protocol):
    """Sessions and their links."""

    async def open_session(
        self,
        session_id: str,
        job: JobRecord,
        asked: SessionRequest,
        command: str,
        visitor: Visitor,
        *,
        now: Now = None,
    ) -> SessionRecord:
        """Record a session in a running task, with its event (`session_started`). Raises Conflict
        where the task does not run, and NotFound for a rank that the job does not have."""

    async def ask_link(
        self, host_id: str, order: SessionOrder, replica: str, *, now: Now = None
    ) -> None:
        """Order a host to dial a link; its ticket is good for one dial."""

    async def tell_links(self, host_id: str) -> list[SessionOrder]:
        """Return the links that a host has still to dial; each again after two seconds."""

    async def take_link(self, host_id: str, link_id: str, ticket: str) -> tuple[str, str] | None:
        """Spend a ticket: return its session and the replica where its user waits; None for one
        that is not good."""

    async def drop_link(self, link_id: str) -> None:
        """Take the order for a link back."""

    async def note_begun(self, session_id: str) -> None:
        """Record that a session has its link."""

    async def end_session(
        self, session_id: str, end: SessionEnd, *, host_id: str | None = None, now: Now = None
    ) -> bool:
        """Record the end of a session, with its event (`session_ended`). Return False where it was
        recorded before. host_id: the host that reports it, which must be the session's."""

    async def end_lost_sessions(self, *, now: Now = None) -> int:
        """Record the ends of sessions whose attempts are over; return how many there were."""

    async def get_session(self, session_id: str) -> SessionRecord:
        """Return a session. Raises NotFound."""

    async def list_sessions(
        self, job_id: str | None = None, *, also_over: bool = False, limit: int = 500
    ) -> Sequence[SessionRecord]:
        """Return sessions, the newest first."""
