"""The host manager: one per machine of a supervised run. It dials the supervisor, and nothing
outlives it.

The process that is started here talks (ZeroMQ, the Unix socket of the processes); its child, the
warden, forks, watches and kills. Each is a sub-reaper and ends everything if the other dies.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
import time
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable, ValidationError
from holdfast.process.endings.ending import KILL_POLL_SECONDS
from holdfast.process.loop import FrameLine, catch_signals, write_note
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import become_subreaper
from holdfast.supervisor.host.config import ManagerConfig
from holdfast.supervisor.host.idle_word import IdleWord
from holdfast.supervisor.host.leftovers import end_leftovers, hold_folder
from holdfast.supervisor.host.local_line import LocalLine, make_line_folder
from holdfast.supervisor.host.ports import answer_port
from holdfast.supervisor.host.processes import RankProcesses
from holdfast.supervisor.host.simulated import SimulatedProcesses
from holdfast.supervisor.host.warden import (
    FROZEN_SECONDS,
    KILL_LIMIT_SECONDS,
    fork_warden,
    kill_children,
)
from holdfast.supervisor.line.keys import ManagerKey, parse_manager_key
from holdfast.supervisor.line.machine import needs_ipv6, read_facts, read_usage, read_waited_seconds
from holdfast.supervisor.line.priority import prefer_this_thread
from holdfast.supervisor.line.session_host import HostSession
from holdfast.wire.bus import messages as bus
from holdfast.wire.bus.local import ManagerAlive, WardenRequest, decode_warden_answer, encode_local

if TYPE_CHECKING:
    import zmq

EXIT_WARDEN_DIED = 74
_ALIVE_SECONDS = 1.0
_AWAY_SECONDS = 5.0
_KEY_SECONDS = 1.0
_WARDEN_SECONDS = 2 * KILL_LIMIT_SECONDS + 5.0  # its own limit comes twice in a row
_GOODBYE_SECONDS = 2.0
# A KILL follows a TERM soon, and at a drain the supervisor may be gone already.
_SIGNALLED_GOODBYE_SECONDS = 0.5
_FRAMES_PER_TURN = 512
_OUTBOX_BYTES = 64 << 20  # beyond this, processes wait until the supervisor has read more
_TCP_TIMEOUT_MS = 10_000
_DEFAULT_GRACE_SECONDS = 5.0
_LONGEST_SEARCH_NOTE_SECONDS = 600.0


def dial(
    context: zmq.Context[zmq.Socket[bytes]], url: str, key: ManagerKey | None
) -> zmq.Socket[bytes]:
    """Make a ZeroMQ socket (DEALER) with an identity of its own, which keeps trying to reach the
    supervisor.

    Raises Unavailable for an address that can never be dialled.
    """
    import zmq

    dealer = context.socket(zmq.DEALER)
    dealer.routing_id = os.urandom(16)
    dealer.linger = 0
    # Nothing is queued while there is no supervisor: old heartbeats are of no use to the next one.
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    dealer.setsockopt(zmq.RECONNECT_IVL, 100)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    dealer.setsockopt(zmq.TCP_MAXRT, _TCP_TIMEOUT_MS)
    dealer.setsockopt(zmq.IPV6, int(needs_ipv6(url)))
    if key is not None and key.client_secret:
        dealer.curve_serverkey = key.server_public.encode()
        dealer.curve_publickey = key.client_public.encode()
        dealer.curve_secretkey = key.client_secret.encode()
    try:
        dealer.connect(url)
    except zmq.ZMQError as error:
        dealer.close()
        sentence = (
            f"{url!r} cannot be dialled ({error.strerror}); it should read tcp://ADDRESS:PORT"
        )
        raise Unavailable(sentence) from error
    return dealer


def run_host_manager(config: ManagerConfig) -> int:
    """Serve until an order to end; return the exit code.

    The calling process becomes the manager. It must be single-threaded and have no children.
    """
    become_subreaper()
    mark = f"supervised-{os.urandom(16).hex()}"
    facts = read_facts(config.url, config.name, config.labels, config.gpus, config.address)
    dead = end_leftovers(KILL_LIMIT_SECONDS)
    folder = make_line_folder()
    with contextlib.suppress(OSError):  # without the lock, no later manager ends leftovers
        hold_folder(folder, mark)
    warden_pid, line = fork_warden(mark, _DEFAULT_GRACE_SECONDS, folder)
    prefer_this_thread()  # after the fork, because user processes keep the ordinary priority
    try:
        manager = _HostManager(config, facts, mark, line, folder, warden_pid)
        if dead:
            manager.note("ended the processes that dead managers had left", managers=dead)
        try:
            return manager.run()
        finally:
            manager.close()
    finally:
        line.close()
        _bury_warden(warden_pid)
        shutil.rmtree(folder, ignore_errors=True)


def _bury_warden(pid: int) -> None:
    """Wait for the warden, which ends everything now; where it takes too long, kill it and all its
    processes (WARDEN-4)."""
    give_up_at = time.monotonic() + _WARDEN_SECONDS
    with contextlib.suppress(ChildProcessError):
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() >= give_up_at:
                os.kill(pid, signal.SIGKILL)
                kill_children(KILL_LIMIT_SECONDS)
                return
            time.sleep(KILL_POLL_SECONDS)


class _HostManager:
    """The manager's loop and its parts."""

    def __init__(
        self,
        config: ManagerConfig,
        facts: bus.MachineFacts,
        mark: str,
        warden: socket.socket,
        folder: str,
        warden_pid: int,
    ) -> None:
        import zmq

        self._zmq = zmq
        self._config = config
        self._mark = mark
        self._warden = FrameLine(warden)
        self._warden_pid = warden_pid
        self._mourned = False
        self._unwritten = 0
        self._log = 2
        if config.log_file:
            self._log = os.open(config.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._wake_fd = catch_signals()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._key = config.key
        self._dealer = dial(self._context, config.url, config.key)
        self._line = LocalLine(
            folder, lambda box, part: self._ranks.take_part(box, part), self.note
        )
        self._ranks = RankProcesses(self._line, self._ask_warden, self._say, self.note)
        self._ranks.hostname = facts.hostname
        self._idle_word = IdleWord(os.environ)
        self._simulated = SimulatedProcesses()
        now = time.monotonic()
        self._session = HostSession(
            facts,
            os.getpid(),
            now=now,
            patience_seconds=config.patience_seconds,
            run=config.key.run if config.key is not None else "",
            report=lambda: [*self._ranks.report(), *self._simulated.report()],
            read_waited=read_waited_seconds,
        )
        self._alive_at = self._usage_at = self._turned_at = now
        self._key_at = now + _KEY_SECONDS
        self._warden_heard_at = self._warden_judge_at = now
        self._end_at: float | None = None  # when to leave whatever still runs
        self._kill_at: float | None = None  # when to kill processes that a TERM of others reached
        self._bye_at: float | None = None
        self._began_at, self._search_note_at = now, now + config.search_note_seconds
        self.note("the host manager begins", url=config.url, host=facts.hostname, gpus=facts.gpus)

    def note(self, sentence: str, **fields: object) -> None:
        """Write one JSON line to the pid and resource log."""
        fields["lines_lost_before"] = self._unwritten or None
        written = write_note(self._log, "host-manager", sentence, fields)
        self._unwritten = 0 if written else self._unwritten + 1

    # ---- the loop

    def run(self) -> int:
        """Run the loop until the manager's processes have ended and the session is over; return the
        exit code."""
        zmq = self._zmq
        poller = zmq.Poller()
        for entry in (self._dealer, self._warden.fileno(), self._line.fileno(), self._wake_fd):
            poller.register(entry, zmq.POLLIN)
        while True:
            now = time.monotonic()
            self._tick(now)
            if self._is_over(now):
                break
            self._send(now)
            wait = max(0.0, self._next_at() - time.monotonic())
            reading = not self._is_full()
            poller.modify(self._line.fileno(), zmq.POLLIN if reading else 0)
            if not self._mourned:
                writing = zmq.POLLOUT if self._warden.unsent else 0
                poller.modify(self._warden.fileno(), zmq.POLLIN | writing)
            ready = dict(poller.poll(int(wait * 1000) + 1))
            if self._wake_fd in ready:
                self._read_signals()
            self._read_dealer()
            if self._warden.fileno() in ready:
                self._serve_warden()
            if reading and self._line.fileno() in ready:
                self._line.serve()
            if self._warden.ended and not self._mourned:
                self._mourned = True
                poller.unregister(self._warden.fileno())
                self._mourn_warden()
            if self._session.rules is None and time.monotonic() >= self._key_at:
                self._look_for_key(poller)
        order = self._session.ending
        assert order is not None
        self.note("the host manager ends", reason=order.reason, code=order.code)
        return order.code

    def _tick(self, now: float) -> None:
        session = self._session
        for up in self._simulated.tick(now):
            self._say(up)
        session.tick(now)
        self._idle_word.look(busy=bool(self._ranks.living))
        self._check_warden(now)
        if now >= self._search_note_at:
            self._tell_of_search(now)
        if self._config.usage_seconds and now >= self._usage_at and session.link is not None:
            self._usage_at = now + self._config.usage_seconds
            self._sample()
        if session.ending is not None and self._end_at is None:
            self._begin_end(session.ending, now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._ranks.stop_all(0.0)

    def _check_warden(self, now: float) -> None:
        """Kill a warden that is frozen (WARDEN-4). A manager that was away itself lets the warden
        speak first."""
        if self._warden.ended:
            return
        gap, self._turned_at = now - self._turned_at, now
        if gap > _AWAY_SECONDS:
            self._warden_judge_at = now + 2 * _ALIVE_SECONDS
        if now >= self._alive_at:
            self._alive_at = now + _ALIVE_SECONDS
            self._ask_warden(ManagerAlive())
        if now >= self._warden_judge_at and now - self._warden_heard_at > FROZEN_SECONDS:
            self.note("the warden is frozen; it is killed")
            os.kill(self._warden_pid, signal.SIGKILL)  # its end is heard on the line
            self._warden_judge_at = float("inf")

    def _look_for_key(self, poller: zmq.Poller) -> None:
        """Connect to the supervisor anew with the key that the key file holds now, because the last
        key may belong to another run."""
        self._key_at = time.monotonic() + _KEY_SECONDS
        path, key = self._config.key_file, self._key
        if path is None:
            return
        try:
            with open(path, "rb") as file:
                fresh = parse_manager_key(file.read())
        except (OSError, ValidationError):
            return  # being written, or gone
        if fresh == key:
            return
        self.note("the key file holds another run's key now; dialling with that")
        dealer = dial(self._context, self._config.url, fresh)
        poller.unregister(self._dealer)
        self._dealer.close(linger=0)
        poller.register(dealer, self._zmq.POLLIN)
        self._dealer, self._key, self._session.run = dealer, fresh, fresh.run

    def _next_at(self) -> float:
        own = (self._end_at, self._bye_at, self._kill_at)
        return min(
            self._session.next_at,
            self._alive_at,
            self._simulated.next_at,
            self._search_note_at,
            *(at for at in own if at is not None),
        )

    def _tell_of_search(self, now: float) -> None:
        """Log that no supervisor answers, because in a job of Holdfast the wait for a supervisor
        may last as long as the job."""
        if self._session.rules is not None or self._session.ending is not None:
            self._search_note_at = math.inf
            return
        waited = now - self._began_at
        self._search_note_at = now + min(max(waited, 1.0), _LONGEST_SEARCH_NOTE_SECONDS)
        url = self._config.url
        self.note("no supervisor has answered yet", url=url, waited_seconds=round(waited))

    def _is_full(self) -> bool:
        link = self._session.link
        return link is not None and link.queued_bytes > _OUTBOX_BYTES

    def _begin_end(self, order: bus.End, now: float) -> None:
        processes = len(self._ranks.living)
        self.note("told to end", reason=order.reason, code=order.code, processes=processes)
        self._end_at = now + order.grace_seconds + KILL_LIMIT_SECONDS + _GOODBYE_SECONDS
        if order.code == 128 + signal.SIGTERM and self._config.term_grace_seconds is not None:
            self._kill_at = now + order.grace_seconds
        else:
            self._ranks.stop_all(order.grace_seconds)
        for up in self._simulated.end_all():
            self._say(up)

    def _is_over(self, now: float) -> bool:
        """Return whether every process has ended, and the supervisor has confirmed the ends or
        cannot be reached."""
        if self._end_at is None:
            return False
        if self._bye_at is None:
            if self._ranks.living and now < self._end_at:
                return False
            order = self._session.ending
            assert order is not None
            self._session.say_bye(order.reason, order.code)
            patience = _SIGNALLED_GOODBYE_SECONDS if order.code > 128 else _GOODBYE_SECONDS
            self._bye_at = now + (patience if self._session.link is not None else 0.0)
            return False
        return self._session.settled or now >= self._bye_at

    # ---- the supervisor

    def _read_dealer(self) -> None:
        zmq, now = self._zmq, time.monotonic()
        with contextlib.suppress(zmq.Again):
            for _ in range(_FRAMES_PER_TURN):
                for message in self._session.receive(self._dealer.recv(zmq.NOBLOCK), now):
                    self._obey(message, now)

    def _send(self, now: float) -> None:
        zmq = self._zmq
        for frame in self._session.take_frames(now):
            with contextlib.suppress(zmq.Again):  # not connected: the session sends the frame again
                self._dealer.send(frame, zmq.NOBLOCK)

    def _say(self, message: bus.Up) -> None:
        self._session.push_ordered(bus.encode_message(message))

    def _obey(self, message: bus.Down, now: float) -> None:
        answers = self._simulated.take(message, now)
        if answers is not None:
            for answer in answers:
                self._say(answer)
        elif isinstance(message, bus.Send):
            self._ranks.send(message)
        elif isinstance(message, bus.LaunchProcesses):
            if self._end_at is None:
                self._ranks.launch(message)
        elif isinstance(message, bus.SignalProcesses):
            self._ranks.signal(message)
        elif isinstance(message, bus.StopProcesses):
            self._ranks.stop(message)
        elif isinstance(message, bus.Forget):
            self._ranks.forget(message.groups)
        elif isinstance(message, bus.FindPort):
            self._say(answer_port(message))
        elif isinstance(message, bus.End):
            self._session.end(message)

    def _sample(self) -> None:
        running = [(p.group, p.rank, p.pid) for p in self._ranks.living if p.pid]
        load, free, uses = read_usage(running)
        self._session.push(bus.encode_message(bus.HostUsage(time.time(), load, free, uses)))
        if uses:
            shown = [[u.group, u.rank, round(u.cpu_seconds, 1), u.rss_bytes] for u in uses]
            self.note("usage", load=load, free_bytes=free, processes=shown)

    # ---- the warden

    def _ask_warden(self, request: WardenRequest) -> None:
        if not self._warden.ended:
            self._warden.queue_frame(encode_local(request))
            self._warden.flush()

    def _serve_warden(self) -> None:
        self._warden.flush()
        frames = self._warden.read_frames()
        if frames:
            self._warden_heard_at = time.monotonic()
        for frame in frames:
            self._ranks.take_answer(decode_warden_answer(frame))

    def _mourn_warden(self) -> None:
        """End the dead warden's children, which the kernel made this process's own (WARDEN-4)."""
        survivors: list[int] = []
        try:
            survivors = sweep(self._mark, kill_limit_seconds=KILL_LIMIT_SECONDS)
        except OSError as error:  # all of them are below us: the next line ends them without a look
            self.note("the process table cannot be read", error=str(error))
        kill_children(KILL_LIMIT_SECONDS)
        self.note("the warden died; its processes were ended", survivors=survivors or None)
        self._ranks.write_off()
        self._end_session(EXIT_WARDEN_DIED, "the warden of the host manager died", 0.0)

    # ---- signals and the end

    def _read_signals(self) -> None:
        for number in os.read(self._wake_fd, 4096):
            if self._session.ending is not None:
                self._ranks.stop_all(0.0)  # asked twice: at once
            reason = f"the host manager got {signal.Signals(number).name}"
            self._end_session(128 + number, reason, self._find_term_grace())

    def _end_session(self, code: int, reason: str, grace_seconds: float) -> None:
        self._session.end(bus.End(self._session.run, code, reason, grace_seconds))

    def _find_term_grace(self) -> float:
        if self._config.term_grace_seconds is not None:
            return self._config.term_grace_seconds
        rules = self._session.rules
        return rules.kill_grace_seconds if rules is not None else _DEFAULT_GRACE_SECONDS

    def close(self) -> None:
        """Close the sockets."""
        self._line.close()
        self._idle_word.close()
        self._dealer.close(linger=200)
        self._context.term()
