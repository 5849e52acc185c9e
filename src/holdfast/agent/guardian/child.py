"""The agent as its guardian sees it: a child to start, listen to, and replace.

AGENT-1  An agent that died is started again at once; one that keeps dying, after 0.2 s doubling to
         10 s.
AGENT-2  An agent whose loop is silent for `frozen_seconds` is killed and replaced: it may be
         stopped, or stuck in a driver. Before its first word each in a row has twice the time of
         the one before, eight times at
         most: on a machine with little to spare the start itself takes long, and killing it earlier
         never helps.
AGENT-3  Every agent has its own socket pair, so what was meant for a dead one never reaches its
         successor; the successor asks for a snapshot instead.
AGENT-4  What an agent says and nobody can read is refused (LINE-1), and is no sign of life: an
         agent that says nothing else is replaced as a silent one is.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

import msgspec

from holdfast.errors import ValidationError
from holdfast.process.spawn import Child, SpawnRequest, read_start, spawn
from holdfast.process.tree import Forest, Mark, Tree
from holdfast.process.watch import Watcher
from holdfast.wire.frames import MAX_FRAME_BYTES, FrameReader, encode_frame
from holdfast.wire.guardian import AgentHello, Answer, Request, Unread, decode_request, encode

_READ_BYTES = 1 << 18
_TERM_SECONDS = 10.0  # how long an agent told to go may take
_SPARE_DESCRIPTORS = 6  # an agent may have most of what tasks must leave (SPAWN-4)
_SHOWN_BYTES = 32
_MAX_REASON = 1024
_NOTED_REFUSALS = 20  # of one agent
_STEADY_SECONDS = 10.0  # an agent that lived this long has earned an immediate restart
INF = float("inf")


class AgentChild:
    """At most one living agent. All times are time.monotonic(): a suspended host has not frozen its
    agent."""

    def __init__(
        self,
        *,
        argv: list[str],
        env: Mapping[str, str],
        pass_fds: tuple[int, ...],
        host: str,
        descriptor_limit: tuple[int, int] | None,
        frozen_seconds: float,
        backoff_seconds: tuple[float, float],
        forest: Forest,
        watcher: Watcher,
        note: Callable[..., None],
        set_interest: Callable[[int, bool], None],
        drop_interest: Callable[[int], None],
    ) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)
        self._pass_fds = pass_fds
        self._host = host
        self._descriptor_limit = descriptor_limit
        self._frozen_seconds = frozen_seconds
        self._backoff_seconds = backoff_seconds
        self._forest = forest
        self._watcher = watcher
        self._note = note
        self._set_interest = set_interest
        self._drop_interest = drop_interest
        self._number = 0
        self._failures = 0
        self._refused = 0  # messages of this agent
        self._mute = 0  # agents in a row that were killed before their first word
        self._child: Child | None = None
        self._request: SpawnRequest | None = None
        self._channel: socket.socket | None = None
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._greeted = False
        self._started_at = 0.0
        self._heard_at = 0.0
        self._kill_at = INF
        self._start_at = 0.0
        self._wanted_gone = False
        self.retiring = False
        self.tree: Tree | None = None

    @property
    def pid(self) -> int | None:
        """The living agent's pid."""
        return self._child.pid if self._child else None

    def turn(self, now: float) -> float:
        """Start, kill or replace the agent as is due; return when to be called again."""
        if self._child is None:
            if self.retiring:
                return INF
            if now < self._start_at:
                return self._start_at
            self._start(now)
            if self._child is None:
                return self._start_at
        if now >= self._kill_at:
            self._kill("it did not go when told")
        elif now - self._heard_at >= self._patience_seconds and self._kill_at == INF:
            self._mute += not self._greeted
            self._kill(f"its loop has been silent for {now - self._heard_at:.1f} s")
        return min(self._kill_at, self._heard_at + self._patience_seconds)

    @property
    def _patience_seconds(self) -> float:
        return (
            self._frozen_seconds
            if self._greeted
            else self._frozen_seconds * 2.0 ** min(self._mute, 3)
        )

    def excuse_silence(self, seconds: float) -> None:
        """The guardian itself did not turn for so long: the agent's silence of that time says
        nothing."""
        self._heard_at = min(self._heard_at + seconds, time.monotonic())

    def tell(self, answer: Answer) -> None:
        """Send to the agent, if one has said hello; the snapshot brings everything to the next
        one."""
        if self._channel is None or not self._greeted:
            return
        self._unsent += encode_frame(encode(answer))
        if len(self._unsent) > 2 * MAX_FRAME_BYTES:
            self._kill("it does not read what it is told")
            return
        self.flush()

    def greet(self, snapshot: Answer) -> None:
        """Answer a hello; from here on the agent hears everything."""
        self._greeted = True
        self._mute = 0
        self.tell(snapshot)

    def retire(self, *, for_good: bool) -> None:
        """TERM the agent, KILL it if it does not go.

        Unless `for_good` the next one starts at once (an upgrade).
        """
        self.retiring = self.retiring or for_good
        self._start_at = 0.0
        if self._child is not None:
            self._wanted_gone = True
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            self._kill_at = min(self._kill_at, time.monotonic() + _TERM_SECONDS)

    def kill(self) -> None:
        """KILL the agent now."""
        self._signal(signal.SIGKILL)

    def read(self) -> list[Request]:
        """What the agent said. A stream that ends or cannot be cut into messages costs the agent
        its life."""
        if self._channel is None:
            return []
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._close_channel()
            if (
                not self._wanted_gone
            ):  # else it is on its way out, as it was told, and has its time for that
                self._kill("it closed its line to the guardian")
            return []
        try:
            frames = self._reader.feed(data)
        except ValidationError as error:
            self._kill(f"it sent what is no message: {error}")
            self._close_channel()
            return []
        requests: list[Request] = []
        for frame in frames:
            try:
                requests.append(decode_request(frame))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self.refuse(f"{error} (it begins with {frame[:_SHOWN_BYTES].hex()})")
        if requests:
            self._heard_at = time.monotonic()
        if any(isinstance(request, AgentHello) for request in requests):
            self._read_exec()
        return requests

    def refuse(self, reason: str) -> None:
        """Say that a message could not be read or carried out (AGENT-4)."""
        self._refused += 1
        if self._refused <= _NOTED_REFUSALS:
            self._note(f"a message of the agent is refused: {reason}", count=self._refused)
        self.tell(Unread(count=self._refused, reason=reason[:_MAX_REASON]))

    def take_exit(self, pid: int, exit_code: int | None, signal_number: int | None) -> bool:
        """Take the exit of the agent; False when the process is not it. Plans the next start
        (AGENT-1)."""
        if self._child is None or pid != self._child.pid:
            return False
        now = time.monotonic()
        sentence = self._read_exec()
        self._child = None
        self._close_channel()
        self._kill_at = INF
        lived_seconds = now - self._started_at
        if self._wanted_gone:
            self._failures = 0
            delay = 0.0
        else:
            self._failures = 1 if lived_seconds >= _STEADY_SECONDS else self._failures + 1
            first, most = self._backoff_seconds
            delay = (
                0.0
                if self._failures == 1
                else min(first * 2.0 ** min(self._failures - 2, 30), most)
            )
        self._start_at = now + delay
        self._note(
            "the agent ended" if not sentence else f"the agent could not be started: {sentence}",
            pid=pid,
            exit_code=exit_code,
            signal=signal_number,
            wanted=self._wanted_gone,
            again_in_seconds=None if self.retiring else delay,
        )
        return True

    def _start(self, now: float) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            self._put_off(now, error)
            return
        self._number += 1
        mark = Mark(f"agent-{self._number}", self._host)
        brand = self._forest.make_brand()
        request = SpawnRequest(
            argv=self._argv,
            env={**self._env, **mark.as_env(), "HOLDFAST_GUARDIAN_FD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(), *self._pass_fds),
            # It outlives us by the moment it needs to sweep our tasks, and must be awake for that.
            parent_death_signal=signal.SIGCONT,
            descriptor_limit=self._descriptor_limit,
            brand=brand,
        )
        try:
            child = spawn(request, spare_descriptors=_SPARE_DESCRIPTORS)
        except OSError as error:
            ours.close()
            self._put_off(now, error)
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._child, self._request, self._channel = child, request, ours
        self._reader, self._unsent, self._greeted, self._refused = (
            FrameReader(),
            bytearray(),
            False,
            0,
        )
        self._started_at = self._heard_at = now
        self._kill_at = INF
        self._wanted_gone = False
        self._watcher.watch_child(child.pid, child.pidfd)
        self.tree = Tree(mark, child, None, trusted=True, brand=brand)
        self._forest.add(self.tree)
        self._set_interest(ours.fileno(), False)
        self._note("the agent was started", pid=child.pid, number=self._number)

    def _put_off(self, now: float, error: OSError) -> None:
        """The kernel has nothing left for an agent now."""
        self._failures += 1
        self._start_at = now + self._backoff_seconds[1]
        self._heard_at = now
        self._note(
            f"the agent could not be started: {error}", again_in_seconds=self._backoff_seconds[1]
        )

    def _read_exec(self) -> str:
        """The sentence of a failed exec, if it failed."""
        if self._child is None or self._request is None:
            return ""
        sentence = read_start(self._child, self._request)
        if sentence is not None:
            self._request = None
        return sentence or ""

    def flush(self) -> None:
        """Send what the channel takes now; the rest when it takes more."""
        if self._channel is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # its end is gone; the exit follows
        self._set_interest(self._channel.fileno(), bool(self._unsent))

    def _kill(self, why: str) -> None:
        if self._child is None:
            return
        if self._kill_at > time.monotonic() or self._kill_at == INF:
            self._note(f"the agent is killed: {why}", pid=self._child.pid)
        self._signal(signal.SIGKILL)
        # If even that does not end it (a hung driver) say so again later, not every turn.
        self._kill_at = time.monotonic() + _TERM_SECONDS

    def _signal(self, number: int) -> None:
        if self._child is not None:
            try:
                # Ours and not yet reaped: the number cannot be anybody else's.
                os.kill(self._child.pid, number)
            except ProcessLookupError:
                pass

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._drop_interest(self._channel.fileno())
            self._channel.close()
            self._channel = None
