"""The host manager's side of the bus, sans I/O: meeting its supervisor, the session, the silence.

MEET-1  A manager belongs to the first run that welcomes it (or the one its key names); frames of
        any other are refused.
- A welcome of an earlier script of the run, late or sent again, ends no session of a later
  one.
SILENCE-1  Silence of the supervisor ends everything here; with an orphan grace only after that.
SILENCE-2  After a stall of the manager itself the supervisor is not judged before it had time to be
           heard again.
SILENCE-3  The time for which this process stood in the queue for a core is no silence of the
           supervisor, because the supervisor's frames may wait in the kernel for a thread that
           cannot run. At most `EXCUSE_SECONDS` are excused, because a script counts on the end of
           hosts that it lost.
OUTBOX-1  Messages that were not acknowledged are sent again in the next session, so that a script
          that was dead learns them.

The shell hands in frames and the time, carries out the messages that `receive` returns, sends the
frames that `take_frames` returns, and calls `tick` at `next_at` at the latest. Before `tick` it
reads all frames that have come, so that a manager that was frozen does not mistake its own sleep
for the supervisor's silence. Once `ending` is set the shell ends its processes, calls `say_bye` and
exits.
"""

from collections import Counter
from collections.abc import Callable

from holdfast.errors import TooLarge, ValidationError
from holdfast.supervisor.line.session_link import Link
from holdfast.wire.bus import messages as wire

HELLO_SECONDS = 1.0
_SLACK_SECONDS = 0.25
EXCUSE_SECONDS = 5.0
_STALL_HEARTBEATS = 1.5  # a manager turns at least once within a heartbeat
_FIRST_HELLO_SECONDS = 0.05  # the first hello is often sent before the connection stands
EXIT_ORPHANED = 70  # the supervisor fell silent
EXIT_NO_SUPERVISOR = 71  # none was found within the patience


