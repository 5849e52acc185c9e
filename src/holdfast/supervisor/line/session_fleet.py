"""The supervisor's side of the bus, sans I/O: every manager's session, its liveness and its loss.

FLEET-1  A host is lost when nothing of it was heard for `loss_seconds`; it is given up for good,
         and told to end whenever it speaks again.
FLEET-2  Expiry looks only at the peer heard longest ago: all share one limit, so the order of
         hearing is the order of expiry, and a healthy fleet costs nothing.
FLEET-3  After a stall of the supervisor itself no peer is judged before it had time to be heard
         again.
FLEET-4  A frame of another run, of an unknown session or of a stranger changes nothing and is
         counted.
FLEET-5  Silence is measured up to the instant up to which everything was read: frames that came but
         were not read yet are no silence.
FLEET-6  Where half of the fleet or more falls silent within one heartbeat, the listener may be at
         fault: a host then counts as silent only after twice the limit.
FLEET-7  The time for which this process stood in the queue for a core is no silence of a host, because
         frames may wait in the kernel for a thread that cannot run, and a host on this machine may
         stand in the same queue. At most `EXCUSE_SECONDS` are excused.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from itertools import takewhile

import msgspec

from holdfast.errors import TooLarge, ValidationError
from holdfast.supervisor.line.session_link import Link
from holdfast.wire.bus import messages as bus

HEARTBEAT_SECONDS = 1.0
MISSES = 3
# The last missed heartbeat is due exactly at the limit; jitter of a loop must not decide about a
# loss.
SLACK_SECONDS = 0.25
KILL_GRACE_SECONDS = 5.0
EXIT_GIVEN_UP = 73
_MAX_GIVEN_UP = 100_000
# Managers spoken to in one turn: a message to all of a large fleet must not delay the reading.
_BURST = 2048
_INF = float("inf")
_STALL_SECONDS = 1.5  # half a second more than the loop ever sleeps
EXCUSE_SECONDS = 5.0
_FEW_HOSTS = 3  # fewer that fall silent at once are no evidence against the listener


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of one context. loss_seconds: the limit of silence on both sides."""

    heartbeat_seconds: float = HEARTBEAT_SECONDS
    loss_seconds: float = HEARTBEAT_SECONDS * MISSES + SLACK_SECONDS
    orphan_grace_seconds: float = 0.0
    kill_grace_seconds: float = KILL_GRACE_SECONDS


class ManagerPeer:
    """One manager that was welcomed. number: its number, which is never used twice."""

    __slots__ = ("beat", "dirty", "heard_at", "identity", "link", "number", "spoke_at", "welcome")

    def __init__(
        self, number: int, identity: bytes, link: Link, welcome: bytes, now: float
    ) -> None:
        self.number = number
        self.identity = identity
        self.link = link
        self.welcome = welcome
        self.beat: bytes | None = None  # its last heartbeat: the next is most likely the same bytes
        self.heard_at = now
        self.spoke_at = now
        self.dirty = False


