"""Start, read and replace the agent, which is a child of the guardian.

- An agent that died is started again at once; one that keeps dying, after 0.2 s doubling to
  10 s.
- An agent whose loop is silent for `frozen_seconds` is killed and replaced, because it may
  be stopped, or stuck in a driver. Until its first message each agent in a row has twice the
  time of the one before, eight times at most, because on a busy machine the start itself
  takes long, and an agent killed too early never gets further.
AGENT-3  Every agent has its own socket pairs, so that no message to a dead agent reaches its
         successor, which asks for a snapshot instead.
AGENT-4  A message that cannot be read is refused (LINE-1) and is no sign of life: an agent that
         sends nothing else is replaced like a silent one.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

from holdfast.agent.guardian.config import GuardianConfig
from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError
from holdfast.process.loop import FrameLine, Poller
from holdfast.process.nursery import Nursery, ProgramEvents, ProgramRun
from holdfast.process.spawn import SpawnRequest
from holdfast.wire.frames import MAX_FRAME_BYTES
from holdfast.wire.guardian import Answer, Request, Unread, decode_request, encode

EXIT_BAD_CONFIG = 78  # an agent's status (EX_CONFIG): starting it again changes nothing
_TERM_SECONDS = 10.0  # how long an agent may take to leave
_SPARE_DESCRIPTORS = 6  # an agent may use descriptors that tasks must leave free (SPAWN-4)
_SHOWN_BYTES = 32
_MAX_REASON = 1024
_NOTED_REFUSALS = 20  # of one agent, in the journal
_STEADY_SECONDS = 10.0  # an agent that lived this long is restarted at once
INF = float("inf")


class AgentChild:
    """Holds at most one living agent. Its instants are time.monotonic(), because an agent is not
    frozen while the host is suspended.

    hear: called with the events of the agent's socket. gone: called when an agent was reaped.
    note: writes a sentence into the guardian's journal.
    """

    def __init__(
        self,
        config: GuardianConfig,
        *,
        env: Mapping[str, str],
        pass_fds: tuple[int, ...],
        descriptor_limit: tuple[int, int] | None,
        nursery: Nursery,
        poller: Poller,
        note: Callable[..., None],
        hear: Callable[[int], None],
        gone: Callable[[], None],
    ) -> None:
        self._argv = tuple(config.agent_argv)
        self._env = dict(env)
        self._pass_fds = pass_fds
        self._descriptor_limit = descriptor_limit
        self._frozen_seconds = config.frozen_seconds
        self._backoff_seconds = config.agent_backoff_seconds
        self._nursery = nursery
        self._poller = poller
        self._note = note
        self._hear = hear
        self._gone = gone
        self.open_session_line: Callable[[], socket.socket]  # the guardian's sessions, made later
        self._number = 0
        self._failures = 0
        self._refused = 0  # messages of this agent that were refused
        self._mute = 0  # agents in a row that were killed before their first word
        self._run: ProgramRun | None = None
        self._channel: FrameLine | None = None
        self.greeted = False  # its hello was answered
        self._started_at = 0.0
        self._heard_at = 0.0
        self._kill_at = INF
        self._start_at = 0.0
        self._wanted_gone = False
        self.bad_configs = 0  # agents in a row that could not read their config
        self.retiring = False

    @property
    def pid(self) -> int | None:
        """Return the living agent's pid; None if no agent lives."""
        return self._run.pid if self._run else None

    def turn(self, now: float) -> float:
        """Start, kill or replace the agent when that is due; return the instant at which to be
        called again."""
        if self._run is None:
            if self.retiring:
                return INF
            if now < self._start_at:
                return self._start_at
            self._start(now)
            if self._run is None:
                return self._start_at
        if now >= self._kill_at:
            self._kill("it did not go when told")
        elif now - self._heard_at >= self._patience_seconds and self._kill_at == INF:
            self._mute += not self.greeted
            self._kill(f"its loop has been silent for {now - self._heard_at:.1f} s")
        return min(self._kill_at, self._heard_at + self._patience_seconds)

    @property
    def _patience_seconds(self) -> float:
        factor = 1.0 if self.greeted else 2.0 ** min(self._mute, 3)
        return self._frozen_seconds * factor

    def excuse_silence(self, seconds: float) -> None:
        """Count `seconds` of silence as none, because the guardian did not read for that long."""
        self._heard_at = min(self._heard_at + seconds, time.monotonic())

    def queue_answer(self, answer: Answer) -> None:
        """Queue an answer for `flush`, if the agent has said hello; a later agent gets
        everything in its snapshot. All answers of one turn are sent together, so that they wake
        the agent once."""
        if self._channel is None or not self.greeted:
            return
        self._channel.queue_frame(encode(answer))
        if len(self._channel.unsent) > 2 * MAX_FRAME_BYTES:
            self._kill("it does not read what it is told")

    def greet(self, snapshot: Answer) -> None:
        """Answer a hello; from here on the agent gets every answer."""
        self.greeted = True
        self._mute = 0
        self.queue_answer(snapshot)

    def retire(self, *, for_good: bool) -> None:
        """Signal the agent to leave, and KILL it if it does not.

        for_good: True to shut the host down (TERM). False for an upgrade (HUP: the agent alone
        leaves); the next agent starts at once.
        """
        self.retiring = self.retiring or for_good
        self._start_at = 0.0
        if self._run is not None:
            self._wanted_gone = True
            self._signal(signal.SIGTERM if for_good else signal.SIGHUP)
            self._signal(signal.SIGCONT)
            self._kill_at = min(self._kill_at, time.monotonic() + _TERM_SECONDS)

    def kill(self) -> None:
        """KILL the agent now."""
        self._signal(signal.SIGKILL)

    def read(self) -> list[Request]:
        """Return the agent's requests; kill the agent if its stream ended or cannot be cut into
        messages."""
        if self._channel is None:
            return []
        try:
            frames = self._channel.read_frames()
        except ValidationError as error:
            self._kill(f"it sent what is no message: {error}")
            self._close_channel()
            return []
        if self._channel.ended:
            self._close_channel()
            if not self._wanted_gone:  # an agent that was told to leave has time for it
                self._kill("it closed its line to the guardian")
            return []
        requests: list[Request] = []
        for frame in frames:
            try:
                requests.append(decode_request(frame))
            except UNREADABLE as error:
                self.refuse(f"{error} (it begins with {frame[:_SHOWN_BYTES].hex()})")
        if requests:
            self._heard_at = time.monotonic()
        return requests

    def refuse(self, reason: str) -> None:
        """Report to the agent that a message could not be read or carried out (AGENT-4)."""
        self._refused += 1
        if self._refused <= _NOTED_REFUSALS:
            self._note(f"a message of the agent is refused: {reason}", count=self._refused)
        self.queue_answer(Unread(count=self._refused, reason=reason[:_MAX_REASON]))

    def flush(self) -> None:
        """Send as many of the queued answers as the socket accepts now, and the others when the
        socket accepts more."""
        if self._channel is not None:
            self._poller.want_to_write(self._channel.fileno(), self._channel.flush())

    def _start(self, now: float) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            self._put_off(now, error)
            return
        try:
            sessions = self.open_session_line()
        except OSError as error:
            ours.close()
            theirs.close()
            self._put_off(now, error)
            return
        self._number += 1
        lines = (theirs, sessions)
        own = {
            "HOLDFAST_GUARDIAN_FD": str(theirs.fileno()),
            "HOLDFAST_SESSIONS_FD": str(sessions.fileno()),
        }
        request = SpawnRequest(
            argv=self._argv,
            env={**self._env, **own},
            pass_fds=(*(line.fileno() for line in lines), *self._pass_fds),
            # SIGCONT wakes a stopped agent when its guardian dies, because it has to sweep the
            # tasks.
            parent_death_signal=signal.SIGCONT,
            descriptor_limit=self._descriptor_limit,
        )
        try:
            self._poller.handle(ours.fileno(), self._hear)
            self._run = self._nursery.start(
                request,
                f"agent-{self._number}",
                # Processes that a dead agent left (a probe, a stack dumper) are killed at once.
                ProgramEvents(exited=self._take_exit, ended=self._nursery.forget),
                trusted=True,
                leftover_grace_seconds=0.0,
                spare_descriptors=_SPARE_DESCRIPTORS,
            )
        except OSError as error:
            self._poller.drop(ours.fileno())
            ours.close()
            self._put_off(now, error)
            return
        finally:
            for line in lines:
                line.close()
        self._channel = FrameLine(ours)
        self.greeted, self._refused = False, 0
        self._started_at = self._heard_at = now
        self._kill_at = INF
        self._wanted_gone = False
        self._note("the agent was started", pid=self._run.pid, number=self._number)

    def _put_off(self, now: float, error: OSError) -> None:
        """Try again later, because the kernel has no resources for an agent now."""
        self._failures += 1
        self._start_at = now + self._backoff_seconds[1]
        self._heard_at = now
        self._note(
            f"the agent could not be started: {error}", again_in_seconds=self._backoff_seconds[1]
        )

    def _take_exit(self, run: ProgramRun) -> None:
        """Plan the next start after an agent's exit."""
        assert run.exit is not None
        now = time.monotonic()
        self._run = None
        self.greeted = False
        self._close_channel()
        self._kill_at = INF
        bad = run.exit.exit_code == EXIT_BAD_CONFIG
        self.bad_configs = self.bad_configs + 1 if bad else 0
        delay = 0.0
        if self._wanted_gone:
            self._failures = 0
        else:
            steady = now - self._started_at >= _STEADY_SECONDS
            self._failures = 1 if steady else self._failures + 1
            if self._failures > 1:
                first, most = self._backoff_seconds
                delay = min(first * 2.0 ** min(self._failures - 2, 30), most)
        self._start_at = now + delay
        failed = run.start_error
        self._note(
            f"the agent could not be started: {failed}" if failed else "the agent ended",
            pid=run.pid,
            exit_code=run.exit.exit_code,
            signal=run.exit.signal,
            wanted=self._wanted_gone,
            again_in_seconds=None if self.retiring else delay,
        )
        self._gone()

    def _kill(self, why: str) -> None:
        if self._run is None:
            return
        if self._kill_at > time.monotonic() or self._kill_at == INF:
            self._note(f"the agent is killed: {why}", pid=self._run.pid)
        self._signal(signal.SIGKILL)
        # An agent that survives SIGKILL (a hung driver) is noted again later, not at every turn.
        self._kill_at = time.monotonic() + _TERM_SECONDS

    def _signal(self, number: int) -> None:
        if self._run is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._run.pid, number)  # not reaped yet, so no other process has this pid

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._poller.drop(self._channel.fileno())
            self._channel.close()
            self._channel = None
