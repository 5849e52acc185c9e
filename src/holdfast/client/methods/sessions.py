"""Sessions in running tasks: commands, terminals, forwarded ports, copies of files."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, overload

from holdfast.client.late import LateModule
from holdfast.client.scripts import Awaited, Blocking, Script, UseCaller, runs

if TYPE_CHECKING:
    from holdfast.client.data import copy as copying
    from holdfast.client.data import session_pipe
    from holdfast.client.sessions import asynchronous, forward
    from holdfast.client.sessions import session as sessions
    from holdfast.wire.sessions import messages
else:
    copying = LateModule("holdfast.client.data.copy")
    session_pipe = LateModule("holdfast.client.data.session_pipe")
    asynchronous = LateModule("holdfast.client.sessions.asynchronous")
    forward = LateModule("holdfast.client.sessions.forward")
    sessions = LateModule("holdfast.client.sessions.session")
    messages = LateModule("holdfast.wire.sessions.messages")

LINGER_SECONDS = 600.0  # as long as hosts keep a session whose user is gone
P = ParamSpec("P")


class OpensSession(Generic[P]):
    """A method that opens a session: of the asyncio client, one whose own methods are awaited."""

    def __init__(self, make: Callable[Concatenate[Any, P], sessions.TaskSession]) -> None:
        self._make = make

    @overload
    def __get__(self, client: None, owner: object) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: object) -> Callable[P, sessions.TaskSession]: ...
    @overload
    def __get__(
        self, client: Awaited, owner: object
    ) -> Callable[P, Coroutine[Any, Any, asynchronous.AsyncTaskSession]]: ...
    def __get__(self, client: Any, owner: object) -> Callable[..., Any]:
        make = self._make
        if client is None or isinstance(client, Blocking):
            return make if client is None else make.__get__(client)

        @wraps(make)
        async def method(*given: Any, **named: Any) -> asynchronous.AsyncTaskSession:
            import asyncio  # late, because the blocking client does without it

            opened = await asyncio.to_thread(make, client, *given, **named)
            return asynchronous.AsyncTaskSession(opened)

        return method


class SessionMethods:
    """The client's methods about sessions."""

    @OpensSession
    def open_session(
        self: Any,
        job_id: str,
        argv: Sequence[str] = (),
        *,
        kind: messages.Kind = "exec",
        rank: int = 0,
        tty: bool = False,
        rows: int = 0,
        cols: int = 0,
        term: str = "",
        port: int = 0,
        session: str = "",
        watch: bool = False,
        on_lost: Callable[[str], None] = lambda sentence: None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> sessions.TaskSession:
        """Open a session in a running task, and return it once it has begun.

        argv: the command; empty for the user's shell. tty: True for a terminal of `rows` × `cols`.
        session: a session to link to, instead of a new one; watch: only to read along. on_lost:
        called with a sentence where the link breaks, and with an empty one where it works again; by
        the asyncio client, in another thread. linger_seconds: how long a link that broke is tried
        anew; 0: not at all.
        """
        asked = messages.SessionRequest(
            kind=kind, rank=rank, argv=list(argv), tty=tty, rows=rows, cols=cols,
            term=term, port=port, session=session, watch=watch,
        )  # fmt: skip
        return sessions.TaskSession(
            self.place, job_id, asked, on_lost=on_lost, linger_seconds=linger_seconds
        )

    @runs
    def copy_from(
        self, job_id: str, paths: Sequence[str], to: str, *, rank: int = 0
    ) -> Script[copying.CopyProgress]:
        """Copy files and folders of a running task below `to`, as `holdfast cp JOB:PATH… TO` does.
        Raises HoldfastError, OSError; the same call then goes on."""
        copied: copying.CopyProgress = yield _use_copier(
            job_id, rank, paths, lambda copier: copier.fetch(paths, to)
        )
        return copied

    @runs
    def copy_to(
        self, job_id: str, paths: Sequence[str], to: str = "", *, rank: int = 0
    ) -> Script[copying.CopyProgress]:
        """Copy files and folders of this machine to a running task, as `holdfast cp PATH… JOB:TO`
        does. Raises HoldfastError, OSError; the same call then goes on."""
        copied: copying.CopyProgress = yield _use_copier(
            job_id, rank, paths, lambda copier: copier.send(paths, to)
        )
        return copied

    @runs
    def forward_port(
        self,
        job_id: str,
        port: int,
        *,
        local_port: int | None = 0,
        address: str = "127.0.0.1",
        rank: int = 0,
        on_refused: Callable[[str], None] = lambda sentence: None,
        on_notice: Callable[[str], None] = lambda sentence: None,
    ) -> Script[forward.PortForward]:
        """Listen here, and carry each connection to a port on which a process of a running task
        listens, until the forward is closed or the job ends.

        local_port: the port here; 0 for any free one, None for the same number. on_refused: called
        with a sentence for each connection that could not be made; on_notice: with one for the
        user. Raises OSError where the port here is taken.
        """
        opened: forward.PortForward = yield UseCaller(
            lambda caller: forward.PortForward(
                caller.place, job_id, port, local_port=local_port, address=address, rank=rank,
                on_refused=on_refused, on_notice=on_notice,
            )
        )  # fmt: skip
        return opened


def _use_copier(
    job_id: str, rank: int, paths: Sequence[str], work: Callable[[copying.Copier], object]
) -> UseCaller:
    shown = ["cp", *paths]
    return UseCaller(
        lambda caller: work(
            copying.Copier(session_pipe.CopySessions(caller, job_id, rank, shown).open)
        )
    )