class Fleet:
    """All managers of one context. One thread owns it."""

    def __init__(
        self,
        run: str,
        epoch: int,
        rules: Rules,
        make_session: Callable[[], int],
        now: float,
        *,
        read_waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Make a fleet without managers. read_waited: returns the seconds for which this process
        has waited for a core so far."""
        self.run = run
        self.epoch = epoch
        self.rules = rules
        self.refused: Counter[str] = Counter()
        self.peers: OrderedDict[bytes, ManagerPeer] = OrderedDict()  # heard longest ago first
        self.out: list[tuple[bytes, bytes]] = []
        # Since the roster looked last: welcomed; given up, came back, and said goodbye.
        self.came: list[tuple[ManagerPeer, bus.ManagerHello]] = []
        self.left: list[bytes] = []
        self.resent = 0
        self._next_number = 1
        self._spoken: OrderedDict[bytes, ManagerPeer] = OrderedDict()
        self._given_up: OrderedDict[bytes, bytes] = OrderedDict()
        self._make_session = make_session
        self._dirty: list[ManagerPeer] = []
        self._ticked_at = now
        self._judge_at = now
        self._read_waited = read_waited
        # (time, seconds waited until then), one each heartbeat, for as long as a silence may last
        self._waits = deque([(now, read_waited())])

    # ---- what comes in

    def take_beat(self, identity: bytes, frame: bytes, now: float) -> bool:
        """Read a heartbeat that is equal to the manager's heartbeat before, by one comparison.
        Returns False for other frames."""
        peer = self.peers.get(identity)
        if peer is None or frame != peer.beat:
            return False
        peer.heard_at = now
        self.peers.move_to_end(identity)
        return True

    def note_life(self, identity: bytes, now: float) -> None:
        """Count a frame as a sign of life and drop its messages, which its sender sends again."""
        peer = self.peers.get(identity)
        if peer is not None:
            peer.heard_at = now
            self.peers.move_to_end(identity)

    def receive(self, identity: bytes, frame: bytes, now: float) -> ManagerPeer | None:
        """Read a frame. Returns its peer where the frame's messages must be acted on, each only
        once; else None."""
        try:
            header = bus.decode_header(frame)
            peer = self.peers.get(identity)
            if peer is None or header.session != peer.link.session:
                self._receive_stranger(identity, frame, header.session, now)
                return None
            peer.heard_at = now
            self.peers.move_to_end(identity)
            if len(frame) == bus.HEADER_BYTES and not header.flags & bus.FLAG_RESEND:
                peer.beat = frame
            act, replies = peer.link.take_header(header, len(frame), now)
            for reply in replies:
                self._speak(peer, reply, now)
            if peer.link.queued and not peer.dirty:
                self._mark(peer)  # the window may have opened
            return peer if act else None
        except TooLarge:
            self.refused["oversized"] += 1
        except ValidationError:
            self.refused["malformed"] += 1
        return None

    def _receive_stranger(self, identity: bytes, frame: bytes, session: int, now: float) -> None:
        given_up = self._given_up.get(identity)
        if given_up is not None:  # FLEET-1
            self.refused["given up"] += 1
            self.out.append((identity, given_up))
            if any(isinstance(message, bus.Bye) for message in bus.decode_up(frame)):
                self.left.append(identity)
            return
        if session:
            self.refused["session"] += 1
            self.out.append(
                (identity, self._seal_unnumbered(0, bus.encode_message(bus.Who(self.run))))
            )
            return
        for message in bus.decode_up(frame) or (None,):
            if not isinstance(message, bus.ManagerHello):
                self.refused["malformed"] += 1
            elif message.version != bus.VERSION:
                self.refused["version"] += 1
            elif message.run not in ("", self.run):  # FLEET-4
                self.refused["run"] += 1
            else:
                self._welcome(identity, message, now)

    def _welcome(self, identity: bytes, hello: bus.ManagerHello, now: float) -> None:
        peer = self.peers.get(identity)
        if peer is None:
            session = self._make_session()
            rules = self.rules
            welcome = bus.Welcome(
                run=self.run,
                epoch=self.epoch,
                session=session,
                heartbeat_seconds=rules.heartbeat_seconds,
                silence_seconds=rules.loss_seconds,
                orphan_grace_seconds=rules.orphan_grace_seconds,
                kill_grace_seconds=rules.kill_grace_seconds,
            )
            frame = self._seal_unnumbered(session, bus.encode_message(welcome))
            peer = ManagerPeer(
                self._next_number, identity, Link(session, bus.FLAG_DOWN), frame, now
            )
            self._next_number += 1
            self.peers[identity] = peer
            self._spoken[identity] = peer
            self.came.append((peer, hello))
        else:
            peer.heard_at = now
            self.peers.move_to_end(identity)
        self._speak(peer, peer.welcome, now)

    # ---- what goes out

    def push(self, peer: ManagerPeer, message: bytes) -> None:
        """Queue a message for one manager."""
        peer.link.push(message)
        if not peer.dirty:
            self._mark(peer)

    def push_ordered(self, peer: ManagerPeer, message: bytes) -> None:
        """Queue a message that must not overtake user messages."""
        peer.link.push_ordered(message)
        if not peer.dirty:
            self._mark(peer)

    def _mark(self, peer: ManagerPeer) -> None:
        peer.dirty = True
        self._dirty.append(peer)

    def take_outgoing(self, now: float) -> list[tuple[bytes, bytes]]:
        """Remove and return frames to send now, as (identity, frame); more may be left
        (`has_more`)."""
        out, self.out = self.out, []
        dirty, self._dirty = self._dirty[:_BURST], self._dirty[_BURST:]
        spoken = self._spoken
        for peer in dirty:
            peer.dirty = False
            identity = peer.identity
            if identity not in spoken:
                continue  # given up meanwhile
            for frame in peer.link.take_frames(now):
                out.append((identity, frame))
            peer.spoke_at = now
            spoken.move_to_end(identity)
        return out

    @property
    def has_more(self) -> bool:
        """Return True while messages are queued that `take_outgoing` left."""
        return bool(self._dirty)

    def give_up(self, peer: ManagerPeer, code: int, reason: str) -> None:
        """Forget a manager and tell it to end, now and whenever it sends a frame again."""
        self.bar(peer.identity, code, reason)
        self._forget(peer, self._given_up[peer.identity])

    def bar(self, identity: bytes, code: int, reason: str) -> None:
        """Send a manager the order to end, if it ever sends a frame again."""
        order = bus.End(self.run, code, reason, self.rules.kill_grace_seconds)
        self._given_up[identity] = self._seal_unnumbered(0, bus.encode_message(order))
        if len(self._given_up) > _MAX_GIVEN_UP:
            self._given_up.popitem(last=False)

    def dismiss(self, peer: ManagerPeer) -> None:
        """Forget a manager that said goodbye, and acknowledge the goodbye, so that the manager need
        not wait."""
        self._forget(peer, peer.link.make_heartbeat())

    def _forget(self, peer: ManagerPeer, last_frame: bytes) -> None:
        if self.peers.pop(peer.identity, None) is not None:
            self._spoken.pop(peer.identity, None)
            self.out.append((peer.identity, last_frame))

    def _speak(self, peer: ManagerPeer, frame: bytes, now: float) -> None:
        self.out.append((peer.identity, frame))
        peer.spoke_at = now
        self._spoken.move_to_end(peer.identity)

    def _seal_unnumbered(self, session: int, message: bytes) -> bytes:
        return bus.encode_header(session, 0, 0, bus.FLAG_DOWN) + bus.encode_body([message])

    # ---- time

    def tick(self, now: float, read_until: float | None = None) -> list[ManagerPeer]:
        """Send the frames that are due; return the peers that fell silent (not given up yet). Call
        this only after all frames that have come were read.

        read_until: the time up to which every frame that had come was read; None is now.
        """
        gap, self._ticked_at = now - self._ticked_at, now
        if gap > _STALL_SECONDS:  # FLEET-3
            self._judge_at = max(self._judge_at, now + self.rules.heartbeat_seconds + SLACK_SECONDS)
        self._send_heartbeats(now)
        self._sample_waits(now)
        lost: list[ManagerPeer] = []
        if now >= self._judge_at:
            read_until = now if read_until is None else min(now, read_until)  # FLEET-5
            limit = self.rules.loss_seconds
            lost = self._list_silent(read_until - limit)
            if lost and self._is_listener_suspect(lost[0].heard_at):
                limit *= 2
            if lost:
                waited = self._read_waited()
                lost = [p for p in lost if self._count_silence(p, read_until, waited) >= limit]
        return lost

    def _sample_waits(self, now: float) -> None:
        if now - self._waits[-1][0] < self.rules.heartbeat_seconds:
            return
        self._waits.append((now, self._read_waited()))
        oldest = now - 2 * self.rules.loss_seconds - EXCUSE_SECONDS
        while len(self._waits) > 1 and self._waits[1][0] <= oldest:
            self._waits.popleft()

    def _count_silence(self, peer: ManagerPeer, read_until: float, waited: float) -> float:
        """Return a peer's silence in seconds, without those that FLEET-7 excuses. waited: for how long
        this process has waited for a core so far."""
        before = self._waits[0][1]
        for at, then in self._waits:
            if at > peer.heard_at:
                break
            before = then
        return read_until - peer.heard_at - min(EXCUSE_SECONDS, waited - before)

    def _list_silent(self, limit: float) -> list[ManagerPeer]:
        """Return the peers from which nothing was heard since `limit` (FLEET-2)."""
        return list(takewhile(lambda peer: peer.heard_at <= limit, self.peers.values()))

    def _is_listener_suspect(self, silent_since: float) -> bool:
        """Return whether so many peers fell silent at once that the listener may be at fault
        (FLEET-6)."""
        count = len(self._list_silent(silent_since + self.rules.heartbeat_seconds))
        return count >= max(_FEW_HOSTS, len(self.peers) / 2)

    def _send_heartbeats(self, now: float) -> None:
        limit = now - self.rules.heartbeat_seconds
        due: list[ManagerPeer] = []
        for peer in self._spoken.values():
            if peer.spoke_at > limit or len(due) == _BURST:
                break
            due.append(peer)
        for peer in due:
            frames = peer.link.take_resends(now)
            self.resent += len(frames)
            for frame in frames or (peer.link.make_heartbeat(),):
                self._speak(peer, frame, now)

    @property
    def speak_at(self) -> float:
        """Return when `tick` has something to send at the latest; infinity without peers."""
        if not self._spoken:
            return _INF
        return next(iter(self._spoken.values())).spoke_at + self.rules.heartbeat_seconds

    @property
    def silent_at(self) -> float:
        """Return when the silence of the peer heard longest ago reaches the limit; infinity without
        peers."""
        if not self.peers:
            return _INF
        heard_at = next(iter(self.peers.values())).heard_at
        return max(heard_at + self.rules.loss_seconds, self._judge_at)
