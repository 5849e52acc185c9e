"""Carry one forwarded connection between its link and the port of its task."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
from collections.abc import Callable

from holdfast.agent.offload import run_aside
from holdfast.agent.probes.tree import find_trees
from holdfast.agent.sessions.dial import Dialled
from holdfast.agent.sessions.listeners import ListeningAt, find_listener
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.http.sockets import reset_on_close
from holdfast.wire.sessions.frames import (
    BEGUN,
    CLOSE,
    LEFT,
    NOTICE,
    PIECE_BYTES,
    STATUS,
    STDIN,
    STDOUT,
    frame,
    frame_json,
)
from holdfast.wire.sessions.messages import SessionBegun, SessionStatus

_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 10.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_HIGH_WATER_BYTES = 1 << 20


class ListenerLooks:
    """Looks for listeners, one look at a time, because a look reads every process of the host.
    Connections that come during a look share the look after it."""

    def __init__(self, guardian_pid: int) -> None:
        self._guardian_pid = guardian_pid
        self._turn = asyncio.Lock()
        self._next: dict[tuple[TaskKey, int], asyncio.Task[ListeningAt | SessionStatus]] = {}

    async def find(self, task: AgentTask, port: int) -> ListeningAt | SessionStatus:
        """Return the place where the task listens on the port, or the problem (FORWARD-1)."""
        asked = (task.key, port)
        look = self._next.get(asked)
        if look is None:
            look = self._next[asked] = asyncio.create_task(self._look(task, port))
        return await asyncio.shield(look)

    async def _look(self, task: AgentTask, port: int) -> ListeningAt | SessionStatus:
        async with self._turn:
            del self._next[task.key, port]
            return await find_target(task, self._guardian_pid, port)


async def find_target(task: AgentTask, guardian_pid: int, port: int) -> ListeningAt | SessionStatus:
    """Find where the task listens on the port; return that place, or the problem."""
    nothing = SessionStatus(
        code="nothing_listens",
        detail=f"nothing of this job listens on {port} (job {task.key.job_id}, rank {task.key.rank})",
        status=409,
    )

    def look() -> ListeningAt | None:
        tree = find_trees({task.key: task.pid}, guardian_pid)[task.key]
        return find_listener(task.pid, [entry.pid for entry in tree], port)

    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await run_aside(look) or nothing
    except TimeoutError:
        slow = f"the processes of the host were not read within {_LOOK_SECONDS:g} s; try again"
        return SessionStatus(code="unavailable", detail=slow, status=503)
    except OSError:  # its first process is gone
        return nothing


def connect_inside(at: ListeningAt) -> socket.socket:
    """Connect to a place in its network namespace. The call blocks, and the thread stays in that
    namespace, so it needs a thread of its own. Raises OSError."""
    if at.namespace:
        fd = os.open(at.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(fd, _NEW_NETWORK) != 0:
                code = ctypes.get_errno() or errno.EPERM
                raise OSError(code, f"its container's network: {os.strerror(code)}")
        finally:
            os.close(fd)
    return socket.create_connection((at.address, at.port), _CONNECT_SECONDS)


class ForwardedConnection(asyncio.Protocol):
    """One connection to a port of a task, and its link. over: called once, when the connection and
    the link are both at their end; moved: called when bytes went one way."""

    def __init__(
        self, wire: Dialled, session_id: str, over: Callable[[], None], moved: Callable[[], None]
    ) -> None:
        self._wire = wire
        self._over = over
        self._moved = moved
        self._transport: asyncio.Transport | None = None
        self._done = False
        self._read_over = self._written_over = False
        wire.hear = self._hear
        wire.over = lambda code: self._end()
        wire.ready = self._go_on
        wire.send(frame_json(BEGUN, SessionBegun(session=session_id)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport; the event loop calls this."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Send the bytes that came from the task to the user; the event loop calls this."""
        self._moved()
        for at in range(0, len(data), PIECE_BYTES):
            self._wire.send(frame(STDOUT, data[at : at + PIECE_BYTES]))
        if self._wire.full and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Tell the user that the task sends no more; the event loop calls this."""
        self._wire.send(frame(CLOSE, bytes((STDOUT,))))
        self._read_over = True
        return not self._written_over  # the other way stays open, where it is not over yet

    def pause_writing(self) -> None:
        """Stop reading the user's bytes, because the task reads slowly; the event loop calls
        this."""
        self._wire.hold(True)

    def resume_writing(self) -> None:
        """Read the user's bytes again; the event loop calls this."""
        self._wire.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection; the event loop calls this."""
        self._transport = None
        if not self._done:
            broke = SessionStatus(code="reset", detail=f"the connection broke: {exc}", status=409)
            self._wire.send(frame_json(STATUS, broke if exc else SessionStatus(exit_code=0)))
            self._wire.close(LEFT)
        self._end()

    def tell_user(self, sentence: str) -> None:
        """Send the user a message beside the connection's bytes."""
        self._wire.send(frame(NOTICE, sentence.encode()))

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _hear(self, data: bytes) -> None:
        if self._transport is None or not data:
            return
        if data[0] == STDIN:
            self._moved()
            self._transport.write(memoryview(data)[1:])
        elif data[0] == CLOSE and self._transport.can_write_eof():
            self._transport.write_eof()
            self._written_over = True
            if self._read_over:  # no event would come any more
                self._transport.close()

    def _end(self) -> None:
        if self._done:
            return
        self._done = True
        if self._transport is not None:  # a lost link is told as a reset, not as an end
            reset_on_close(self._transport.get_extra_info("socket"))
            self._transport.abort()
        self._over()
