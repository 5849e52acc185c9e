"""A reliable, ordered channel over frames that may be lost, doubled or swapped, sans I/O. Both ends
use it.

LINK-1  The peer takes every message once, in the order of its queue, as long as the session lasts.
LINK-2  No more than `WINDOW_BYTES` are on their way unacknowledged, so a heartbeat never waits
        behind more than that.
LINK-3  Short messages overtake bulky ones, but user messages never overtake each other.

Frames are numbered; the peer acknowledges the last one taken in order, on every frame it sends. A
frame beyond a gap is not taken; the peer asks for the missing ones, or the sender sends them again
when acknowledgements stand still for `RESEND_SECONDS`. Time is an argument.
"""

from holdfast.wire.bus.messages import FLAG_RESEND, Header, encode_body, encode_header

WINDOW_BYTES = 32 << 20
BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 4096
ACK_BYTES = WINDOW_BYTES // 8
RESEND_SECONDS = 2.0
_BULKY_BYTES = 64 << 10
_ASK_SECONDS = 1.0
# The messages of a frame: encoded one by one, or one by itself.
_Batch = bytes | tuple[bytes, ...]
_Sent = tuple[int, int, _Batch]  # not acknowledged yet: number, bytes, messages


def _encode_batch(batch: _Batch) -> bytes:
    return encode_body((batch,) if isinstance(batch, bytes) else batch)


