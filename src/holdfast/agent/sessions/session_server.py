"""Carry out orders of sessions: begin them in their tasks, and link them to their users.

An order is carried out once, however often it comes. Its link is dialled also where the session
cannot begin, because the user waits there for the reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.journal import about
from holdfast.agent.offload import run_aside
from holdfast.agent.sessions.boxes import enter
from holdfast.agent.sessions.dial import Dialled, dial
from holdfast.agent.sessions.forwards import ForwardedConnection, ListenerLooks, connect_inside
from holdfast.agent.sessions.guardian_line import GuardianSessionLine
from holdfast.agent.sessions.listeners import ListeningAt
from holdfast.agent.sessions.live import LiveSession
from holdfast.agent.sessions.ssh import SSH_SERVER
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.core.ids import TaskKey
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.http.asynchronous import AsyncHttp
from holdfast.process.syscalls import read_boottime
from holdfast.wire.sessions.frames import LEFT, STATUS, frame_json
from holdfast.wire.sessions.guardian import (
    ForgetSession,
    GuardianAnswer,
    SessionOver,
    SessionStarted,
    StartSession,
    StopSession,
    name_terminal,
)
from holdfast.wire.sessions.messages import LINGER_SECONDS, SessionEnd, SessionOrder, SessionStatus

log = logging.getLogger("holdfast.agent.sessions")

SHELL = [
    "/bin/sh",
    "-c",
    'for s in "$SHELL" bash sh; do command -v "$s" >/dev/null && exec "$s"; done',
]
"""The user's shell, or the best that is there."""
_BEGIN_SECONDS = 30.0
_REMEMBERED_SECONDS = 120.0
_TRIES = 5
_LEAVE_SECONDS = 5.0  # what its user left may clean up
_STIR_SECONDS = 0.25  # less often than bytes come, and often enough for any idle timeout
_LOST_BYTES = (
    "the agent of its host was replaced while it carried this command's input and output, of which "
    "some may be lost, so the command was ended; run it again"
)
_REFUSED = SessionStatus(
    code="sessions_off",
    detail="sessions are switched off on this host, in its agent's configuration",
    status=403,
)


def serve_files(pid: int) -> list[str]:
    """Return the command that serves a task's files for a copy. pid: the first process of the
    task's container, whose view of the files is served; 0 without a container."""
    return [sys.executable, "-I", "-m", "holdfast.work.files", "task", str(pid)]


