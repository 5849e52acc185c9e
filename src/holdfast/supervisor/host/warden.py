"""The warden: the process that parents a host manager's user processes, so that nothing outlives
the manager.

It is forked by the manager before that opens any socket. One poll loop, no threads, no ZeroMQ: a
process that forks must be single-threaded, and one that guards must not be held up by messages.

WARDEN-1  The manager's end (its side of the line closes, however it died) kills every tree at once,
          processes that called `setsid` included: they have become children of the warden, the
          sub-reaper.
WARDEN-2  A manager that is frozen for `frozen_seconds` is as good as dead: its host was given up
          long before, and its ranks may run elsewhere already. TERM, grace, KILL; then KILL for the
          manager too, because a stopped process never exits, and no scheduler brings another
          machine for one that does not exit.
- `TreeEnded` is said when a process's tree is over (NURSERY-2).
WARDEN-4  If the warden is killed its children die of the parent-death signal, and the manager, a
          sub-reaper too, inherits and kills the rest. A warden that is frozen for as long is killed
          by its manager: it cannot end anything any more.
WARDEN-5  What cannot be read is unknown (TABLE-1): a scan that fails is made again, and no child is
          taken for gone on it.
"""

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import time
from collections import deque
from functools import partial
from pathlib import Path

from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError
from holdfast.process.endings.ending import KILL_POLL_SECONDS
from holdfast.process.loop import FrameLine, Mishaps, Poller, write_note
from holdfast.process.nursery import Nursery, ProgramEvents, ProgramRun
from holdfast.process.spawn import SpawnRequest, signal_group
from holdfast.process.syscalls import become_subreaper, read_boottime
from holdfast.process.table import TASK_VARIABLE, read_children, read_table
from holdfast.process.urgent import urgent
from holdfast.wire.bus import local as bus_local

KILL_LIMIT_SECONDS = 10.0
FROZEN_SECONDS = 15.0
_BUSY_SECONDS = 1.0
_MISHAP_SECONDS = 0.1  # the pause after a failure, which may repeat for ever
_AWAY_SECONDS = 10.0  # a turn delayed for longer means a suspension, not a busy machine
_STARTS_PER_TURN = 8  # a burst of starts must not keep exits waiting