class HostSession:
    """One manager's session, from its start to its exit."""

    def __init__(
        self,
        facts: wire.MachineFacts,
        pid: int,
        *,
        now: float,
        patience_seconds: float,
        run: str = "",
        report: Callable[[], list[wire.GroupReport]] = list,
        read_waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begin unconnected, without a session. read_waited: returns the seconds for which this
        process has waited for a core so far."""
        self.facts = facts
        self.run = run
        self.link: Link | None = None
        self.rules: wire.Welcome | None = None
        self.ending: wire.End | None = None
        self.orphaned = False
        self.refused: Counter[str] = Counter()
        self._pid = pid
        self._report = report
        self._read_waited = read_waited
        # This process's waited seconds when the supervisor was heard last, or a little before.
        self._waited = read_waited()
        self._sampled_at = now
        self._give_up_at = now + patience_seconds
        self._heard_at = now
        self._ticked_at = now
        self._judge_at = now
        self._spoke_at = now - HELLO_SECONDS
        self._hello_at: float | None = now  # when the next hello is due; None in a session
        self._hello_seconds = _FIRST_HELLO_SECONDS
        self._beat: bytes | None = None  # the last heartbeat: the next is most likely the same
        self._early: list[bytes] = []
        self._out: list[bytes] = []

    # ---- what goes out

    def push(self, message: bytes) -> None:
        """Queue a message, which is kept until the supervisor acknowledges it."""
        if self.link is None:
            self._early.append(message)
        else:
            self.link.push(message)

    def push_ordered(self, message: bytes) -> None:
        """Queue a message that must not overtake user messages."""
        if self.link is None:
            self._early.append(message)
        else:
            self.link.push_ordered(message)

    def say_bye(self, reason: str, code: int) -> None:
        """Queue the goodbye, which is the last message."""
        self.push_ordered(wire.encode_message(wire.Bye(reason, code)))

    @property
    def settled(self) -> bool:
        """Return True when the supervisor has acknowledged every message."""
        return self.link is None or not self.link.unacknowledged

    def take_frames(self, now: float) -> list[bytes]:
        """Remove and return the frames to send now."""
        frames, self._out = self._out, []
        if self.link is not None and self.link.queued:
            frames += self.link.take_frames(now)
        if frames:
            self._spoke_at = now
        return frames

    # ---- what comes in

    def receive(self, frame: bytes, now: float) -> list[wire.Down]:
        """Read a frame; return the messages to carry out, each for the first and only time."""
        if frame == self._beat:
            self._hear(now)
            return []
        try:
            header = wire.decode_header(frame, wire.FLAG_DOWN)
            link = self.link
            if header.sequence == 0 and len(frame) > wire.HEADER_BYTES:
                for message in wire.decode_down(frame):
                    self._take_unnumbered(message, now)
                return []
            if link is None or header.session != link.session:
                self.refused["session"] += 1
                return []
            self._hear(now)
            if len(frame) == wire.HEADER_BYTES and not header.flags & wire.FLAG_RESEND:
                self._beat = frame
            act, replies = link.take_header(header, len(frame), now)
            self._out += replies
            return wire.decode_down(frame) if act else []
        except TooLarge:
            self.refused["oversized"] += 1
        except ValidationError:
            self.refused["malformed"] += 1
        return []

    def _take_unnumbered(self, message: wire.Down, now: float) -> None:
        if not isinstance(message, wire.Welcome | wire.Who | wire.End):
            self.refused["malformed"] += 1
        elif self.run and message.run != self.run:  # MEET-1
            self.refused["run"] += 1
        elif isinstance(message, wire.Welcome):
            self._welcome(message, now)
        elif isinstance(message, wire.Who):
            self._hear(now)
            self._hello_at = min(self._hello_at or now, now)
        else:
            self._hear(now)
            self.end(message)

    def _welcome(self, welcome: wire.Welcome, now: float) -> None:
        self.run = welcome.run
        self._hear(now)
        if self.link is not None and self.link.session == welcome.session:
            return
        if self.rules is not None and welcome.epoch < self.rules.epoch:
            self.refused["earlier script"] += 1
            return
        kept, self._early = self._early, []
        if self.link is not None:
            kept = self.link.take_back() + kept  # OUTBOX-1
        self.rules = welcome
        self.link = Link(welcome.session)
        self._beat = None
        self._hello_at = None
        self._hello_seconds = _FIRST_HELLO_SECONDS
        for message in kept:
            self.link.push_ordered(message)
        self._out.append(self.link.make_heartbeat())

    def _hear(self, now: float) -> None:
        self._heard_at = now
        self.orphaned = False

    # ---- time

    def end(self, order: wire.End) -> None:
        """Begin to end the session, with this order's exit code and reason. A later order changes
        nothing."""
        if self.ending is None:
            self.ending = order

    def tick(self, now: float) -> None:
        """Do the work that is due. Call this only after all frames that have come were read."""
        if self._hello_at is not None and now >= self._hello_at:
            hello = wire.ManagerHello(wire.VERSION, self.run, self.facts, self._pid, self._report())
            body = wire.encode_body([wire.encode_message(hello)])
            self._out.append(wire.encode_header(0, 0, 0) + body)
            self._hello_at = now + self._hello_seconds
            self._hello_seconds = min(HELLO_SECONDS, self._hello_seconds * 2)
        rules = self.rules
        if rules is None:
            if now >= self._give_up_at:
                self.end(wire.End(self.run, EXIT_NO_SUPERVISOR, "no supervisor was found", 0.0))
            return
        gap, self._ticked_at = now - self._ticked_at, now
        if gap > _STALL_HEARTBEATS * rules.heartbeat_seconds:  # SILENCE-2
            self._judge_at = now + rules.heartbeat_seconds + _SLACK_SECONDS
        silent = now - self._heard_at
        if silent < rules.heartbeat_seconds <= now - self._sampled_at:
            self._waited, self._sampled_at = self._read_waited(), now
        if now >= self._judge_at and silent >= rules.silence_seconds:
            excused = min(EXCUSE_SECONDS, self._read_waited() - self._waited)
            self._judge_silence(silent - excused, rules, now)
        if self.link is not None and now - self._spoke_at >= rules.heartbeat_seconds:
            self._out += self.link.take_resends(now) or [self.link.make_heartbeat()]

    def _judge_silence(self, silent: float, rules: wire.Welcome, now: float) -> None:
        """Act on the supervisor's silence. silent: its seconds, without those that SILENCE-3
        excuses."""
        if silent < rules.silence_seconds:
            self._judge_at = now + _SLACK_SECONDS  # when to look again
            return
        self.orphaned = True
        if silent >= rules.silence_seconds + rules.orphan_grace_seconds:  # SILENCE-1
            reason = f"the supervisor was silent for {silent:.1f} s"
            self.end(wire.End(self.run, EXIT_ORPHANED, reason, rules.kill_grace_seconds))
        elif now - self._heard_at >= rules.silence_seconds + rules.orphan_grace_seconds:
            self._judge_at = now + _SLACK_SECONDS

    @property
    def next_at(self) -> float:
        """Return when `tick` has something to do at the latest."""
        rules = self.rules
        if rules is None:
            due = self._give_up_at
        else:
            due = self._spoke_at + rules.heartbeat_seconds
            if self.ending is None:
                grace = rules.orphan_grace_seconds if self.orphaned else 0.0
                silent_at = self._heard_at + rules.silence_seconds + grace
                due = min(due, max(self._judge_at, silent_at))
        return due if self._hello_at is None else min(due, self._hello_at)

    def may_be_silent(self, now: float) -> bool:
        """Return True where the socket must be read before `tick`."""
        rules = self.rules
        return rules is not None and now - self._heard_at > rules.silence_seconds / 2
