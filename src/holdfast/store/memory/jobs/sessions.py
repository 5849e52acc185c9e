"""Sessions are not kept in memory: they need real hosts, and those a real database."""

from collections.abc import Sequence

from holdfast.core.records import JobRecord
from holdfast.errors import NotFound, Unavailable
from holdfast.store.port.clock import Now
from holdfast.store.port.jobs.sessions import Visitor
from holdfast.wire.sessions.messages import SessionEnd, SessionOrder, SessionRecord, SessionRequest


class NoSessions:
    """`SessionStore` that has none."""

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
        raise Unavailable("the store in memory keeps no sessions")

    async def ask_link(
        self, host_id: str, order: SessionOrder, replica: str, *, now: Now = None
    ) -> None:
        raise Unavailable("the store in memory keeps no sessions")

    async def tell_links(self, host_id: str) -> list[SessionOrder]:
        return []

    async def take_link(self, host_id: str, link_id: str, ticket: str) -> tuple[str, str] | None:
        return None

    async def drop_link(self, link_id: str) -> None:
        pass

    async def note_begun(self, session_id: str) -> None:
        pass

    async def end_session(
        self, session_id: str, end: SessionEnd, *, host_id: str | None = None, now: Now = None
    ) -> bool:
        return False

    async def end_lost_sessions(self, *, now: Now = None) -> int:
        return 0

    async def get_session(self, session_id: str) -> SessionRecord:
        raise NotFound(f"there is no session {session_id[:64]!r}")

    async def list_sessions(
        self, job_id: str | None = None, *, also_over: bool = False, limit: int = 500
    ) -> Sequence[SessionRecord]:
        return []
