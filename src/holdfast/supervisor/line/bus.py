"""The script's end of the bus: one thread that talks to the bus's own process (`bus_process`).

Other threads hand it work with `call`; it hands what managers said to the roster. It reads messages,
calls and outgoing messages in batches, so a turn's fixed price is paid once for many of them.
"""

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.errors import Unavailable, ValidationError
from holdfast.supervisor.line.bus_process import BusConfig
from holdfast.supervisor.line.keys import RunKeys
from holdfast.supervisor.line.session_fleet import Rules
from holdfast.wire.bus import line as bus_line
from holdfast.wire.bus.messages import MachineFacts, ManagerHello, Up, decode_messages
from holdfast.wire.frames import FrameReader, encode_frame

logger = logging.getLogger("holdfast.supervisor")

_CALLS_PER_TURN = 16_384
_READ_BYTES = 4 << 20
_IDLE_SECONDS = 1.0
_START_SECONDS = 120.0
_KILL_SECONDS = 2.0
_BATCH_BYTES = 4 << 20  # the most bytes of messages to the bus process in one frame
# The script's own search path: a bus process that found another Holdfast would not understand it.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); "
    "from holdfast.lean import import_msgspec; import_msgspec(); "
    "from holdfast.supervisor.line.bus_process import main; sys.exit(main())"
)
_DIED = (
    "the bus process of this run died, and the connections to all hosts with it; make another "
    "context"
)


class Peer:
    """One manager, as the script knows it. host: the handle that the rosters attached it to. pid:
    the manager's pid on its machine."""

    __slots__ = ("facts", "host", "identity", "number", "pid")

    def __init__(self, number: int, identity: bytes, hello: ManagerHello) -> None:
        self.number = number
        self.identity = identity
        self.facts: MachineFacts = hello.facts
        self.pid = hello.pid
        self.host: object | None = None


class FleetLine:
    """The managers that the script knows, and the orders to them. The bus's thread owns it.

    left: the managers that were given up, came back and said goodbye, since the roster looked last.
    """

    def __init__(self, run: str, epoch: int, rules: Rules) -> None:
        self.run = run
        self.epoch = epoch
        self.rules = rules
        self.peers: dict[bytes, Peer] = {}
        self.left: list[bytes] = []
        self._by_number: dict[int, Peer] = {}
        self._pushed: list[tuple[list[int], bytes, bool]] = []
        self._pushed_bytes = 0
        self._out = bytearray()

    def push(self, peer: Peer, message: bytes) -> None:
        """Queue a message for one host manager."""
        self._push([peer.number], message, False)

    def push_ordered(self, peer: Peer, message: bytes) -> None:
        """Queue a message that must not overtake user messages."""
        self._push([peer.number], message, True)

    def push_to_all(self, peers: Collection[Peer], message: bytes) -> None:
        """Queue a message for many managers, in order with user messages."""
        self._push([peer.number for peer in peers], message, True)

    def _push(self, numbers: list[int], message: bytes, ordered: bool) -> None:
        self._pushed.append((numbers, message, ordered))
        self._pushed_bytes += len(message)
        if self._pushed_bytes > _BATCH_BYTES:
            self._pack()

    def bar(self, identity: bytes, code: int, reason: str) -> None:
        """Send a manager the order to end, if it ever sends a frame again."""
        self._say(bus_line.Bar(identity, code, reason))

    def dismiss(self, peer: Peer) -> None:
        """Forget a manager that said goodbye, and acknowledge the goodbye, so that the manager need
        not wait."""
        self.forget(peer)
        self._say(bus_line.Dismiss(peer.number))

    def stop(self) -> None:
        """Have the bus process end once all queued messages were sent."""
        self._say(bus_line.StopBus())

    def _say(self, message: bus_line.ToBus) -> None:
        self._pack()
        self._out += encode_frame(bus_line.encode_line(message))

    def _pack(self) -> None:
        if self._pushed:
            self._out += encode_frame(bus_line.encode_line(bus_line.Push(self._pushed)))
            self._pushed, self._pushed_bytes = [], 0

    def take_outgoing(self) -> bytearray:
        """Remove and return the queued bytes for the bus process."""
        self._pack()
        out, self._out = self._out, bytearray()
        return out

    def welcome(self, came: bus_line.Came) -> Peer:
        """Add a manager that the bus process welcomed."""
        peer = Peer(came.peer, came.identity, came.hello)
        self.peers[peer.identity] = self._by_number[peer.number] = peer
        return peer

    def find(self, number: int) -> Peer | None:
        """Return a manager by its number; None where it was forgotten."""
        return self._by_number.get(number)

    def forget(self, peer: Peer) -> None:
        """Remove a manager."""
        self._by_number.pop(peer.number, None)
        if self.peers.get(peer.identity) is peer:
            del self.peers[peer.identity]