class SessionServer:
    """Holds the sessions of this host.

    http: makes connections to the controller. allowed: False where this host takes no sessions.
    """

    def __init__(
        self,
        table: TaskTable,
        guardian: GuardianSessionLine,
        http: AsyncHttp,
        calls: ControllerCalls,
        *,
        guardian_pid: int,
        allowed: bool = True,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._table = table
        self._guardian = guardian
        self._http = http
        self._calls = calls
        self._looks = ListenerLooks(guardian_pid)
        self._allowed = allowed
        self._linger_seconds = linger_seconds
        self._life = uuid.uuid4().hex[:12]
        self._live: dict[str, LiveSession] = {}
        self._ordered: dict[str, float] = {}  # link → when it was ordered last
        self._opening: set[asyncio.Task[None]] = set()
        self._forwards: dict[TaskKey, set[ForwardedConnection]] = {}
        self._torn: set[str] = set()  # sessions that ended because an earlier agent carried them
        self._stirred: dict[tuple[TaskKey, bool], float] = {}  # when that was noted last

    def open(self) -> None:
        """Listen to the guardian, which tells of the sessions that an earlier agent began."""
        self._guardian.open(self._hear)

    def carry_out(self, orders: Sequence[SessionOrder]) -> bool:
        """Carry out orders about sessions. Return True if any of the orders is new."""
        now = asyncio.get_running_loop().time()
        new = [order for order in orders if order.id not in self._ordered]
        kept = {i: at for i, at in self._ordered.items() if now - at < _REMEMBERED_SECONDS}
        self._ordered = kept | {order.id: now for order in orders}
        for order in new:
            if order.stop:
                self._stop(order)
            else:
                self._run(self._open(order))
        return bool(new)

    def _stop(self, order: SessionOrder) -> None:
        """End a session at once, whether it has a link or not."""
        live = self._live.get(order.session)
        if live is not None:
            live.bar()
        else:
            self._run(self._report(order.session, SessionEnd(reason="its host does not know it")))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    # ---- orders

    async def _open(self, order: SessionOrder) -> None:
        """Begin the session of an order, if it is new, and dial its link at the same time."""
        if order.kind == "forward":
            await self._forward(order)
            return
        live = self._find(order)
        try:
            wire = await dial(self._http, *self._name_link(order))
        except HoldfastError as error:
            log.warning(f"a session has no link: {error}", extra=about(order.key))
            if order.new:
                self._guardian.send(StopSession(id=order.session, grace_seconds=0.0))
            return
        if isinstance(live, SessionStatus):
            if order.new and order.kind != "attach":
                self._run(self._report(order.session, SessionEnd(reason=live.detail)))
            wire.send(frame_json(STATUS, live))
            await _part(wire)
            return
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                await live.begun.wait()
        except TimeoutError:
            live.refuse(
                SessionStatus(
                    code="unavailable",
                    detail="the guardian of this host did not begin the session in time",
                    status=503,
                )
            )
        live.add_link(wire, order.session, seen=order.seen, watch=order.watch)

    async def _forward(self, order: SessionOrder) -> None:
        """Connect a link to a port of a task (FORWARD-1)."""
        task = self._table.get(order.key)
        target: ListeningAt | SessionStatus | None = self._check(order)
        if target is None and task is not None:
            target = await self._looks.find(task, order.port)
        try:
            wire = await dial(self._http, *self._name_link(order))
        except HoldfastError as error:
            log.warning(f"a forward has no link: {error}", extra=about(order.key))
            return
        end = await _connect(target) if isinstance(target, ListeningAt) else target
        if not isinstance(end, socket.socket):
            target = end or _REFUSED
            self._run(self._report(order.session, SessionEnd(reason=target.detail)))
            wire.send(frame_json(STATUS, target))
            await _part(wire)
            return
        end.setblocking(False)
        carrier = ForwardedConnection(
            wire,
            order.session,
            over=lambda: self._end_forward(order, carrier),
            moved=lambda: self._stir(order.key, key_pressed=False),
        )
        self._forwards.setdefault(order.key, set()).add(carrier)
        await asyncio.get_running_loop().create_connection(lambda: carrier, sock=end)

    def _end_forward(self, order: SessionOrder, carrier: ForwardedConnection) -> None:
        self._run(self._report(order.session, SessionEnd(exit_code=0)))
        left = self._forwards.get(order.key, set())
        left.discard(carrier)
        if not left:
            self._forwards.pop(order.key, None)

    def _stir(self, key: TaskKey, *, key_pressed: bool) -> None:
        """Note now and then that a user is active in a task (AWAY-1)."""
        now = read_boottime()
        if now - self._stirred.get((key, key_pressed), -math.inf) < _STIR_SECONDS:
            return
        task = self._table.get(key)
        if task is not None and task.live:
            self._stirred[key, key_pressed] = now
            task.watch.touch(now, key=key_pressed)
            task.dirty = True

    def tell_users(self, key: TaskKey, sentence: str) -> None:
        """Send a message to every user of a session in a task."""
        for live in self._live.values():
            if live.key == key:
                live.tell_users(sentence)
        for carrier in self._forwards.get(key, ()):
            carrier.tell_user(sentence)

    def _name_link(self, order: SessionOrder) -> tuple[str, dict[str, str]]:
        headers = {"Authorization": f"Bearer {self._calls.token}", "Holdfast-Ticket": order.ticket}
        return f"/v1/agent/sessions/{order.id}", headers

    def _find(self, order: SessionOrder) -> LiveSession | SessionStatus:
        """Return the session of an order, begun now where it is new; or the reason why there is
        none."""
        attach = order.kind == "attach"
        known = self._live.get(name_terminal(order.key) if attach else order.session)
        if known is not None:
            return known
        if attach:
            return SessionStatus(
                code="no_terminal",
                detail=f"job {order.key.job_id} was begun without a terminal (`holdfast run -it`); "
                "`holdfast shell` opens one inside",
                status=409,
            )
        if order.session in self._torn:
            words = f"session {order.session} has ended: {_LOST_BYTES}"
            return SessionStatus(code="session_ended", detail=words, status=409)
        if not order.new:
            gone = f"session {order.session} is over; its host knows nothing of it any more"
            return SessionStatus(code="not_found", detail=gone, status=404)
        task, refused = self._table.get(order.key), self._check(order)
        if refused is not None or task is None:
            return refused or _REFUSED
        env = {"HOLDFAST_SESSION": order.session}
        if order.tty:
            env |= {"TERM": order.term or "xterm-256color", "COLUMNS": "", "LINES": ""}
        argv, bare = order.argv or SHELL, False
        if order.kind == "ssh":  # as of a copy, the command is shown to people
            argv = SSH_SERVER
        if order.kind == "copy":  # the command is shown to people, and Holdfast's own runs
            argv, bare = serve_files(task.pid if task.in_container else 0), task.in_container
            env |= {"LD_PRELOAD": "", "LD_LIBRARY_PATH": ""}
        elif task.in_container:
            argv, bare = enter(task.pid, argv), True
        live = self._make(order.session, order.key)
        self._stir(order.key, key_pressed=True)
        self._guardian.send(
            StartSession(
                id=order.session,
                key=order.key,
                argv=argv,
                env=env,
                bare=bare,
                memory_bytes=task.order.memory_bytes if task.order is not None else 0,
                tty=order.tty,
                rows=order.rows or 24,
                cols=order.cols or 80,
            )
        )
        log.info(f"a session begins ({order.kind})", extra=about(order.key, session=order.session))
        return live

    def _check(self, order: SessionOrder) -> SessionStatus | None:
        """Return the reason why no session may begin in a task; None where one may."""
        if not self._allowed:
            return _REFUSED
        task = self._table.get(order.key)
        if task is None or not task.pid or task.state.end_heard:
            gone = f"task {order.key} does not run on this host any more"
            return SessionStatus(code="conflict", detail=gone, status=409)
        return None

    def _make(self, session_id: str, key: TaskKey, log_path: Path | None = None) -> LiveSession:
        """Make a session. log_path: the log of the task, where the session is the terminal of the
        task itself; such a session ends only with the task."""
        live = self._live[session_id] = LiveSession(
            session_id,
            key,
            self._life,
            self._guardian,
            keyed=lambda: self._stir(key, key_pressed=True),
            stop=lambda: (
                None
                if log_path
                else self._guardian.send(StopSession(id=session_id, grace_seconds=_LEAVE_SECONDS))
            ),
            gone=lambda: self._forget(session_id),
            linger_seconds=self._linger_seconds,
            log_path=log_path,
        )
        return live

    # ---- the guardian's answers

    def _hear(self, answer: GuardianAnswer, fds: list[int]) -> None:
        live = self._live.get(answer.id)
        if isinstance(answer, SessionStarted):
            if live is None:
                live = self._take_over(answer, fds)
            if live is not None:
                live.take_ends(fds, tty=answer.tty, input_open=answer.input_open)
        else:
            assert isinstance(answer, SessionOver)
            if answer.id != name_terminal(answer.key) and answer.id not in self._torn:
                why = SessionEnd(
                    exit_code=answer.exit_code, signal=answer.signal, reason=answer.error[:2048]
                )
                self._run(self._report(answer.id, why))
            if live is None:
                self._guardian.send(ForgetSession(id=answer.id))
            elif live.over is None:
                live.take_over(answer)

    def _take_over(self, started: SessionStarted, fds: list[int]) -> LiveSession | None:
        """Go on with the terminal of a session that an earlier agent served. A session without a
        terminal ends, because that agent may have lost some of its bytes; its user is told."""
        if started.id == name_terminal(started.key):
            return self._make(
                started.id, started.key, self._table.folder_of(started.key) / "stdout"
            )
        if started.tty:
            return self._make(started.id, started.key)
        for fd in fds:
            os.close(fd)
        self._torn.add(started.id)
        self._guardian.send(StopSession(id=started.id, grace_seconds=0.0))
        self._run(self._report(started.id, SessionEnd(reason=_LOST_BYTES)))
        return None

    def _forget(self, session_id: str) -> None:
        self._live.pop(session_id, None)
        self._guardian.send(ForgetSession(id=session_id))

    async def _report(self, session_id: str, end: SessionEnd) -> None:
        """Tell the controller that a session is over. Where no report arrives, a sweep of the
        leader ends the session."""
        for number in range(_TRIES):
            try:
                await self._calls.end_session(session_id, end)
                return
            except Unavailable:
                await asyncio.sleep(2.0**number)
            except NotFound:
                return
            except HoldfastError as error:
                log.warning(f"the end of a session is not on record: {error}")
                return


async def _connect(target: ListeningAt) -> socket.socket | SessionStatus:
    """Return a socket that is connected to the port of a task, or the problem where that fails."""
    try:
        return await run_aside(lambda: connect_inside(target))
    except OSError as error:
        why = f"port {target.port} of this job cannot be reached: {error.strerror or error}"
        return SessionStatus(code="refused", detail=why, status=409)


async def _part(wire: Dialled) -> None:
    """Give the other end of a link time to read the messages that were sent, and close the link."""
    gone = asyncio.Event()
    wire.over = lambda code: gone.set()
    try:
        async with asyncio.timeout(5.0):
            await gone.wait()
    except TimeoutError:
        wire.close(LEFT)
