"""Start the processes of sessions beside their tasks, keep their ends, and pass these to the agent.

INSIDE-1  A session's process is no process of its task: it has a mark, a brand and a control group
          of its own, beside those of the task, no beat socket, and a higher score to be killed when
          memory runs out. So no reading of the task counts it, and its end is not the task's.
INSIDE-2  A session ends with its task: it is stopped when the task is, and killed when the task's
          processes are gone, and only then is the task's end reported, because a session's process
          may use the task's devices. Its keeper has the task's deadline.
INSIDE-3  The guardian keeps the ends of every session (the master of its terminal, or its pipes)
          and reads none of them. It passes them to each agent anew, so a killed agent ends no
          session.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.agent.guardian.limits import make_limited_group
from holdfast.bounds import UNREADABLE
from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.process.groups import GroupHome, TaskGroup
from holdfast.process.keeper import Keepers, Slot
from holdfast.process.loop import Mishaps, Poller
from holdfast.process.nursery import Nursery, ProgramEvents, ProgramRun
from holdfast.process.spawn import SpawnRequest
from holdfast.wire.sessions.guardian import (
    MAX_PACKET_BYTES,
    CloseInput,
    ForgetSession,
    GuardianAnswer,
    GuardianRequest,
    SessionOver,
    SessionStarted,
    SignalSession,
    StartSession,
    StopSession,
    decode_guardian_request,
    encode,
    name_terminal,
)

MAX_SESSIONS = 512
_SOONER_KILLED = 500  # what is added to the task's score
_GRACE_SECONDS = 1.0
_NOT_GIVEN = ("HOLDFAST_BEAT_SOCKET", "HOLDFAST_SOCKET")
_MAX_OVER = 1024


class TaskPlace(msgspec.Struct, frozen=True):
    """The surroundings of a running task, which its sessions share."""

    env: dict[str, str]
    cwd: str
    deadline: float
    memory_bytes: int


class _Session:
    """One session. fds: the guardian's ends: the master, or input, output and errors."""

    __slots__ = ("fds", "group", "id", "input_open", "keeper", "key", "over", "pid", "run", "tty")

    def __init__(self, asked: StartSession) -> None:
        self.id, self.key, self.tty = asked.id, asked.key, asked.tty
        self.fds: list[int] = []
        self.input_open = True
        self.pid = 0
        self.run: ProgramRun | None = None
        self.keeper: Slot | None = None
        self.group: TaskGroup | None = None
        self.over: SessionOver | None = None

    @property
    def has_begun(self) -> bool:
        return self.pid != 0 or (self.run is not None and self.run.runs)

    @property
    def lives(self) -> bool:
        return self.run is not None and not self.run.over

    def close_ends(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class GuardianSessions:
    """Holds all sessions of the host.

    find_place: returns the surroundings of a running task, or a sentence on why there are none.
    oom_score_adj: the score of tasks; None where they keep what they inherit.
    """

    def __init__(
        self,
        *,
        nursery: Nursery,
        poller: Poller,
        mishaps: Mishaps,
        keepers: Keepers,
        group_home: GroupHome | None,
        oom_score_adj: int | None,
        descriptor_limit: tuple[int, int] | None,
        find_place: Callable[[TaskKey], TaskPlace | str],
        note: Callable[..., None],
    ) -> None:
        self._nursery = nursery
        self._poller = poller
        self._mishaps = mishaps
        self._keepers = keepers
        self._group_home = group_home
        self._oom_score_adj = min(1000, max(0, oom_score_adj or 0) + _SOONER_KILLED)
        self._descriptor_limit = descriptor_limit
        self._find_place = find_place
        self._note = note
        self._sessions: dict[str, _Session] = {}
        self._full_groups: list[TaskGroup] = []
        self._waiting: dict[TaskKey, Callable[[], None]] = {}
        self._line: socket.socket | None = None
        self._unsent: deque[GuardianAnswer] = deque()

    # ---- the line

    def open_line(self) -> socket.socket:
        """Make a line for a new agent and tell it of every session; return the agent's end. Raises
        OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setblocking(False)
        self.close_line()
        try:
            self._poller.handle(ours.fileno(), self._hear)
        except OSError:
            ours.close()
            theirs.close()
            raise
        self._line = ours
        for session in self._sessions.values():
            if session.has_begun and session.fds:
                self._tell(_describe(session))
            if session.over is not None:
                self._tell(session.over)
        return theirs

    def close_line(self) -> None:
        """Give up the line to an agent that is gone."""
        self._unsent.clear()
        if self._line is not None:
            self._poller.drop(self._line.fileno())
            self._line.close()
            self._line = None

    def _hear(self, events: int) -> None:
        if self._line is None:
            return
        if events & select.EPOLLOUT:
            self._flush()
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = self._line.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close_line()
            return
        try:
            self._obey(decode_guardian_request(data))
        except UNREADABLE as error:
            self._note(f"a message of the agent about sessions is refused: {error}")

    def _tell(self, answer: GuardianAnswer) -> None:
        self._unsent.append(answer)
        self._flush()

    def _flush(self) -> None:
        """Send what the socket accepts now; the rest is sent when it accepts more."""
        if self._line is None:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                answer = self._unsent[0]
                session = self._sessions.get(answer.id)
                started = isinstance(answer, SessionStarted)
                fds = session.fds if session is not None and started else []
                if not started or fds:
                    socket.send_fds(self._line, [encode(answer)], fds)
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                self._unsent.clear()  # the agent closed its end; its exit follows
        self._poller.want_to_write(self._line.fileno(), bool(self._unsent))

    # ---- what the agent asks

    def _obey(self, asked: GuardianRequest) -> None:
        if isinstance(asked, StartSession):
            self._begin(asked)
            return
        session = self._sessions.get(asked.id)
        if session is None:
            return
        if isinstance(asked, SignalSession):
            self._signal(session, asked.signal)
        elif isinstance(asked, CloseInput):
            if not session.tty and session.input_open and session.fds:
                session.input_open = False
                os.close(session.fds.pop(0))
        elif isinstance(asked, StopSession):
            self._stop(session, asked.grace_seconds)
        elif isinstance(asked, ForgetSession) and session.over is not None:
            session.close_ends()
            if not session.lives:
                del self._sessions[session.id]

    def _begin(self, asked: StartSession) -> None:
        known = self._sessions.get(asked.id)
        if known is not None:
            self._tell(known.over or _describe(known))
            return
        place = self._find_place(asked.key)
        if isinstance(place, str):
            self._tell(SessionOver(id=asked.id, key=asked.key, error=place))
            return
        if len(self._sessions) >= MAX_SESSIONS:
            full = f"this host holds {MAX_SESSIONS} sessions already; end some of them"
            self._tell(SessionOver(id=asked.id, key=asked.key, error=full))
            return
        session = self._sessions[asked.id] = _Session(asked)
        theirs: list[int] = []
        try:
            theirs = _open_ends(session, asked)
            self._start(session, asked, place, theirs)
        except (OSError, ValidationError) as error:
            self._fail(session, f"no process can be made: {error}")
        finally:
            for fd in set(theirs):
                os.close(fd)

    def _start(
        self, session: _Session, asked: StartSession, place: TaskPlace, theirs: list[int]
    ) -> None:
        self._full_groups = [group for group in self._full_groups if not group.remove()]
        limit = place.memory_bytes or asked.memory_bytes
        session.group = make_limited_group(self._group_home, limit, self._mishaps)
        session.keeper = self._keepers.take_slot(place.deadline)
        given = {} if asked.bare else place.env
        env = {k: v for k, v in given.items() if k not in _NOT_GIVEN} | asked.env
        request = SpawnRequest(
            argv=tuple(asked.argv),
            env={name: value for name, value in env.items() if value or name not in asked.env},
            cwd=place.cwd,
            stdin_pipe=theirs[0],
            stdout_pipe=theirs[1],
            stderr_pipe=theirs[2],
            terminal=session.tty,
            group_procs=session.group.procs_path if session.group else None,
            oom_score_adj=self._oom_score_adj,
            descriptor_limit=self._descriptor_limit,
            keeper=session.keeper,
        )
        events = ProgramEvents(
            running=lambda _: self._tell(_describe(session)),
            exited=partial(self._take_exit, session),
            ended=partial(self._take_end, session),
        )
        name = f"session {session.id}"
        session.run = self._nursery.start(
            request, name, events, group=session.group, leftover_grace_seconds=_GRACE_SECONDS
        )

    # ---- the terminal of a task itself

    def open_terminal(self, key: TaskKey) -> int:
        """Open a terminal for a task that is being started; return the task's end of it, which is
        the caller's to close. Raises OSError."""
        asked = StartSession(id=name_terminal(key), key=key, argv=[], tty=True)
        session = self._sessions[asked.id] = _Session(asked)
        return _open_ends(session, asked)[0]

    def tell_terminal(self, key: TaskKey, run: ProgramRun) -> None:
        """Pass a task's terminal on, now that its program runs."""
        session = self._sessions.get(name_terminal(key))
        if session is not None and session.fds:
            session.pid = run.child.program_pid
            self._tell(_describe(session))

    def close_terminal(
        self, key: TaskKey, exit_code: int | None, number: int | None, error: str = ""
    ) -> None:
        """Note the end of a task with a terminal."""
        session = self._sessions.get(name_terminal(key))
        if session is not None and session.over is None:
            session.over = SessionOver(
                id=session.id, key=key, exit_code=exit_code, signal=number, error=error
            )
            self._tell(session.over)

    # ---- its end

    def stop_those_of(self, key: TaskKey, grace_seconds: float) -> None:
        """Stop the sessions of a task that is being stopped."""
        for session in list(self._sessions.values()):
            if session.key == key:
                self._stop(session, min(grace_seconds, _GRACE_SECONDS))

    def wait_for_those_of(self, key: TaskKey, then: Callable[[], None]) -> bool:
        """Kill the sessions of a task whose processes are gone. Return True where some live; `then`
        is called once they do not (INSIDE-2)."""
        living = [s for s in self._sessions.values() if s.key == key and s.lives]
        for session in living:
            self._stop(session, 0.0)
        if living:
            self._waiting[key] = then
        return bool(living)

    def extend(self, key: TaskKey, deadline: float) -> None:
        """Move the deadlines of a task's sessions with the task's."""
        for session in self._sessions.values():
            if session.key == key and session.keeper is not None:
                session.keeper.set_deadline(deadline)

    def _stop(self, session: _Session, grace_seconds: float) -> None:
        if session.run is not None and session.lives:
            self._signal(session, signal.SIGHUP)  # interactive shells ignore TERM
            self._nursery.end(session.run, grace_seconds)

    def _signal(self, session: _Session, number: int) -> None:
        run = session.run
        if run is not None and run.runs and run.exit is None:
            with contextlib.suppress(OSError, ValueError):
                os.killpg(run.child.program_pid, number)

    def _take_exit(self, session: _Session, run: ProgramRun) -> None:
        found, error = run.exit, run.start_error or ""
        code = found.exit_code if found else None
        session.over = SessionOver(
            id=session.id,
            key=session.key,
            exit_code=run.child.start_code if error else code,
            signal=found.signal if found and not error else None,
            error=error,
        )
        self._tell(session.over)

    def _take_end(self, session: _Session, run: ProgramRun) -> None:
        """Release the descriptors and the control group of a session whose processes are gone."""
        if session.over is None:
            self._take_exit(session, run)
        if session.keeper is not None and run.exit is not None:
            run.child.drop_keeper()
            self._keepers.give_back(session.keeper)
            session.keeper = None
        if session.group is not None and not session.group.remove():
            self._full_groups.append(session.group)
        session.group = None
        self._nursery.forget(run)
        if not session.fds:
            self._sessions.pop(session.id, None)
        self._drop_oldest()
        if not any(s.key == session.key and s.lives for s in self._sessions.values()):
            then = self._waiting.pop(session.key, None)
            if then is not None:
                then()

    def _fail(self, session: _Session, sentence: str) -> None:
        self._sessions.pop(session.id, None)
        session.close_ends()
        if session.keeper is not None and session.run is None:
            self._keepers.give_back(session.keeper)
        if session.group is not None and not session.group.remove():
            self._full_groups.append(session.group)
        self._tell(SessionOver(id=session.id, key=session.key, error=sentence))

    def _drop_oldest(self) -> None:
        """Forget ends that no agent asks for, because each keeps descriptors."""
        over = [s for s in self._sessions.values() if s.over is not None and not s.lives]
        for session in over[: max(0, len(over) - _MAX_OVER)]:
            session.close_ends()
            del self._sessions[session.id]


def _open_ends(session: _Session, asked: StartSession) -> list[int]:
    """Open the ends of a session; return the three descriptors of its process."""
    if asked.tty:
        master, slave = os.openpty()
        session.fds = [master]
        size = struct.pack("HHHH", asked.rows or 24, asked.cols or 80, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        return [slave, slave, slave]
    theirs: list[int] = []
    for number in range(3):
        reading, writing = os.pipe2(os.O_CLOEXEC)
        ours, other = (writing, reading) if number == 0 else (reading, writing)
        session.fds.append(ours)
        theirs.append(other)
    return theirs


def _describe(session: _Session) -> SessionStarted:
    pid = session.run.child.program_pid if session.run is not None else session.pid
    return SessionStarted(
        id=session.id, key=session.key, pid=pid, tty=session.tty, input_open=session.input_open
    )