class Roster(Protocol):
    """The events that the bus reports to the rosters, in its thread."""

    def take_came(self, peer: Peer, hello: ManagerHello) -> None:
        """Act on a manager that was welcomed."""

    def take_messages(self, peer: Peer, messages: list[Up]) -> None:
        """Act on messages of a manager, each for the first time."""

    def take_silent(self, peer: Peer, seconds: float) -> None:
        """Act on a manager that fell silent and was given up."""

    def take_end_of_bus(self, reason: str) -> None:
        """Act on the death of the bus process, after which no manager is heard any more."""

    def turn(self, now: float) -> float:
        """Do the work that is due; return when to be called again."""


class Load:
    """The work of bus process and thread since the bus began. The status line shows differences."""

    def __init__(self) -> None:
        self.messages_in = self.malformed = 0
        self.thread_seconds = 0.0
        self.worst_seconds = 0.0  # the longest turn of either, since the last status line
        self.counted = bus_line.Counted(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, {})

    @property
    def busy_seconds(self) -> float:
        """Return the seconds for which the bus's thread has been busy, or the bus process, if that
        is more."""
        return max(self.thread_seconds, self.counted.busy_seconds)

    @property
    def refused(self) -> Counter[str]:
        """Return the counts of refused frames, by reason."""
        return Counter(self.counted.refused) + Counter(malformed=self.malformed)


