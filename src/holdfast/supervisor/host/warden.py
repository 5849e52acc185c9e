"""The warden: the process that parents a host manager's user processes, so that nothing outlives
the manager.

It is forked by the manager before that opens any socket. One poll loop, no threads, no ZeroMQ: what
forks must be single-threaded, and what guards must not be held up by messages.

WARDEN-1  The manager's end (its side of the line closes, however it died) kills every tree at once,
          processes that called `setsid` included: they have become children of the warden, the
          sub-reaper.
WARDEN-2  A manager that is frozen for `frozen_seconds` is as good as dead: its host was given up
          long before, and its ranks may run elsewhere already. TERM, grace, KILL; then KILL for the
          manager too: what is stopped never exits, and no scheduler brings another machine for what
          does not exit.
WARDEN-3  `TreeEnded` is said when the whole tree is gone, or what is left of it survived SIGKILL
          for the kill limit.
WARDEN-4  If the warden is killed its children die of the parent-death signal, and the manager, a
          sub-reaper too, inherits and kills the rest. A warden that is frozen for as long is killed
          by its manager: it cannot end anything any more.
WARDEN-5  What cannot be read is unknown (TABLE-1): a scan that fails is made again, and no child is
          taken for gone on it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import ValidationError
from holdfast.process.ending import KILL_POLL_SECONDS, Signaller, TreeEnding
from holdfast.process.spawn import Child, SpawnRequest, read_start, spawn
from holdfast.process.syscalls import become_subreaper, read_boottime
from holdfast.process.table import TASK_VARIABLE, read_children, read_table
from holdfast.process.tree import Forest, Mark, Tree
from holdfast.process.urgent import urgent
from holdfast.process.watch import Exit, Watcher
from holdfast.wire.bus_local import (
    ManagerAlive,
    NotStarted,
    ProcessStarted,
    SignalDone,
    SignalTree,
    Start,
    StopTree,
    TreeEnded,
    Turned,
    WardenAnswer,
    WardenRequest,
    decode_warden_request,
    encode_local,
)
from holdfast.wire.frames import FrameReader, encode_frame

LEFTOVER_GRACE_SECONDS = 2.0
KILL_LIMIT_SECONDS = 10.0
FROZEN_SECONDS = 15.0
_READ_BYTES = 1 << 20
_SCAN_SECONDS = 2.0
_BLIND_SECONDS = 0.5
_BUSY_SECONDS = 1.0
_AWAY_SECONDS = 10.0  # no turn for so long is no busy machine any more
_STARTS_PER_TURN = 8  # a burst of starts must not keep exits waiting


class _Tended:
    """One user process, from its start to the end of its tree."""

    __slots__ = ("child", "ending", "exit", "exited_at", "key", "request", "start_error", "tree")

    def __init__(self, key: int, child: Child, request: SpawnRequest, tree: Tree) -> None:
        self.key = key
        self.child = child
        self.request: SpawnRequest | None = request  # until the program runs
        self.tree = tree
        self.start_error: str | None = None
        self.exit: Exit | None = None
        self.exited_at = 0.0
        self.ending: TreeEnding | None = None


class Warden:
    """The loop and what it holds."""

    def __init__(
        self, line: socket.socket, mark: str, frozen_seconds: float, kill_grace_seconds: float
    ) -> None:
        self._line = line
        self._manager = os.getppid()
        self._frozen_seconds = frozen_seconds
        self._kill_grace_seconds = kill_grace_seconds
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._watcher = Watcher()
        self._forest = Forest(mark)
        self._signaller = Signaller()
        self._tended: dict[int, _Tended] = {}
        self._by_pid: dict[int, _Tended] = {}
        self._endings: dict[int, _Tended] = {}
        self._asked: list[WardenRequest] = []
        self._handlers: dict[int, Callable[[], None]] = {}
        self._poll = select.epoll()
        self._heard_at = self._turned_at = self._scan_at = self._judge_at = read_boottime()
        self._closing = False
        self._given_up = False
        self._handle(line.fileno(), self._hear)
        self._handle(self._watcher.fileno(), self._collect)

    def run(self) -> None:
        """Turn until the manager is gone and with it everything it had started."""
        while not (self._closing and not self._tended):
            wait = self._turn()
            for fd, events in self._poll.poll(wait):
                if fd == self._line.fileno() and events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT and fd in self._handlers:
                    self._handlers[fd]()
        self._watcher.close()
        kill_children(KILL_LIMIT_SECONDS)

    def _turn(self) -> float:
        self._collect()  # WATCH-2: orphans have no pidfd to wake for
        now = read_boottime()
        batch, self._asked = self._asked[:_STARTS_PER_TURN], self._asked[_STARTS_PER_TURN:]
        for request in batch:
            self._obey(request)
        for tended in list(self._endings.values()):
            if tended.ending is not None and tended.ending.next_at <= now:
                self._step(tended, now)
        self._check_manager(now)
        if self._tended and now >= self._scan_at:
            # A runaway that cleared its environment is only known if it was seen while its parents
            # lived.
            try:
                self._forest.find_members()
                self._scan_at = now + _SCAN_SECONDS
            except OSError:  # WARDEN-5
                self._scan_at = now + _BLIND_SECONDS
        if self._asked:
            return 0.0
        due = [
            tended.ending.next_at - now
            for tended in self._endings.values()
            if tended.ending is not None
        ]
        return max(0.0, min([_BUSY_SECONDS, *due]))

    def _check_manager(self, now: float) -> None:
        """WARDEN-2. What the manager said while the warden had no core is read before it is judged;
        and where both were away (a suspended machine), it has time to speak first.
        """
        gap, self._turned_at = now - self._turned_at, now
        if gap > _AWAY_SECONDS:
            self._judge_at = now + 2 * _BUSY_SECONDS
        if self._closing or now < self._judge_at or now - self._heard_at <= self._frozen_seconds:
            return
        self._hear()
        if self._closing or now - self._heard_at <= self._frozen_seconds:
            return
        if not self._tended and os.getppid() == self._manager:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._manager, signal.SIGKILL)  # our line closes with it (WARDEN-1)
        elif not self._given_up:
            self._given_up = True
            sentence = (
                "the host manager is frozen; its warden ends its processes, and then the manager"
            )
            line = {
                "at": time.time(),
                "from": "warden",
                "message": sentence,
                "processes": len(self._tended),
            }
            write_line(2, json.dumps(line).encode() + b"\n")
            for tended in list(self._tended.values()):
                self._end(tended, self._kill_grace_seconds)

    # ---- the line

    def _hear(self) -> None:
        try:
            data = self._line.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_down()
            return
        self._heard_at, self._given_up = read_boottime(), False
        for frame in self._reader.feed(data):
            request = decode_warden_request(frame)
            if isinstance(request, ManagerAlive):
                self._tell(Turned())
            else:
                self._asked.append(request)

    def _tell(self, answer: WardenAnswer) -> None:
        if self._closing:
            return
        self._unsent += encode_frame(encode_local(answer))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._line.send(self._unsent[: 1 << 16])
                del self._unsent[:sent]
        except BlockingIOError:
            self._poll.modify(self._line.fileno(), select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError:
            return  # the end of the line is read, and acted upon, by `_hear`
        self._poll.modify(self._line.fileno(), select.EPOLLIN)

    def _close_down(self) -> None:
        """WARDEN-1."""
        if not self._closing:
            self._closing = True
            self._asked.clear()
            self._drop(self._line.fileno())
            for tended in list(self._tended.values()):
                self._end(tended, 0.0)

    # ---- what the manager asks

    def _obey(self, request: WardenRequest) -> None:
        if isinstance(request, Start):
            self._start(request)
        elif isinstance(request, SignalTree):
            reached = sum(
                self._signal(key, request.number, request.whole_group) for key in request.keys
            )
            self._tell(SignalDone(request.request, reached))
        elif isinstance(request, StopTree):
            for key in request.keys:
                tended = self._tended.get(key)
                if tended is not None:
                    self._end(tended, request.grace_seconds)

    def _start(self, order: Start) -> None:
        mark = Mark(str(order.key), self._forest.host)
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in order.env.items()}
        # Inside a job of Holdfast marks and brand are the agent's, and beats go by them; session
        # and parentage must do.
        brand = None
        if TASK_VARIABLE not in env:
            brand = self._forest.make_brand()
            env |= mark.as_env()
        request = SpawnRequest(
            argv=tuple(order.argv),
            env=env,
            cwd=order.cwd,
            stdout=order.output,
            stderr=order.output,
            brand=brand,
        )
        try:
            if order.output is not None:
                Path(order.output).parent.mkdir(parents=True, exist_ok=True)
            child = spawn(request)
        except (ValidationError, OSError) as error:
            self._tell(NotStarted(order.key, str(error)))
            return
        tended = _Tended(order.key, child, request, Tree(mark, child, None, brand=brand))
        self._tended[order.key] = self._by_pid[child.pid] = tended
        self._forest.add(tended.tree)
        self._watcher.watch_child(child.pid, child.pidfd)
        self._handle(child.error_fd, lambda: self._read_start(tended))

    def _read_start(self, tended: _Tended) -> None:
        if tended.request is None:
            return
        error_fd = tended.child.error_fd
        sentence = read_start(tended.child, tended.request)
        if sentence is None:
            return
        self._drop(error_fd)
        tended.request = None
        if sentence:
            tended.start_error = sentence  # said when the child is reaped, which is now
        else:
            self._tell(ProcessStarted(tended.key, tended.child.pid))

    def _signal(self, key: int, number: int, whole_group: bool) -> int:
        tended = self._tended.get(key)
        if tended is None or tended.exit is not None:
            return 0
        # Not reaped yet, so the number cannot be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if whole_group:
                os.killpg(tended.child.pid, number)
            else:
                os.kill(tended.child.pid, number)
            return 1
        return 0

    # ---- the ends

    def _end(self, tended: _Tended, grace_seconds: float) -> None:
        now = read_boottime()
        if tended.ending is None:
            self._begin_ending(tended, grace_seconds)
        else:
            tended.ending.hasten(now + grace_seconds)
        self._step(tended, now)

    def _begin_ending(self, tended: _Tended, grace_seconds: float) -> None:
        tended.ending = TreeEnding(
            tended.tree,
            self._forest,
            now=read_boottime(),
            grace_seconds=grace_seconds,
            kill_limit_seconds=KILL_LIMIT_SECONDS,
            signaller=self._signaller,
        )
        tended.ending.first_exited = tended.exit is not None
        self._endings[tended.key] = tended

    def _collect(self) -> None:
        for found in self._watcher.collect():
            self._forest.note_exit(found.pid)
            tended = self._by_pid.pop(found.pid, None)
            if tended is not None:
                self._take_exit(tended, found)

    def _take_exit(self, tended: _Tended, found: Exit) -> None:
        tended.exit = found
        tended.exited_at = read_boottime()
        self._read_start(tended)
        if tended.key not in self._tended:
            return  # given up as unkillable; it died after all
        if tended.start_error is not None:
            self._forget(tended)
            self._tell(NotStarted(tended.key, tended.start_error))
        elif tended.ending is not None:
            tended.ending.first_exited = True
            self._step(tended, tended.exited_at)
        elif self._forest.is_surely_empty(tended.tree):
            self._finish(tended)
        else:
            self._begin_ending(tended, LEFTOVER_GRACE_SECONDS)
            self._step(tended, tended.exited_at)

    def _step(self, tended: _Tended, now: float) -> None:
        if tended.ending is None or not tended.ending.step(now):
            return
        if tended.exit is None and not tended.ending.survivors:
            tended.ending.next_at = now + 0.05  # it is dead, but its status is still to be read
            return
        self._finish(tended)

    def _finish(self, tended: _Tended) -> None:
        found = tended.exit
        self._forget(tended)
        self._tell(
            TreeEnded(
                tended.key,
                found.exit_code if found else None,
                found.signal if found else None,
                (tended.exited_at or read_boottime()) - tended.child.started_at,
                found.max_rss_bytes if found else 0,
                tended.ending.survivors if tended.ending is not None else [],
            )
        )

    def _forget(self, tended: _Tended) -> None:
        self._tended.pop(tended.key, None)
        self._endings.pop(tended.key, None)
        self._forest.remove(tended.tree)

    # ---- the poll

    def _handle(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def _drop(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # closed already
                self._poll.unregister(fd)


def kill_children(limit_seconds: float) -> None:
    """Kill and reap every child of this process, and those that become ours by it, until there is
    none.

    What hid from every other evidence (another session, a cleared environment, its parents dead) is
    a child of the sub-reaper all the same. That there is none left is the kernel's own word, which
    needs no descriptor (WARDEN-5).
    """
    give_up_at = read_boottime() + limit_seconds
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if read_boottime() >= give_up_at:
            return
        for child in _list_children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(KILL_POLL_SECONDS)


def _list_children() -> list[int]:
    children = read_children(os.getpid())
    if children is not None:
        return children
    try:
        return [entry.pid for entry in read_table().values() if entry.ppid == os.getpid()]
    except OSError:
        return []  # it is asked again


def write_line(fd: int, line: bytes) -> bool:
    """Write a line to a log, unless that would have to wait (a paused terminal, a pipe that nobody
    reads), or fails."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        return bool(poll.poll(0)) and os.write(fd, line) == len(line)
    except OSError:  # a full disk must not end the processes
        return False


def fork_warden(
    mark: str, kill_grace_seconds: float, folder: str, frozen_seconds: float = FROZEN_SECONDS
) -> tuple[int, socket.socket]:
    """Fork the warden of this process, which must still be single-threaded. Returns its pid and the
    line to it.

    The warden removes `folder` when all is over: the manager may be killed before it can.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid != 0:
        theirs.close()
        ours.setblocking(False)
        return pid, ours
    code = 1
    try:
        ours.close()
        _settle_in()
        theirs.setblocking(False)
        with urgent():
            Warden(theirs, mark, frozen_seconds, kill_grace_seconds).run()
        shutil.rmtree(folder, ignore_errors=True)
        code = 0
    finally:
        os._exit(code)


def _settle_in() -> None:
    """A session of its own: neither the terminal's Ctrl-C nor a signal to the manager's group may
    end it first."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    become_subreaper()
    gc.freeze()
