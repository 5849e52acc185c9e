"""A session as a blocking object: what a command in a running task prints, and what it reads.

A link that breaks is made anew for as long as the host keeps the session, without a byte lost or
doubled (SESSION-1). A caller notices nothing but the time, and, if it wants, `on_lost`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from holdfast.client.late import LateModule
from holdfast.client.locate import ControllerPlace
from holdfast.client.rest import path_to
from holdfast.client.sessions.websocket import LinkLost, WebSocket, open_websocket
from holdfast.client.transport import http_options
from holdfast.errors import Conflict, Forbidden, HoldfastError, NotFound, Unauthorized, Unavailable
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import CONNECT_SECONDS
from holdfast.wire.sessions.frames import (
    BEGUN,
    CLOSE,
    DAMAGED,
    NOTICE,
    PIECE_BYTES,
    REPLACED,
    RESIZE,
    SIGNAL,
    STATUS,
    STDERR,
    STDIN,
    STDIN_WINDOW_BYTES,
    STDOUT,
    TAKEN,
    TakenBytes,
    TerminalSize,
    frame,
    frame_json,
)
from holdfast.wire.sessions.messages import (
    LINGER_SECONDS,
    SessionBegun,
    SessionRequest,
    SessionStatus,
)

if TYPE_CHECKING:
    from holdfast.wire.operations.work import sessions as on_sessions
else:
    on_sessions = LateModule("holdfast.wire.operations.work.sessions")

_ACK_BYTES = 64 << 10
_AGAIN_SECONDS = (0.1, 2.0)
_BEGIN_SECONDS = 40.0
_TURN_SECONDS = 0.2
_MOST_DAMAGES = 5
_KINDS: dict[int, type[HoldfastError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    503: Unavailable,
}


class Printed(NamedTuple):
    """A piece of what a session printed: the stream, "stdout" or "stderr", and bytes."""

    stream: str
    data: bytes


class TaskSession:
    """One session in a running task, once its link works.

    Threads may share it: one thread reads (`read`, or the session as an iterator), others write. A
    thread that writes more than the command reads waits, and reads ahead meanwhile.

    job_id: the full id of the job. request: the session to open. on_lost: called with a sentence
    where the link breaks, and with an empty one where it works again. linger_seconds: how long a
    lost link is tried anew; 0: not at all. `on_notice` may be set: it is called with a sentence for
    the user.

    Raises HoldfastError where the session cannot be opened.
    """

    def __init__(
        self,
        place: ControllerPlace,
        job_id: str,
        request: SessionRequest,
        *,
        on_lost: Callable[[str], None] = lambda sentence: None,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._place = place
        self._path = path_to(on_sessions.OPEN_SESSION, job_id)
        self._request = request
        self._http = BlockingHttp(**http_options(place, CONNECT_SECONDS))
        self._on_lost = on_lost
        self._linger_seconds = linger_seconds
        self._wire: WebSocket
        self._reading = threading.RLock()
        self._writing = threading.RLock()
        self._room = threading.Condition()
        self._found: deque[Printed] = deque()
        self._ended = False
        self._life = ""
        self._got = self._seen = self._seen_told = 0  # what came, what the caller has of that
        self._damaged: tuple[tuple[int, int], int] = (0, 0), 0  # where, and how often there
        self._sent = self._taken = 0
        self._unsent: deque[tuple[int, bytes]] = deque()  # offset, bytes not acknowledged yet
        self._input_over = False
        self._size: TerminalSize | None = None
        self.status: SessionStatus | None = None
        self.id = request.session
        self.tty = request.tty
        self.watches = request.watch
        self.on_notice: Callable[[str], None] = lambda sentence: None
        self._open()

    # ---- what a caller reads

    def read(self, seconds: float | None = None) -> Printed | None:
        """Return the next piece of output; None at the end (`exit_code`), or once `seconds` have
        passed. Raises HoldfastError where the session ends with a problem."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._found:
            if self.over or (until is not None and time.monotonic() >= until):
                break
            left = None if until is None else max(0.0, until - time.monotonic())
            with self._reading:
                if not self._found and not self.over:
                    self._pump(left)
        if self._found:
            piece = self._found.popleft()
            self._take(len(piece.data))
            return piece
        self._raise_problem()
        return None

    def __iter__(self) -> Iterator[Printed]:
        while (piece := self.read()) is not None:
            yield piece

    @property
    def over(self) -> bool:
        """Return whether the session has ended."""
        return self.status is not None

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code, or 128 and the signal's number where a signal ended the
        command; None before its end."""
        if self.status is None:
            return None
        return 128 + self.status.signal if self.status.signal else self.status.exit_code

    def wait(self) -> int:
        """Drop the rest of the output, and return the exit code."""
        for _ in self:
            pass
        return self.exit_code or 0

    def _raise_problem(self) -> None:
        status = self.status
        if (
            status is not None
            and status.exit_code is None
            and status.signal is None
            and status.code
        ):
            kind = _KINDS.get(status.status, HoldfastError)
            raise kind(status.detail or status.code, code=status.code)

    # ---- what a caller writes

    def write(self, data: bytes) -> None:
        """Send input to the command. Returns once the input is sent, or the session is over."""
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            while not self._has_room(len(piece)):
                self._await_room()
            if self.over:
                return
            with self._writing:
                self._unsent.append((self._sent, piece))
                self._sent += len(piece)
                self._send(frame(STDIN, piece))

    def _has_room(self, count: int) -> bool:
        return self.over or self._sent - self._taken + count <= STDIN_WINDOW_BYTES

    def _await_room(self) -> None:
        """Wait until the command has read more of its input, and read output ahead meanwhile,
        unless another thread reads it."""
        if self._reading.acquire(blocking=False):
            try:
                self._pump(_TURN_SECONDS)
            finally:
                self._reading.release()
        else:
            with self._room:
                self._room.wait(_TURN_SECONDS)

    def close_stdin(self) -> None:
        """Send the end of the input: the command reads it, and may go on printing."""
        self._input_over = True
        self._send(frame(CLOSE, bytes((STDIN,))))

    def resize(self, rows: int, cols: int) -> None:
        """Tell the terminal its new size."""
        self._size = TerminalSize(rows, cols)
        self._send(frame_json(RESIZE, self._size))

    def signal(self, name: str) -> None:
        """Send a signal to the command's processes. name: as INT or TERM."""
        self._send(frame_json(SIGNAL, name))

    def close(self) -> None:
        """Leave the session, which ends at once together with its processes."""
        self._ended = True
        self._wire.close()

    def abandon(self) -> None:
        """Break the link off without a closing message, as a lost network does; the host keeps the
        session for ten minutes."""
        self._ended = True
        self._wire.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- the link

    def _open(self) -> None:
        """Open a link and wait until it works. Raises HoldfastError."""
        self._wire = open_websocket(self._http, self._place, self._path)
        try:
            asked = msgspec.structs.replace(
                self._request, session=self.id, seen=self._got, watch=self.watches
            )  # a user that reads along does so over the next link, too
            self._wire.ask(msgspec.json.encode(asked))
            until = time.monotonic() + _BEGIN_SECONDS
            begun = None
            while begun is None:
                left = until - time.monotonic()
                if left <= 0:
                    raise Unavailable("the session did not begin in time; try again")
                for message in self._wire.read(left):
                    if begun is None and message[:1] == bytes((BEGUN,)):
                        begun = _decode_begun(message[1:])
                        self._go_on(begun)
                    else:
                        self._hear(message)
                if self.status is not None and begun is None:
                    self._wire.close()
                    self._raise_problem()
                    return
        except LinkLost as error:
            raise Unavailable(f"the link broke before the session began: {error}") from error

    def _go_on(self, begun: SessionBegun) -> None:
        """Go on where the last link broke; after the start of another agent, count the bytes
        anew."""
        self.id, self.tty, self.watches = begun.session, begun.tty, begun.watch
        if begun.life != self._life:
            self._life = begun.life
            self._seen = self._seen_told = begun.start - self._got + self._seen
            self._got = begun.start
            self._sent = self._taken = begun.taken
            self._unsent.clear()
            return
        self._seen += max(0, begun.start - self._got)  # what a terminal printed and nothing kept
        self._seen_told = self._seen
        self._got = max(self._got, begun.start)
        self._note_taken(begun.taken)
        for offset, piece in list(self._unsent):
            skipped = max(0, self._taken - offset)
            self._wire.send(frame(STDIN, piece[skipped:]))
        if self._size is not None:
            self._wire.send(frame_json(RESIZE, self._size))
        if self._input_over:
            self._wire.send(frame(CLOSE, bytes((STDIN,))))

    def _pump(self, seconds: float | None) -> None:
        """Read the next messages of the session, over a new link where the last one broke."""
        try:
            for message in self._wire.read(seconds):
                self._hear(message)
        except LinkLost as error:
            if self.status is None:
                self._link_anew(error)

    def _link_anew(self, lost: LinkLost) -> None:
        if self._ended:
            raise Unavailable("the session was closed here") from lost
        if lost.code == REPLACED:
            raise Conflict(f"session {self.id} goes on at another place", code="session_replaced")
        if lost.code == DAMAGED:
            here, (at, times) = (self._got, self._taken), self._damaged
            self._damaged = here, times + 1 if at == here else 1
            if self._damaged[1] == _MOST_DAMAGES:
                raise Unavailable(
                    f"session {self.id} cannot go on, because {lost} each time; look at the proxies "
                    "and relays between here and the controller"
                ) from lost
        until = time.monotonic() + self._linger_seconds
        pause, most = _AGAIN_SECONDS
        if not self._linger_seconds or not self.id:
            raise Unavailable(f"the link of the session broke: {lost}") from lost
        self._on_lost(str(lost))
        self._wire.abort()
        while True:
            try:
                with self._writing:
                    self._open()
                self._on_lost("")
                return
            except (Unavailable, Conflict) as error:
                if time.monotonic() >= until or error.code in ("session_ended", "job_ended"):
                    raise
            time.sleep(pause)
            pause = min(pause * 2, most)

    def _hear(self, message: bytes) -> None:
        channel, payload = message[0] if message else -1, message[1:]
        if channel in (STDOUT, STDERR):
            self._got += len(payload)
            self._found.append(Printed("stdout" if channel == STDOUT else "stderr", payload))
        elif channel == STATUS:
            self.status = _decode_status(payload)
            self._wire.close()
            with self._room:
                self._room.notify_all()
        elif channel == NOTICE:
            self.on_notice(payload.decode(errors="replace"))
        elif channel == TAKEN:
            self._note_taken(_decode_taken(payload).bytes)

    def _note_taken(self, count: int) -> None:
        self._taken = max(self._taken, count)
        while self._unsent and self._unsent[0][0] + len(self._unsent[0][1]) <= self._taken:
            self._unsent.popleft()
        with self._room:
            self._room.notify_all()

    def _take(self, count: int) -> None:
        """Acknowledge output that the caller has got."""
        self._seen += count
        if self._seen - self._seen_told >= _ACK_BYTES and not self.over:
            self._seen_told = self._seen
            self._send(frame_json(TAKEN, TakenBytes(self._seen)))

    def _send(self, data: bytes) -> None:
        """Send a frame; a lost link is noticed, and mended, by the next read."""
        try:
            self._wire.send(data)
        except LinkLost:
            if self._ended:
                raise Unavailable("the session was closed here") from None


_decode_begun: Any = msgspec.json.Decoder(SessionBegun).decode
_decode_status: Any = msgspec.json.Decoder(SessionStatus).decode
_decode_taken: Any = msgspec.json.Decoder(TakenBytes).decode
