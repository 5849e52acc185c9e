"""Ports of running tasks on this machine: each connection here is a session of its own.

The port here stays open while the job changes attempts: a connection that comes between two of them
waits for the next. A connection that is refused ends by itself alone.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.client.late import LateModule
from holdfast.client.locate import ControllerPlace
from holdfast.client.rest import ask, path_to
from holdfast.client.sessions.websocket import LinkLost, WebSocket, is_ready, open_websocket
from holdfast.client.transport import http_options, refuse, request_of
from holdfast.core.records import JobRecord
from holdfast.errors import Conflict, HoldfastError, NotFound, Unavailable
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import CONNECT_SECONDS
from holdfast.http.sockets import reset_on_close
from holdfast.wire.sessions.frames import (
    BEGUN,
    CLOSE,
    DAMAGED,
    NOTICE,
    PIECE_BYTES,
    STATUS,
    STDIN,
    STDOUT,
    frame,
)
from holdfast.wire.sessions.messages import SessionRequest, SessionStatus

if TYPE_CHECKING:
    from holdfast.wire.operations.work import jobs as on_jobs
    from holdfast.wire.operations.work import sessions as on_sessions
else:
    on_jobs = LateModule("holdfast.wire.operations.work.jobs")
    on_sessions = LateModule("holdfast.wire.operations.work.sessions")

NEXT_SECONDS = 60.0
"""How long a connection waits for the job's next attempt, or for the controller."""
_AGAIN_SECONDS = 0.5
_BEGIN_SECONDS = 30.0
_BACKLOG = 256
_STEP_SECONDS = 0.2
_LOOK_SECONDS = 2.0
_SAME_SECONDS = 5.0
_decode_status = msgspec.json.Decoder(SessionStatus).decode
_decode_job = msgspec.json.Decoder(JobRecord).decode


class PortForward:
    """A port of this machine whose connections go to a port of a running task.

    on_refused: called with a sentence for each connection that could not be made. on_notice: called
    with a sentence for the user, once, also where several connections bring it. Once the forward is
    closed, `over` is the sentence that says how the job ended, and `error` why it cannot go on.
    """

    def __init__(
        self,
        place: ControllerPlace,
        job_id: str,
        port: int,
        *,
        local_port: int | None = None,
        address: str = "127.0.0.1",
        rank: int = 0,
        on_refused: Callable[[str], None] = lambda sentence: None,
        on_notice: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._place = place
        self._path = path_to(on_sessions.OPEN_SESSION, job_id)
        self._job = request_of(ask(on_jobs.GET_JOB, job_id), CONNECT_SECONDS)
        self._asked = SessionRequest(kind="forward", port=port, rank=rank)
        self._http = BlockingHttp(**http_options(place, CONNECT_SECONDS))
        self._on_refused = on_refused
        self._on_notice = on_notice
        self._noticed = ("", -math.inf)
        self._closed = threading.Event()
        self._open: set[WebSocket] = set()
        self.error: HoldfastError | None = None
        self.over = ""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server(
            (address, port if local_port is None else local_port), family=family, backlog=_BACKLOG
        )
        self.address = address
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="forward").start()
        threading.Thread(target=self._watch, daemon=True, name="job").start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the forward is closed, by the end of its job or by `close`. Return whether it
        is closed."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """Close the port on this machine, and its connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for wire in list(self._open):
            wire.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _watch(self) -> None:
        """Close the forward once its job has ended."""
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                with self._http.send(self._job) as answer:
                    data = answer.read()
                if answer.status >= 400:
                    raise refuse(self._place, answer.status, data)
                job = _decode_job(data)
            except NotFound as error:
                self.error = error
            except (HoldfastError, *UNREADABLE):
                continue  # the port stays, and goes on once the controller answers
            else:
                if not job.state.terminal:
                    continue
                self.over = f"job {job.id} ended as {job.state}; port {self.port} here is closed"
            self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(local,), daemon=True).start()

    def _serve(self, local: socket.socket) -> None:
        try:
            wire = self._link()
        except HoldfastError as error:
            self._on_refused(error.message)
            local.close()
            return
        self._open.add(wire)
        try:
            carry(local, wire, f"a connection to port {self._asked.port}", self._notice)
        finally:
            self._open.discard(wire)

    def _notice(self, sentence: str) -> None:
        last, at = self._noticed
        self._noticed = (sentence, time.monotonic())
        if last != sentence or time.monotonic() - at > _SAME_SECONDS:
            self._on_notice(sentence)

    def _link(self) -> WebSocket:
        """Open a session's link for one connection, as soon as the job runs. Raises
        HoldfastError."""
        until = time.monotonic() + NEXT_SECONDS
        while True:
            try:
                return open_forward(self._http, self._place, self._path, self._asked)
            except (Conflict, Unavailable) as error:
                waits = isinstance(error, Unavailable) or error.code in ("not_running", "conflict")
                if not waits or time.monotonic() >= until or self._closed.is_set():
                    raise
            self._closed.wait(_AGAIN_SECONDS)


def open_forward(
    http: BlockingHttp, place: ControllerPlace, path: str, asked: SessionRequest
) -> WebSocket:
    """Open the link of one connection. Raises HoldfastError."""
    wire = open_websocket(http, place, path)
    try:
        wire.ask(msgspec.json.encode(asked))
        (first, *more) = wire.read(_BEGIN_SECONDS) or (b"",)
    except LinkLost as error:
        wire.abort()
        raise Unavailable(f"the link broke before the connection was made: {error}") from error
    if first[:1] == bytes((BEGUN,)):
        wire.put_back(more)
        return wire
    wire.abort()
    if first[:1] != bytes((STATUS,)):
        raise Unavailable("the connection was not made in time")
    status = _decode_status(first[1:])
    kind = Unavailable if status.status == 503 else Conflict
    raise kind(status.detail or status.code, code=status.code)


def carry(local: socket.socket, wire: WebSocket, name: str, notice: Callable[[str], None]) -> None:
    """Carry bytes between a connection here and its link, until both directions have ended. A
    connection that ended otherwise, there or on its way, is reset here.

    name: the connection, as its user is told of it by `notice`.
    """
    local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    over, is_whole = threading.Event(), False
    sender = threading.Thread(target=_send_all, args=(local, wire, over), daemon=True)
    sender.start()
    try:
        is_whole = not _receive_all(local, wire, notice).code
    except LinkLost as error:
        if error.code == DAMAGED:
            notice(f"{name} was ended, because {error}; it is to be made anew")
    except OSError:
        pass
    finally:
        over.set()
        wire.close()
        if not is_whole:
            reset_on_close(local)
        local.close()


def _send_all(local: socket.socket, wire: WebSocket, over: threading.Event) -> None:
    try:
        while not over.is_set():
            if not is_ready(local, select.POLLIN, _STEP_SECONDS):
                continue
            data = local.recv(PIECE_BYTES)
            if not data:
                wire.send(frame(CLOSE, bytes((STDIN,))))
                return
            wire.send(frame(STDIN, data))
    except (LinkLost, OSError, ValueError):
        wire.shut()


def _receive_all(
    local: socket.socket, wire: WebSocket, notice: Callable[[str], None]
) -> SessionStatus:
    while True:
        for message in wire.read():
            channel = message[0] if message else -1
            if channel == STDOUT:
                local.sendall(memoryview(message)[1:])
            elif channel == CLOSE:
                local.shutdown(socket.SHUT_WR)
            elif channel == NOTICE:
                notice(message[1:].decode(errors="replace"))
            elif channel == STATUS:
                return _decode_status(message[1:])
