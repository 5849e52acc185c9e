"""The bus's own process: every socket of a supervisor, its sessions, its heartbeats, its judgement
of silence.

The script's process may be late: a thread of it that holds the interpreter's lock while it waits
for a core, or for a second in a C call, holds up every other thread. Heartbeats cannot wait for
that, so they have a process that runs nothing else. The script starts it, talks to it over a socket
pair (`wire.bus.line`), and it ends with the script.

BUS-1  Nothing a peer can send ends the process: a bad frame is refused and counted, an exception is
       logged.
BUS-2  Silence is judged only after everything was read that came before the judgement: from the
       socket, and from frames that ZeroMQ's own thread has not passed to it yet (`lag`).
BUS-3  The bus process lives as long as its script and no longer, and removes the folder of the
       run's key, which a killed script leaves; while the script is stopped (SIGSTOP) the bus
       process sends nothing, because the hosts of a frozen script must end.
BUS-4  A script that does not read delays no heartbeat. Beyond `_FULL_BYTES`, messages of hosts are
       refused, and the hosts keep them.
"""

import contextlib
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from typing import Any

import msgspec
import zmq

from holdfast.process.spawn import raise_descriptor_limit
from holdfast.supervisor.line.gate import Gate
from holdfast.supervisor.line.keys import RunKeys
from holdfast.supervisor.line.lag import LagProbe
from holdfast.supervisor.line.machine import read_waited_seconds
from holdfast.supervisor.line.priority import prefer_this_thread
from holdfast.supervisor.line.session_fleet import EXIT_GIVEN_UP, Fleet, ManagerPeer, Rules
from holdfast.wire.bus import line as bus_line
from holdfast.wire.bus.messages import HEADER_BYTES, MAX_FRAME_BYTES
from holdfast.wire.frames import FrameReader, encode_frame

EXIT_NO_PORT = 2
_FRAMES_PER_TURN = 4096
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
_FULL_BYTES = 64 << 20
_BATCH_BYTES = 1 << 20  # the most bytes of one message to the script
_READ_BYTES = 4 << 20
_COUNT_SECONDS = 1.0
_COLLECT_AFTER = 10_000  # new objects: a burst of messages makes thousands, and seldom a cycle
# The bus of the script before this one may be a few instructions from its end.
_BIND_SECONDS = 2.0


class BusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a bus process. watch_pid: the script's pid, with which the bus process
    ends. scratch: a folder to remove at the end, or empty."""

    watch_pid: int
    scratch: str
    bind: str
    port: int
    keys: RunKeys
    epoch: int
    rules: Rules


class ScriptLine:
    """The queue of messages to the script. Nothing here waits for the script."""

    def __init__(self, talk: socket.socket) -> None:
        self.talk = talk
        self.gone = False
        self._reader = FrameReader()
        self._into = memoryview(bytearray(_READ_BYTES))  # one for all: making one is slow
        self._unsent = bytearray()
        self._bodies: list[tuple[int, bytes]] = []
        self._bodies_bytes = 0

    @property
    def waiting(self) -> int:
        """Return the number of bytes that the script has not read."""
        return len(self._unsent) + self._bodies_bytes

    def pass_on(self, peer: int, body: bytes) -> None:
        """Queue a message that a manager sent."""
        self._bodies.append((peer, body))
        self._bodies_bytes += len(body)
        if self._bodies_bytes > _BATCH_BYTES:
            self._pack()

    def queue_message(self, message: bus_line.FromBus) -> None:
        """Queue a message of the bus process itself, after all messages before it."""
        self._pack()
        self._unsent += encode_frame(bus_line.encode_line(message))

    def _pack(self) -> None:
        if self._bodies:
            self._unsent += encode_frame(bus_line.encode_line(bus_line.Heard(self._bodies)))
            self._bodies, self._bodies_bytes = [], 0

    def flush(self) -> None:
        """Send as much as the script's socket accepts."""
        self._pack()
        try:
            while self._unsent:
                sent = self.talk.send(memoryview(self._unsent)[:_READ_BYTES])
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            self.gone = True

    def read(self) -> list[bus_line.ToBus]:
        """Return the messages that have arrived from the script."""
        try:
            size = self.talk.recv_into(self._into)
        except BlockingIOError:
            return []
        except OSError:
            size = 0
        if not size:
            self.gone = True
        return [bus_line.decode_to_bus(frame) for frame in self._reader.feed(self._into[:size])]