class Link:
    """One end of one session."""

    __slots__ = (
        "_acked",
        "_asked_at",
        "_bulk",
        "_direction",
        "_inflight",
        "_next",
        "_progress_at",
        "_quick",
        "_taken",
        "_unacked",
        "_untold_bytes",
        "queued_bytes",
        "session",
    )

    def __init__(self, session: int, direction: int = 0) -> None:
        self.session = session
        self._direction = direction  # the flag of what this end sends
        self.queued_bytes = 0  # not sent for the first time yet
        self._next = 1
        self._acked = 0
        self._taken = 0  # the last of the peer's sequence numbers taken
        self._untold_bytes = 0
        self._inflight = 0
        self._progress_at = 0.0
        self._asked_at = -1e9
        # A single item stands without a list: there are thousands of links, most with at most one
        # message on its way, and the garbage collector looks at every list.
        self._quick: bytes | list[bytes] | None = None
        self._bulk: list[bytes] | None = None
        self._unacked: _Sent | list[_Sent] | None = None

    # ---- what goes out

    def push(self, message: bytes) -> None:
        """Queue an encoded message that overtakes bulky messages, because it need not keep their
        order."""
        self.queued_bytes += len(message)
        quick = self._quick
        if quick is None:
            self._quick = message
        elif isinstance(quick, list):
            quick.append(message)
        else:
            self._quick = [quick, message]

    def push_ordered(self, message: bytes) -> None:
        """Queue an encoded user message. Such messages arrive in the order in which this function
        was called (LINK-3)."""
        if self._bulk is not None or len(message) > _BULKY_BYTES:
            self.queued_bytes += len(message)
            if self._bulk is None:
                self._bulk = [message]
            else:
                self._bulk.append(message)
        else:
            self.push(message)

    @property
    def queued(self) -> bool:
        """Return True while a message waits to be sent for the first time."""
        return self._quick is not None or self._bulk is not None

    @property
    def unacknowledged(self) -> bool:
        """Return True while the peer has not acknowledged every message, sent or waiting."""
        return self._unacked is not None or self.queued

    def take_frames(self, now: float) -> list[bytes]:
        """Return the frames that may go out now (LINK-2)."""
        frames: list[bytes] = []
        while (self._quick is not None or self._bulk is not None) and self._inflight < WINDOW_BYTES:
            batch = self._take_batch()
            body = _encode_batch(batch)
            size = len(body)
            sent = (self._next, size, batch)
            empty = self._quick is None and self._bulk is None
            self.queued_bytes = 0 if empty else self.queued_bytes - size
            unacked = self._unacked
            if unacked is None:
                self._unacked = sent
                self._progress_at = now
            elif isinstance(unacked, list):
                unacked.append(sent)
            else:
                self._unacked = [unacked, sent]
            self._inflight += size
            self._untold_bytes = 0
            header = encode_header(self.session, self._next, self._taken, self._direction)
            frames.append(header + body)
            self._next += 1
        return frames

    def _take_batch(self) -> _Batch:
        quick, bulk = self._quick, self._bulk
        if isinstance(quick, bytes):
            if bulk is None:
                self._quick = None
                return quick
            quick = [quick]
        batch: list[bytes] = []
        size = 0
        for queue in (quick, bulk):
            # LINK-3: a bulky message goes alone, and only when no short one waits.
            if queue is None or (queue is bulk and batch):
                continue
            count = 0
            for message in queue[:BATCH_MESSAGES]:
                if count and size + len(message) > BATCH_BYTES:
                    break
                size += len(message)
                count += 1
            batch = queue[:count]
            del queue[:count]
        self._quick, self._bulk = quick or None, bulk or None
        return tuple(batch)

    def take_back(self) -> list[bytes]:
        """Remove and return all messages that the peer has not acknowledged, in order, for the next
        session."""
        messages: list[bytes] = []
        for _, _, batch in self._list_unacked():
            messages += [batch] if isinstance(batch, bytes) else batch
        messages += [self._quick] if isinstance(self._quick, bytes) else self._quick or []
        messages += self._bulk or []
        self._unacked = self._quick = self._bulk = None
        self.queued_bytes = 0
        return messages

    def make_heartbeat(self) -> bytes:
        """Return a frame without messages: it shows that this end lives, and acknowledges the
        frames read so far."""
        self._untold_bytes = 0
        return encode_header(self.session, 0, self._taken, self._direction)

    def take_resends(self, now: float) -> list[bytes]:
        """Return the frames to send again, because the peer has acknowledged nothing for too
        long."""
        if self._unacked is None or now - self._progress_at < RESEND_SECONDS:
            return []
        return self._resend(now)

    def _resend(self, now: float) -> list[bytes]:
        unacked = self._list_unacked()
        self._progress_at = now
        return [self._seal(sequence, _encode_batch(batch)) for sequence, _, batch in unacked]

    def _list_unacked(self) -> list[_Sent]:
        unacked = self._unacked
        return unacked if isinstance(unacked, list) else [] if unacked is None else [unacked]

    def _seal(self, sequence: int, body: bytes) -> bytes:
        self._untold_bytes = 0
        return encode_header(self.session, sequence, self._taken, self._direction) + body

    # ---- what comes in

    def take_header(self, header: Header, size: int, now: float) -> tuple[bool, list[bytes]]:
        """Read the header of a frame of this session. Return whether the messages of the frame must
        be acted on, and the frames to send back at once."""
        replies: list[bytes] = []
        if header.acknowledged > self._acked:
            self._acknowledge(header.acknowledged, now)
        if header.flags & FLAG_RESEND and self._unacked is not None:
            replies += self._resend(now)
        if header.sequence == 0:
            return False, replies
        if header.sequence == self._taken + 1:
            self._taken += 1
            self._untold_bytes += size
            if self._untold_bytes >= ACK_BYTES:
                replies.append(self.make_heartbeat())
            return True, replies
        if header.sequence > self._taken + 1 and now - self._asked_at >= _ASK_SECONDS:
            self._asked_at = now
            flags = self._direction | FLAG_RESEND
            replies.append(encode_header(self.session, 0, self._taken, flags))
        return False, replies

    def _acknowledge(self, sequence: int, now: float) -> None:
        if sequence >= self._next or self._unacked is None:
            return  # an acknowledgement of frames never sent is not our peer's
        self._acked = sequence
        self._progress_at = now
        unacked = self._list_unacked()
        if unacked[-1][0] <= sequence:
            self._inflight = 0
            self._unacked = None
            return
        count = 0
        while unacked[count][0] <= sequence:
            self._inflight -= unacked[count][1]
            count += 1
        del unacked[:count]