class Warden:
    """The warden's loop and its parts."""

    def __init__(
        self, line: socket.socket, mark: str, frozen_seconds: float, kill_grace_seconds: float
    ) -> None:
        self._line = FrameLine(line)
        self._manager = os.getppid()
        self._frozen_seconds = frozen_seconds
        self._kill_grace_seconds = kill_grace_seconds
        self._mishaps = Mishaps(_note)
        self._poller = Poller(self._mishaps)
        self._nursery = Nursery(
            mark, self._poller, self._mishaps, kill_limit_seconds=KILL_LIMIT_SECONDS
        )
        self._runs: dict[int, ProgramRun] = {}
        self._asked: deque[bus_local.WardenRequest] = deque()
        self._heard_at = self._turned_at = self._judge_at = read_boottime()
        self._closing = False
        self._given_up = False
        self._poller.handle(line.fileno(), self._serve_line)

    def run(self) -> None:
        """Run until the manager is gone and every process that it had started has ended."""
        while not (self._closing and not self._runs):
            self._poller.poll(self._turn())
        self._nursery.close()
        kill_children(KILL_LIMIT_SECONDS)

    def _turn(self) -> float:
        """Do the work that is due; return how long to wait."""
        mishaps, survive = self._mishaps.count, self._mishaps.survive
        reaped = self._nursery.collect()
        now = read_boottime()
        for _ in range(min(_STARTS_PER_TURN, len(self._asked))):
            survive(partial(self._obey, self._asked.popleft()), None)
        survive(lambda: self._check_manager(now), None)
        due = survive(lambda: self._nursery.turn(now), now)
        if self._mishaps.count > mishaps:
            return _MISHAP_SECONDS
        if self._asked or reaped:
            return 0.0
        return max(0.0, min(_BUSY_SECONDS, due - now))

    def _check_manager(self, now: float) -> None:
        """End everything where the manager is frozen (WARDEN-2). Messages that the manager sent
        while the warden had no core are read before it is judged, and after a suspension of the
        machine it has time to speak first."""
        gap, self._turned_at = now - self._turned_at, now
        if gap > _AWAY_SECONDS:
            self._judge_at = now + 2 * _BUSY_SECONDS
        if self._closing or now < self._judge_at or now - self._heard_at <= self._frozen_seconds:
            return
        self._hear()
        if self._closing or now - self._heard_at <= self._frozen_seconds:
            return
        if not self._runs and os.getppid() == self._manager:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._manager, signal.SIGKILL)  # this closes the line (WARDEN-1)
        elif not self._given_up:
            self._given_up = True
            _note(
                "the host manager is frozen; its warden ends its processes, and then the manager",
                processes=len(self._runs),
            )
            self._end_all(self._kill_grace_seconds)

    # ---- the line

    def _serve_line(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT:
            self._hear()

    def _hear(self) -> None:
        try:
            frames = self._line.read_frames()
            requests = [bus_local.decode_warden_request(frame) for frame in frames]
        except (ValidationError, *UNREADABLE) as error:
            _note(f"the host manager's line cannot be read, so it is given up: {error}")
            self._close_down()
            return
        if self._line.ended:
            self._close_down()
            return
        if requests:
            self._heard_at, self._given_up = read_boottime(), False
        for request in requests:
            if isinstance(request, bus_local.ManagerAlive):
                self._tell(bus_local.Turned())
            else:
                self._asked.append(request)

    def _tell(self, answer: bus_local.WardenAnswer) -> None:
        if self._closing:
            return
        self._line.queue_frame(bus_local.encode_local(answer))
        self._flush()

    def _flush(self) -> None:
        self._poller.want_to_write(self._line.fileno(), self._line.flush())

    def _close_down(self) -> None:
        """End every tree, because the manager is gone (WARDEN-1)."""
        if not self._closing:
            self._closing = True
            self._asked.clear()
            self._poller.drop(self._line.fileno())
            self._end_all(0.0)

    def _end_all(self, grace_seconds: float) -> None:
        for run in self._runs.values():
            self._nursery.end(run, grace_seconds)

    # ---- what the manager asks

    def _obey(self, request: bus_local.WardenRequest) -> None:
        if isinstance(request, bus_local.Start):
            self._start(request)
        elif isinstance(request, bus_local.SignalTree):
            reached = sum(
                self._signal(key, request.number, request.whole_group) for key in request.keys
            )
            self._tell(bus_local.SignalDone(request.request, reached))
        elif isinstance(request, bus_local.StopTree):
            for key in request.keys:
                if key in self._runs:
                    self._nursery.end(self._runs[key], request.grace_seconds)

    def _start(self, order: bus_local.Start) -> None:
        """Start a process, or report why it never ran, because each order to start must have an
        answer."""
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in order.env.items()}
        request = SpawnRequest(
            argv=tuple(order.argv), env=env, cwd=order.cwd, stdout=order.output, stderr=order.output
        )
        events = ProgramEvents(
            running=lambda run: self._tell(bus_local.ProcessStarted(order.key, run.pid)),
            ended=partial(self._take_end, order.key),
        )
        try:
            if order.output is not None:
                Path(order.output).parent.mkdir(parents=True, exist_ok=True)
            # Inside a job of Holdfast marks and brand are the agent's, and beats go by them;
            # session and parentage must do.
            self._runs[order.key] = self._nursery.start(
                request, str(order.key), events, marked=TASK_VARIABLE not in env
            )
        except Exception as error:
            self._tell(bus_local.NotStarted(order.key, str(error)))
            if not isinstance(error, ValidationError | OSError):
                raise

    def _signal(self, key: int, number: int, whole_group: bool) -> bool:
        run = self._runs.get(key)
        if run is None or run.exit is not None:
            return False
        # Not reaped yet, so the pid cannot be another process's.
        if whole_group:
            return signal_group(run.pid, number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(run.pid, number)
            return True
        return False

    def _take_end(self, key: int, run: ProgramRun) -> None:
        self._nursery.forget(run)
        self._runs.pop(key, None)
        if run.start_error is not None:
            self._tell(bus_local.NotStarted(key, run.start_error))
            return
        found = run.exit
        self._tell(
            bus_local.TreeEnded(
                key,
                found.exit_code if found else None,
                found.signal if found else None,
                (run.exited_at or read_boottime()) - run.child.started_at,
                found.max_rss_bytes if found else 0,
                run.survivors,
            )
        )


def _note(sentence: str, **fields: object) -> None:
    write_note(2, "warden", sentence, fields)


def kill_children(limit_seconds: float) -> None:
    """Kill and reap every child of this process, and those that become its children by that.

    A process that hid from every other evidence (another session, a cleared environment, dead
    parents) is still a child of the sub-reaper. The kernel itself reports that no child is left,
    which needs no descriptor (WARDEN-5).
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
        return []  # the caller asks again


def fork_warden(
    mark: str, kill_grace_seconds: float, folder: str, frozen_seconds: float = FROZEN_SECONDS
) -> tuple[int, socket.socket]:
    """Fork the warden of this process, which must still be single-threaded; return its pid and the
    socket to it. The warden removes `folder` at its end, because the manager may be killed before
    it can."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return pid, ours
    code = 1
    try:
        ours.close()
        _settle_in()
        with urgent():
            Warden(theirs, mark, frozen_seconds, kill_grace_seconds).run()
        shutil.rmtree(folder, ignore_errors=True)
        code = 0
    finally:
        os._exit(code)


def _settle_in() -> None:
    """Leave the manager's session, so that no Ctrl-C or signal to its group ends the warden."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    become_subreaper()
    gc.freeze()