class BusProcess:
    """The bus's sockets, and the loop that reads and writes them."""

    def __init__(self, config: BusConfig, line: ScriptLine, script_fd: int) -> None:
        """Bind the port. Raises ZMQError when it cannot be bound."""
        self._config = config
        self._line = line
        self._script_fd = script_fd
        self._fleet = Fleet(
            config.keys.run,
            config.epoch,
            config.rules,
            _make_session,
            time.monotonic(),
            read_waited=read_waited_seconds,
        )
        self._peers: dict[int, ManagerPeer] = {}
        self._frames_read = self._frames_in = self._frames_out = self._unreachable = 0
        self._busy_seconds = self._worst_seconds = 0.0
        self._count_at = 0.0
        self._counted: tuple[int, int] = (0, 0)  # refused and gone, as the script was told
        self._look_at = 0.0
        self._script_stopped = False
        self._over = False
        self._said: set[str] = set()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        raise_descriptor_limit()  # each manager takes a descriptor, and a shell's limit is 1024
        self._router = self._context.socket(zmq.ROUTER)
        self._set_options(config.bind)
        self._gate = Gate(self._context, self._router, config.keys)
        self.port = self._bind(config.bind, config.port)
        self._probe = LagProbe(self._context, config.bind, self.port, config.keys)

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

    def _bind(self, bind: str, port: int) -> int:
        where = f"[{bind}]" if ":" in bind else bind
        if port == 0:
            return self._router.bind_to_random_port(f"tcp://{where}")
        give_up_at = time.monotonic() + _BIND_SECONDS
        while True:
            try:
                self._router.bind(f"tcp://{where}:{port}")
                return port
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= give_up_at:
                    raise
            time.sleep(0.02)

    # ---- the loop

    def run(self) -> None:
        """Run the loop until the script is gone, or orders the end."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._script_fd, zmq.POLLIN)
        poller.register(self._gate.monitor, zmq.POLLIN)
        if self._gate.zap is not None:
            poller.register(self._gate.zap, zmq.POLLIN)
        more = False
        next_at = 0.0
        try:
            while not self._over:
                if _FEW_FRAMES <= self._frames_read < _MANY_FRAMES:
                    time.sleep(_GATHER_SECONDS)
                wait = 0.0 if more else max(0.0, min(_IDLE_SECONDS, next_at - time.monotonic()))
                wanted = zmq.POLLIN | (zmq.POLLOUT if self._line.waiting else 0)
                poller.register(self._line.talk, wanted)
                ready = dict(poller.poll(int(wait * 1000) + 1 if wait else 0))
                if self._script_fd in ready or self._line.gone:
                    return  # BUS-3
                began = time.monotonic()
                try:
                    more, next_at = self._turn(ready)
                except Exception:
                    self._say_once(traceback.format_exc())  # BUS-1
                took = time.monotonic() - began
                self._busy_seconds += took
                self._worst_seconds = max(self._worst_seconds, took)
            while self._fleet.has_more:
                self._send(self._fleet.take_outgoing(time.monotonic()))
            self._count()
            self._line.flush()
        finally:
            self._close()

    def _turn(self, ready: dict[Any, int]) -> tuple[bool, float]:
        if self._gate.zap is not None and self._gate.zap in ready:
            self._gate.answer_zap()
        if self._gate.monitor in ready:
            self._gate.read_monitor()
        self._frames_read = 0
        more = self._read() if self._router in ready else False
        for message in self._line.read():
            self._obey(message)
        now = time.monotonic()
        fleet, probe = self._fleet, self._probe
        self._look_at_script(now)
        probe.turn(now, fleet.silent_at <= now)
        if not more:  # BUS-2
            for peer in fleet.tick(now, probe.read_until(now)):
                self._give_up(peer, now)
        silent_at = fleet.silent_at
        if silent_at <= now:
            silent_at = now + _DOUBT_SECONDS  # the probe that comes back wakes us before
        self._send(fleet.take_outgoing(now))
        if now >= self._count_at or self._count_losses() != self._counted:
            self._count()
        if fleet.left:
            left, fleet.left = fleet.left, []
            for identity in left:
                self._line.queue_message(bus_line.SaidBye(identity))
        self._line.flush()
        return more or fleet.has_more, min(fleet.speak_at, probe.next_at, silent_at)

    def _read(self) -> bool:
        """Read frames from the managers' socket, up to a limit. Returns True where more frames may
        wait."""
        receive, fleet, now = self._router.recv, self._fleet, time.monotonic()
        take_beat, own, line = fleet.take_beat, self._probe.identity, self._line
        count = 0
        try:
            for count in range(_FRAMES_PER_TURN):  # noqa: B007  the count is read below
                identity = receive(zmq.NOBLOCK)
                frame = receive(zmq.NOBLOCK)
                # A first part of several is caught by the check for further parts below.
                if len(frame) == HEADER_BYTES and take_beat(identity, frame, now):
                    continue
                if self._router.get(zmq.RCVMORE):
                    self._skip_parts()
                    continue
                if identity == own:
                    self._probe.note_frame(frame, time.monotonic())
                    continue
                if len(frame) > HEADER_BYTES and line.waiting > _FULL_BYTES:  # BUS-4
                    fleet.note_life(identity, now)
                    continue
                peer = fleet.receive(identity, frame, now)
                if peer is not None:
                    line.pass_on(peer.number, frame[HEADER_BYTES:])
                elif fleet.came:
                    self._welcome_newcomers()
        except zmq.Again:
            self._frames_read = count
            self._frames_in += count
            return False
        self._frames_read = _FRAMES_PER_TURN
        self._frames_in += _FRAMES_PER_TURN
        return True

    def _skip_parts(self) -> None:
        """Discard the further parts of a message, because valid messages have one part."""
        self._fleet.refused["malformed"] += 1
        while self._router.get(zmq.RCVMORE):
            self._router.recv(zmq.NOBLOCK)

    def _welcome_newcomers(self) -> None:
        came, self._fleet.came = self._fleet.came, []
        for peer, hello in came:
            self._peers[peer.number] = peer
            self._line.queue_message(bus_line.Came(peer.number, peer.identity, hello))

    def _give_up(self, peer: ManagerPeer, now: float) -> None:
        silent = now - peer.heard_at
        del self._peers[peer.number]
        reason = f"the supervisor gave this host up: nothing was heard of it for {silent:.1f} s"
        self._fleet.give_up(peer, EXIT_GIVEN_UP, reason)
        self._line.queue_message(bus_line.Silent(peer.number, silent))

    # ---- the script

    def _obey(self, message: bus_line.ToBus) -> None:
        fleet, peers = self._fleet, self._peers
        if isinstance(message, bus_line.Push):
            for numbers, words, ordered in message.messages:
                push = fleet.push_ordered if ordered else fleet.push
                for number in numbers:
                    peer = peers.get(number)
                    if peer is not None:  # else the peer fell silent meanwhile
                        push(peer, words)
        elif isinstance(message, bus_line.Bar):
            fleet.bar(message.identity, message.code, message.reason)
        elif isinstance(message, bus_line.Dismiss):
            peer = peers.pop(message.peer, None)
            if peer is not None:
                fleet.dismiss(peer)
        elif isinstance(message, bus_line.StopBus):
            self._over = True

    def _look_at_script(self, now: float) -> None:
        """Note whether the script is stopped, because the bus process sends nothing meanwhile
        (BUS-3)."""
        if now >= self._look_at:
            self._look_at = now + self._config.rules.heartbeat_seconds / 2
            self._script_stopped = is_stopped(self._config.watch_pid)

    def _send(self, outgoing: list[tuple[bytes, bytes]]) -> None:
        if self._script_stopped:
            return  # sessions repeat frames that were not acknowledged
        send = self._router.send
        first = zmq.SNDMORE | zmq.NOBLOCK
        for identity, frame in outgoing:
            try:
                send(identity, first)
                send(frame, zmq.NOBLOCK)
            except zmq.ZMQError:  # not connected, or a full queue: the session sends again
                self._unreachable += 1
        self._frames_out += len(outgoing)

    def _count_losses(self) -> tuple[int, int]:
        refused = self._fleet.refused.total() + self._gate.refused.total()
        return refused, self._gate.disconnects

    def _count(self) -> None:
        self._count_at = time.monotonic() + _COUNT_SECONDS
        self._counted = self._count_losses()
        self._line.queue_message(
            bus_line.Counted(
                self._frames_in,
                self._frames_out,
                self._fleet.resent,
                self._unreachable,
                self._gate.disconnects,
                self._busy_seconds,
                self._worst_seconds,
                self._probe.seconds,
                dict(self._fleet.refused + self._gate.refused),
            )
        )
        self._worst_seconds = 0.0

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._line.queue_message(
                bus_line.BusSays(logging.ERROR, f"a turn of the bus failed; it goes on: {text}")
            )

    def _close(self) -> None:
        self._gate.close(self._router)
        self._probe.close()
        self._router.close()
        self._context.term()


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal, and not continued yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _make_session() -> int:
    return secrets.randbits(62) | 1


class _ToScript(logging.Handler):
    """Passes log records of the bus process to the script, whose log handlers the user has set."""

    def __init__(self, line: ScriptLine) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.queue_message(bus_line.BusSays(record.levelno, record.getMessage()))


def remove_scratch(folder: str) -> None:
    """Remove the folder of a run's key, if the script has not done so at its own end."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def main() -> int:
    """Run the bus process. The last argument names the descriptor of its socket to the script."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # the script alone reacts to these signals
    talk = socket.socket(fileno=int(sys.argv[-1]))
    line, first = ScriptLine(talk), FrameReader()
    frames: list[bytes] = []
    while not frames:
        data = talk.recv(_READ_BYTES)
        if not data:
            return 0
        frames = first.feed(data)
    config = msgspec.msgpack.decode(frames[0], type=BusConfig)
    try:
        script_fd = os.pidfd_open(config.watch_pid)
    except OSError:
        return 0
    if os.getppid() != config.watch_pid:
        return 0
    talk.setblocking(False)
    logging.getLogger("holdfast").addHandler(_ToScript(line))
    prefer_this_thread()
    gc.freeze()  # imported objects live to the end
    gc.set_threshold(_COLLECT_AFTER)
    try:
        bus = BusProcess(config, line, script_fd)
    except (zmq.ZMQError, OSError) as error:
        line.queue_message(bus_line.BusFailed(error.strerror or str(error)))
        line.flush()
        return EXIT_NO_PORT
    line.queue_message(bus_line.BusReady(bus.port))
    line.flush()
    bus.run()
    if config.scratch:
        remove_scratch(config.scratch)
    return 0
