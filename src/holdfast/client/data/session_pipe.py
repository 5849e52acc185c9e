"""The line of a copy: a session of kind `copy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.client.late import LateModule
from holdfast.client.rest import ask
from holdfast.client.sessions.session import TaskSession
from holdfast.core.states import JobState
from holdfast.errors import Conflict, HoldfastError, NotFound, Unavailable
from holdfast.wire.sessions.messages import SessionRequest

if TYPE_CHECKING:
    from holdfast.client.scripts import Caller
    from holdfast.wire.operations.work import jobs as on_jobs
else:
    on_jobs = LateModule("holdfast.wire.operations.work.jobs")

_MOST_SAID = 2000


class SessionPipe:
    """Carries the bytes of a copy over a session (`channel.Pipe`)."""

    def __init__(self, session: TaskSession) -> None:
        self._session = session
        self._said = b""

    def write(self, data: bytes) -> None:
        """Send bytes to the program. Raises Unavailable where the session is over."""
        try:
            self._session.write(data)
        except (NotFound, Conflict) as error:
            raise Unavailable(str(error)) from error  # a new session says whether the task lives
        if self._session.over:
            self._end()

    def receive(self) -> bytes:
        """Return the next bytes of the program. Raises Unavailable where the session was ended from
        outside of this copy, and HoldfastError where the program failed."""
        try:
            while (piece := self._session.read()) is not None:
                if piece.stream == "stdout":
                    return piece.data
                self._said = (self._said + piece.data)[-_MOST_SAID:]
        except (NotFound, Conflict) as error:
            raise Unavailable(str(error)) from error
        self._end()
        return b""

    def _end(self) -> None:
        code = self._session.exit_code
        if code is not None and 0 < code < 128:
            said = self._said.decode(errors="replace").strip().rpartition("\n")[2]
            raise HoldfastError(f"the program that serves the task's files failed ({code}): {said}")
        raise Unavailable("the session of the copy was ended on its host")

    def close(self) -> None:
        """End the session."""
        self._session.close()


class CopySessions:
    """Opens the sessions of a copy, one after the other. shown: the command as other users see
    it."""

    def __init__(self, caller: Caller, job_id: str, rank: int, shown: Sequence[str]) -> None:
        self._caller, self._job_id = caller, job_id
        self._asked = SessionRequest(kind="copy", rank=rank, argv=list(shown)[:64])
        self._began = False

    def open(self) -> SessionPipe:
        """Open a session for the copy. Raises Conflict or NotFound where the task does not run, and
        Unavailable where a session may be opened later."""
        try:
            session = TaskSession(self._caller.place, self._job_id, self._asked, linger_seconds=0)
        except (Conflict, NotFound) as error:
            if self._began and self._lives():
                raise Unavailable(str(error)) from error  # its agent is being replaced
            raise
        self._began = True
        return SessionPipe(session)

    def _lives(self) -> bool:
        call = ask(on_jobs.GET_JOB, self._job_id)
        return self._caller.call(call).state is JobState.RUNNING
