"""The blocking client: one connection, which runs the scripts of the methods."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.client.follow import Follow, ReconnectDelays
from holdfast.client.locate import locate
from holdfast.client.methods.every import EveryMethod
from holdfast.client.rest import PageCall, RestCall
from holdfast.client.scripts import Blocking, FetchFile, Script, SendFile, Sleep, Step, UseCaller
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.client.transport import (
    NO_WATCH,
    AnswerWatch,
    explain_loss,
    file_request,
    held_seconds,
    http_options,
    refuse,
    request_of,
    stream_request,
    tell_note,
    warn,
)
from holdfast.errors import ConnectionLost, HoldfastError, NeverConnected, Unavailable
from holdfast.http.blocking import BlockingHttp, BlockingReply
from holdfast.http.courier import HttpRequest

if TYPE_CHECKING:
    from holdfast.client.data.copy import CopyProgress
    from holdfast.client.sessions.forward import PortForward
    from holdfast.client.sessions.session import TaskSession
    from holdfast.wire.sessions.messages import Kind

T = TypeVar("T")
LINGER_SECONDS = 600.0  # as long as hosts keep a session whose user is gone


class RestConnection(Blocking):
    """Sends calls, pages through lists and follows streams. on_note: called with each note of the
    controller about a call that it accepted; by default the note is a warning
    (`HoldfastWarning`)."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 10.0,
        ca_file: str | None = None,
        context: str | None = None,
        watch: AnswerWatch = NO_WATCH,
    ) -> None:
        place = locate(url, token, context=context)
        self.place = msgspec.structs.replace(place, ca_file=ca_file or place.ca_file)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self.on_note: Callable[[str], None] = warn
        self._watch = watch
        self._http = BlockingHttp(**http_options(self.place, timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def open_session(
        self,
        job_id: str,
        argv: Sequence[str] = (),
        *,
        kind: Kind = "exec",
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
    ) -> TaskSession:
        """Open a session in a running task, and return it once it has begun.

        argv: the command; empty for the user's shell. tty: True for a terminal of `rows` × `cols`.
        session: a session to link to, instead of a new one; watch: only to read along. on_lost:
        called with a sentence where the link breaks, and with an empty one where it works again.
        linger_seconds: how long a link that broke is tried anew; 0: not at all.
        """
        from holdfast.client.sessions.session import TaskSession
        from holdfast.wire.sessions.messages import SessionRequest

        asked = SessionRequest(
            kind=kind, rank=rank, argv=list(argv), tty=tty, rows=rows, cols=cols,
            term=term, port=port, session=session, watch=watch,
        )  # fmt: skip
        return TaskSession(
            self.place, job_id, asked, on_lost=on_lost, linger_seconds=linger_seconds
        )

    def copy_from(
        self, job_id: str, paths: Sequence[str], to: str, *, rank: int = 0
    ) -> CopyProgress:
        """Copy files and folders of a running task below `to`, as `holdfast cp JOB:PATH… TO` does.
        Raises HoldfastError, OSError; the same call then goes on."""
        from holdfast.client.data.copy import Copier
        from holdfast.client.data.session_pipe import CopySessions

        return Copier(CopySessions(self, job_id, rank, ["cp", *paths]).open).fetch(paths, to)

    def copy_to(
        self, job_id: str, paths: Sequence[str], to: str = "", *, rank: int = 0
    ) -> CopyProgress:
        """Copy files and folders of this machine to a running task, as `holdfast cp PATH… JOB:TO`
        does. Raises HoldfastError, OSError; the same call then goes on."""
        from holdfast.client.data.copy import Copier
        from holdfast.client.data.session_pipe import CopySessions

        return Copier(CopySessions(self, job_id, rank, ["cp", *paths]).open).send(paths, to)

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
    ) -> PortForward:
        """Listen here, and carry each connection to a port on which a process of a running task
        listens, until the forward is closed or the job ends.

        local_port: the port here; 0 for any free one, None for the same number. on_refused: called
        with a sentence for each connection that could not be made; on_notice: with one for the
        user. Raises OSError where the port here is taken.
        """
        from holdfast.client.sessions.forward import PortForward

        return PortForward(
            self.place,
            job_id,
            port,
            local_port=local_port,
            address=address,
            rank=rank,
            on_refused=on_refused,
            on_notice=on_notice,
        )

    def call(self, call: RestCall[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        delays = ReconnectDelays(self._retry_seconds)
        while True:
            try:
                return self._send(call)
            except Unavailable as error:
                again = call.repeatable or isinstance(error, NeverConnected)
                delay = delays.next_delay(_chance()) if again else None
                if delay is None:
                    raise explain_loss(self.place, error) from error
            time.sleep(delay)

    def _send(self, call: RestCall[T]) -> T:
        return call.read(self._ask(request_of(call, self._timeout_seconds)))

    @contextmanager
    def _open(self, request: HttpRequest) -> Iterator[BlockingReply]:
        self._watch.ask(held_seconds(request))
        with self._http.send(request) as answer:
            self._watch.hear()
            yield answer

    def _ask(self, request: HttpRequest) -> bytes:
        with self._open(request) as answer:
            data = answer.read()
        if answer.status >= 300:
            raise refuse(self.place, answer.status, data)
        tell_note(answer.headers, self.on_note)
        return data

    def perform(self, begin: Callable[[], Script[T]]) -> T:
        """Carry out the steps of a script, and return its result. A step's failure is raised inside
        the script."""
        script = begin()
        go_on: Callable[[], Step] = partial(next, script)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                go_on = partial(script.send, self._do(step))
            except HoldfastError as error:
                go_on = partial(script.throw, error)

    def _do(self, step: Step) -> Any:
        if isinstance(step, RestCall):
            return self.call(step)
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, UseCaller):
            return step.work(self)
        try:
            return self._fetch(step) if isinstance(step, FetchFile) else self._upload(step)
        except ConnectionLost as error:
            raise explain_loss(self.place, error) from error

    def _fetch(self, wanted: FetchFile) -> None:
        from holdfast.client.download import receive  # late, because few programs fetch a file

        request = HttpRequest(
            "GET", wanted.path, self._timeout_seconds, wanted.query, repeatable=True
        )
        with self._open(request) as answer:
            if answer.status >= 300:
                raise refuse(self.place, answer.status, answer.read())
            with receive(wanted.to, answer.headers) as download:
                for piece in answer.pieces():
                    download.add(piece)

    def _upload(self, given: SendFile) -> bytes:
        return self._ask(file_request(given.path, given.query, given.file, self._timeout_seconds))

    def each(self, source: PageCall[T] | Follow[T]) -> Iterator[T]:
        """Yield every item; a page is fetched when its first item is asked for."""
        if isinstance(source, Follow):
            yield from self._follow(source)
            return
        while True:
            page = self.call(source)
            yield from page.items
            if page.next is None:
                return
            source = source.at(page.next)

    def _stream(self, call: RestCall[Any], headers: Mapping[str, str]) -> Iterator[ServerEvent]:
        reader = EventStreamReader()
        with self._open(stream_request(call, headers)) as answer:
            if answer.status >= 300:
                raise refuse(self.place, answer.status, answer.read())
            for data in answer.pieces():
                yield from reader.feed(data)

    def _follow(self, stream: Follow[T]) -> Iterator[T]:
        """Yield the items that the follower finds in its stream, until the follower has ended."""
        follower, delays = stream.follower, ReconnectDelays(stream.retry_seconds)
        while True:
            call, headers = follower.request()
            failure: Unavailable = ConnectionLost("the stream was closed")
            try:
                for event in self._stream(call, headers):
                    delays.succeed()
                    yield from follower.read_event(event)
                    if follower.ended:
                        return
            except Unavailable as error:
                failure = error
            delay = delays.next_delay(_chance())
            if delay is None:
                raise explain_loss(self.place, failure) from failure
            time.sleep(delay)


class Client(EveryMethod, RestConnection):
    """A connection to a controller. Threads may share it, in a `with` block or up to `close()`.

    Args:
        url, token: the controller, or several of one cluster with commas between, and the caller's
            token; `holdfast.client.locate` finds them where they are left out.
        timeout_seconds: how long to wait for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's. [default: the context's, or
            HOLDFAST_CA_FILE]
        context: the name of the server, as `holdfast login` keeps it, in place of `url`.
        watch: the functions called at each request and at each answer's head.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """


def _chance() -> float:
    return random.random()
