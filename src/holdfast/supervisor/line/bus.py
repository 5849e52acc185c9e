"""The bus: every socket of the supervisor, in one thread.

Other threads hand it work with `call`; it hands incoming messages to the roster. It takes frames,
calls and outgoing messages in batches, so a turn's fixed price is paid once for many of them.

BUS-1  Nothing a peer can send ends the thread: a bad frame is refused and counted, an exception is
       logged.
BUS-2  Silence is judged only after everything was read that came before the judgement: from the
       socket, and from what ZeroMQ's own thread has not handed to it yet (`lag`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from holdfast.errors import Unavailable
from holdfast.process.spawn import raise_descriptor_limit
from holdfast.supervisor.line.gate import Gate
from holdfast.supervisor.line.keys import RunKeys
from holdfast.supervisor.line.lag import LagProbe
from holdfast.supervisor.line.priority import prefer_this_thread, preferred
from holdfast.supervisor.line.session_fleet import Fleet, ManagerPeer
from holdfast.wire.bus import HEADER_BYTES, MAX_FRAME_BYTES, ManagerHello, Up

logger = logging.getLogger("holdfast.supervisor")

_FRAMES_PER_TURN = 4096
_CALLS_PER_TURN = 16_384
_LINGER_MS = 1000
_BACKLOG = 4096
_MAX_SOCKETS = 65_000
_TCP_TIMEOUT_MS = 10_000
_IDLE_SECONDS = 1.0
_DOUBT_SECONDS = 0.05  # how soon to look again at a silence that could not be judged
# When a turn reads several frames, more are on their way: a turn for each few would cost more than
# the messages.
_GATHER_SECONDS = 0.0002
_FEW_FRAMES, _MANY_FRAMES = 3, 128


class Roster(Protocol):
    """What the bus tells the rosters, in its thread."""

    def take_came(self, peer: ManagerPeer, hello: ManagerHello) -> None:
        """A manager was welcomed."""

    def take_messages(self, peer: ManagerPeer, messages: list[Up]) -> None:
        """Messages of a manager, each for the first time."""

    def take_silent(self, peer: ManagerPeer) -> None:
        """A manager fell silent."""

    def turn(self, now: float) -> float:
        """Do due work; return when to be called again."""


class Load:
    """The work of the thread since it began. The status line takes differences."""

    def __init__(self) -> None:
        self.frames_in = self.frames_out = self.messages_in = self.unreachable = 0
        self.busy_seconds = 0.0
        self.worst_seconds = 0.0  # of one turn, since the last status line


class Bus:
    """The thread and its sockets. `fleet` belongs to the thread from `start` on."""

    def __init__(self, bind: str, port: int, keys: RunKeys, fleet: Fleet, roster: Roster) -> None:
        """Bind. Raises Unavailable when the port cannot be had."""
        self.fleet = fleet
        self.load = Load()
        self._roster = roster
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._sleeping = False
        self._frames_read = 0
        self._stop_at: float | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        raise_descriptor_limit()  # each manager takes a descriptor, and a shell's limit is 1024
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with preferred():  # the context's thread begins with its first socket
            self._router = self._context.socket(zmq.ROUTER)
        self._set_options(bind)
        self.gate = Gate(self._context, self._router, keys)
        try:
            where = f"[{bind}]" if ":" in bind else bind
            if port == 0:
                self.port = self._router.bind_to_random_port(f"tcp://{where}")
            else:
                self._router.bind(f"tcp://{where}:{port}")
                self.port = port
            self.probe = LagProbe(self._context, bind, self.port, keys)
        except zmq.ZMQError as error:
            self._close()
            raise Unavailable(
                f"the supervisor cannot listen on {bind} port {port}: {error.strerror}. "
                "Another script may have it; port=0 takes any that is free"
            ) from error
        self._thread = threading.Thread(target=self._run, name="holdfast-bus", daemon=True)

    def _set_options(self, bind: str) -> None:
        router = self._router
        router.linger = _LINGER_MS
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a manager that reconnects takes its own place
        # The bus refuses and counts frames over the limit; the socket cuts off those over twice.
        router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES * 2)
        router.setsockopt(zmq.BACKLOG, _BACKLOG)
        router.setsockopt(zmq.TCP_MAXRT, _TCP_TIMEOUT_MS)
        router.setsockopt(zmq.IPV6, int(":" in bind))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run `function(*arguments)` in the bus's thread, after all calls before it."""
        self._calls.append((function, arguments))
        if self._sleeping:
            self._sleeping = False
            with contextlib.suppress(OSError):  # closed: the thread has ended
                os.eventfd_write(self._wake_fd, 1)

    def stop(self, timeout_seconds: float) -> None:
        """End the thread once everything queued was sent."""
        self.call(self._stop)
        self._thread.join(timeout_seconds)

    def close(self) -> None:
        """Close the sockets of a bus whose thread never started."""
        if self._thread.ident is None:
            self._close()

    def _stop(self) -> None:
        self._stop_at = time.monotonic()

    # ---- the thread

    def _run(self) -> None:
        prefer_this_thread()
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        poller.register(self.gate.monitor, zmq.POLLIN)
        if self.gate.zap is not None:
            poller.register(self.gate.zap, zmq.POLLIN)
        more = False
        next_at = 0.0
        try:
            while self._stop_at is None:
                if _FEW_FRAMES <= self._frames_read < _MANY_FRAMES:
                    time.sleep(_GATHER_SECONDS)
                wait = 0.0 if more else max(0.0, min(_IDLE_SECONDS, next_at - time.monotonic()))
                self._sleeping = True
                if self._calls:
                    wait = 0.0
                ready = dict(poller.poll(int(wait * 1000) + 1 if wait else 0))
                self._sleeping = False
                began = time.monotonic()
                try:
                    more, next_at = self._turn(ready)
                except Exception:
                    logger.exception("a turn of the bus failed; it goes on")  # BUS-1
                took = time.monotonic() - began
                self.load.busy_seconds += took
                self.load.worst_seconds = max(self.load.worst_seconds, took)
            while self.fleet.has_more:
                self._send(self.fleet.take_outgoing(time.monotonic()))
        finally:
            self._close()

    def _turn(self, ready: dict[Any, int]) -> tuple[bool, float]:
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if self.gate.zap is not None and self.gate.zap in ready:
            self.gate.answer_zap()
        if self.gate.monitor in ready:
            self.gate.read_monitor()
        self._frames_read = 0
        more = self._read() if self._router in ready else False
        more |= self._run_calls()
        now = time.monotonic()
        fleet, probe = self.fleet, self.probe
        probe.turn(now, fleet.silent_at <= now)
        if not more:  # BUS-2
            for peer in fleet.tick(now, probe.read_until(now)):
                self._roster.take_silent(peer)
        silent_at = fleet.silent_at
        if silent_at <= now:
            silent_at = now + _DOUBT_SECONDS  # the probe that comes back wakes us before
        next_at = min(self._roster.turn(now), fleet.speak_at, probe.next_at, silent_at)
        self._send(fleet.take_outgoing(now))
        return more or bool(self._calls) or fleet.has_more, next_at

    def _read(self) -> bool:
        """Read frames from the socket, up to a limit. True where more may wait."""
        receive, fleet, roster, now = self._router.recv, self.fleet, self._roster, time.monotonic()
        take_beat, own = fleet.take_beat, self.probe.identity
        count = 0
        try:
            for count in range(_FRAMES_PER_TURN):  # noqa: B007  the count is read below
                identity = receive(zmq.NOBLOCK)
                frame = receive(zmq.NOBLOCK)
                # If it were the first of several parts, the next would be caught out of step below.
                if len(frame) == HEADER_BYTES and take_beat(identity, frame, now):
                    continue
                if self._router.get(zmq.RCVMORE):
                    self._skip_parts()
                    continue
                if identity == own:
                    self.probe.take(frame, time.monotonic())
                    continue
                found = fleet.receive(identity, frame, now)
                if found is not None:
                    self.load.messages_in += len(found[1])
                    roster.take_messages(found[0], found[1])
                elif fleet.came:
                    came, fleet.came = fleet.came, []
                    for peer, hello in came:
                        roster.take_came(peer, hello)
        except zmq.Again:
            self._frames_read = count
            self.load.frames_in += count
            return False
        self._frames_read = _FRAMES_PER_TURN
        self.load.frames_in += _FRAMES_PER_TURN
        return True

    def _skip_parts(self) -> None:
        """Throw away the further parts of a message, because ours have one part."""
        self.fleet.refused["malformed"] += 1
        while self._router.get(zmq.RCVMORE):
            self._router.recv(zmq.NOBLOCK)

    def _run_calls(self) -> bool:
        calls = self._calls
        for _ in range(min(len(calls), _CALLS_PER_TURN)):
            function, arguments = calls.popleft()
            try:
                function(*arguments)
            except Exception:
                logger.exception("a call into the bus failed")
        return bool(calls)

    def _send(self, outgoing: list[tuple[bytes, bytes]]) -> None:
        send = self._router.send
        first = zmq.SNDMORE | zmq.NOBLOCK
        for identity, frame in outgoing:
            try:
                send(identity, first)
                send(frame, zmq.NOBLOCK)
            except zmq.ZMQError:  # not connected, or its queue is full: the session sends it again
                self.load.unreachable += 1
        self.load.frames_out += len(outgoing)

    def _close(self) -> None:
        gate = getattr(self, "gate", None)
        if gate is not None:
            gate.close(self._router)
        probe = getattr(self, "probe", None)
        if probe is not None:
            probe.close()
        self._router.close()
        self._context.term()
        os.close(self._wake_fd)