class Bus:
    """The bus's thread and its connection to the bus process. `fleet` belongs to the thread from
    `start` on."""

    def __init__(
        self,
        bind: str,
        port: int,
        keys: RunKeys,
        fleet: FleetLine,
        roster: Roster,
        scratch: Path | None,
    ) -> None:
        """Start the bus process, which binds the port and removes `scratch` after this process's
        end. Raises Unavailable when the port cannot be bound."""
        self.fleet = fleet
        self.load = Load()
        self._roster = roster
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._sleeping = False
        self._stopping = False
        self._reader = FrameReader()
        self._into = memoryview(bytearray(_READ_BYTES))  # one for all: making one is slow
        self._talk, theirs = socket.socketpair()
        for end in (self._talk, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _READ_BYTES)
        config = BusConfig(
            watch_pid=os.getpid(),
            scratch=str(scratch or ""),
            bind=bind,
            port=port,
            keys=keys,
            epoch=fleet.epoch,
            rules=fleet.rules,
        )
        # In a session of its own: Ctrl-C and Ctrl-Z of the terminal are for the script.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, _join_path(), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self.port = self._begin(config)
        except BaseException as error:
            self._close()
            if isinstance(error, _NoPort):
                raise Unavailable(
                    f"the supervisor cannot listen on {bind} port {port}: {error}. "
                    "Another script may have it; port=0 takes any that is free"
                ) from None
            raise
        self._thread = threading.Thread(target=self._run, name="holdfast-bus", daemon=True)

    def _begin(self, config: BusConfig) -> int:
        self._talk.settimeout(_START_SECONDS)
        frames: list[bytes] = []
        with contextlib.suppress(OSError):
            self._talk.sendall(encode_frame(msgspec.msgpack.encode(config)))
            while not frames:
                data = self._talk.recv(_READ_BYTES)
                if not data:
                    break
                frames = self._reader.feed(data)
        self._talk.settimeout(None)
        first = bus_line.decode_from_bus(frames[0]) if frames else None
        for frame in frames[1:]:
            self._take(bus_line.decode_from_bus(frame))
        if isinstance(first, bus_line.BusReady):
            return first.port
        if isinstance(first, bus_line.BusFailed):
            raise _NoPort(first.reason)
        raise Unavailable(
            f"the bus process ({sys.executable}) did not begin; what it said is on standard error"
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def pid(self) -> int:
        """Return the pid of the bus process."""
        return self._process.pid

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run `function(*arguments)` in the bus's thread, after all calls before it."""
        self._calls.append((function, arguments))
        if self._sleeping:
            self._sleeping = False
            with contextlib.suppress(OSError):  # closed: the thread has ended
                os.eventfd_write(self._wake_fd, 1)

    def stop(self, timeout_seconds: float) -> None:
        """End thread and process once all queued messages were sent."""
        self.call(self._stop)
        self._thread.join(timeout_seconds)

    def close(self) -> None:
        """Close a bus whose thread never started."""
        if self._thread.ident is None:
            self._close()

    def disown(self) -> None:
        """Close the copies of descriptors that a forked child has."""
        with contextlib.suppress(OSError):
            self._talk.close()
        with contextlib.suppress(OSError):
            os.close(self._wake_fd)

    def _stop(self) -> None:
        self._stopping = True
        self.fleet.stop()

    # ---- the thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._talk, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        more, next_at, alive = False, 0.0, True
        try:
            while alive:
                wait = 0.0 if more else max(0.0, min(_IDLE_SECONDS, next_at - time.monotonic()))
                self._sleeping = True
                if self._calls:
                    wait = 0.0
                ready = {fd for fd, _ in poll.poll(int(wait * 1000) + 1 if wait else 0)}
                self._sleeping = False
                if self._wake_fd in ready:
                    os.eventfd_read(self._wake_fd)
                began = time.monotonic()
                try:
                    alive = self._read() if self._talk.fileno() in ready else True
                    more = self._run_calls()
                    next_at = self._roster.turn(time.monotonic())
                    self._flush()
                except Exception:
                    logger.exception("a turn of the bus's thread failed; it goes on")
                took = time.monotonic() - began
                self.load.thread_seconds += took
                self.load.worst_seconds = max(self.load.worst_seconds, took)
            if not self._stopping:
                logger.error("%s", _DIED)
                self._roster.take_end_of_bus(_DIED)
            self._run_calls()
        finally:
            self._close()

    def _read(self) -> bool:
        """Read messages of the bus process. Returns False at its end."""
        try:
            size = self._talk.recv_into(self._into)
        except OSError:
            size = 0
        for frame in self._reader.feed(self._into[:size]):
            self._take(bus_line.decode_from_bus(frame))
        return size > 0

    def _take(self, message: bus_line.FromBus) -> None:
        fleet, roster = self.fleet, self._roster
        if isinstance(message, bus_line.Heard):
            self._take_heard(message)
        elif isinstance(message, bus_line.Came):
            roster.take_came(fleet.welcome(message), message.hello)
        elif isinstance(message, bus_line.Silent):
            peer = fleet.find(message.peer)
            if peer is not None:
                fleet.forget(peer)
                roster.take_silent(peer, message.seconds)
        elif isinstance(message, bus_line.SaidBye):
            fleet.left.append(message.identity)
        elif isinstance(message, bus_line.Counted):
            self.load.worst_seconds = max(self.load.worst_seconds, message.worst_seconds)
            self.load.counted = message
        elif isinstance(message, bus_line.BusSays):
            logger.log(message.level, "%s", message.sentence)

    def _take_heard(self, heard: bus_line.Heard) -> None:
        find, take = self.fleet.find, self._roster.take_messages
        for number, body in heard.bodies:
            peer = find(number)
            if peer is None:
                continue  # dismissed meanwhile
            try:
                messages = decode_messages(body)
            except ValidationError:
                self.load.malformed += 1
                continue
            self.load.messages_in += len(messages)
            try:
                take(peer, messages)
            except Exception:
                logger.exception("messages of a manager could not be taken")

    def _run_calls(self) -> bool:
        calls = self._calls
        for _ in range(min(len(calls), _CALLS_PER_TURN)):
            function, arguments = calls.popleft()
            try:
                function(*arguments)
            except Exception:
                logger.exception("a call into the bus failed")
        return bool(calls)

    def _flush(self) -> None:
        """Send the queued bytes. The bus process always reads, so this waits for no host."""
        out = self.fleet.take_outgoing()
        if out:
            with contextlib.suppress(OSError):  # the process is gone, which the next reading finds
                self._talk.sendall(out)

    def _close(self) -> None:
        self._talk.close()
        try:
            self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._wake_fd)


class _NoPort(Exception):
    """The bus process could not bind the port."""


def _join_path() -> str:
    return ":".join(str(Path(entry).absolute()) for entry in sys.path)
