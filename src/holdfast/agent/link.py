"""The agent's end of the line to its guardian: frames out, frames in, and what a broken line means.

HEAR-1  A message that cannot be read is refused, counted and logged with how it begins; the agent
        asks again for all that it may have said (`AgentHello`, answered with everything the
        guardian holds). Nothing is concluded from it.
HEAR-2  A line that cannot be cut into messages any more, or whose message this agent failed to
        carry out, ends this agent alone: the guardian starts another, on a new line (AGENT-3). It
        is no sign that the guardian is gone, and neither is the end of the line: only the
        guardian's death is (`guardian_env.wait_for_guardians_end`).
HEAR-3  A guardian that reads nothing is frozen. The agent then asks for no more time for its tasks,
        because their keepers end them when their leases do, and nothing would tell of it.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import termios
from collections.abc import Callable, Iterator

from holdfast.bounds import UNREADABLE
from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire import guardian as wire
from holdfast.wire.frames import FrameReader, encode_frame

log = logging.getLogger("holdfast.agent.link")

_ACKS_PER_FRAME = 4096
_SHOWN_BYTES = 32
_LOGGED_REFUSALS = 100
_ASK_SECONDS = (0.05, 5.0)  # before asking again, doubling while nothing readable comes
_MAX_ASKED = 10  # in a row


class GuardianLink(asyncio.Protocol):
    """Requests and answers. What is said before the line is open, or after its end, is lost.

    incarnation: a snapshot of another incarnation of the guardian is refused.
    """

    def __init__(self, incarnation: str = "") -> None:
        self._hear: Callable[[wire.Answer], None] = lambda answer: None
        self._lose: Callable[[], None] = lambda: None
        self._incarnation = incarnation
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._hellos = 0
        self._launched: dict[TaskKey, int] = {}  # → how many hellos had been said before
        self._asking: asyncio.TimerHandle | None = None
        self._asked = 0
        self._held: list[bytes] | None = None
        self._deaf_since: float | None = None
        self.refused = 0

    async def open(
        self, fd: int, hear: Callable[[wire.Answer], None], lose: Callable[[], None]
    ) -> None:
        """Take over the socket `fd` and say hello. `hear` gets every answer, the snapshot first; `lose`
        is called once, at the line's end. Raises OSError."""
        self._hear, self._lose = hear, lose
        line = socket.socket(fileno=fd)
        line.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=line)
        self.say_hello()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._deaf_since = None
        try:
            frames = self._reader.feed(data)
        except ValidationError as error:
            self._give_up(
                f"the guardian sent bytes that are no message ({error}; they begin with "
                f"{data[:_SHOWN_BYTES].hex()})"
            )
            return
        for frame in frames:
            try:
                self._take(frame)
            except (ValidationError, *UNREADABLE) as error:
                self._refuse(f"{error} (it begins with {frame[:_SHOWN_BYTES].hex()})")
            except Exception:
                log.exception("a message of the guardian could not be carried out")
                self._give_up("a message of the guardian could not be carried out")
                return

    def _take(self, frame: bytes) -> None:
        answer = wire.decode_answer(frame)
        if isinstance(answer, wire.Unread):
            log.error(
                f"the guardian refused {answer.count} messages of this agent, the last because "
                f"{answer.reason}"
            )
            self._ask_again()
            return
        if isinstance(answer, wire.Snapshot):
            if self._incarnation and answer.incarnation != self._incarnation:
                raise ValidationError(
                    f"a snapshot of incarnation {answer.incarnation!r}, not of "
                    f"{self._incarnation!r}"
                )
            self._asked = 0
        self._hear(answer)

    def _refuse(self, reason: str) -> None:
        """HEAR-1."""
        self.refused += 1
        if self.refused <= _LOGGED_REFUSALS:
            log.error(f"a message of the guardian is refused ({self.refused} so far): {reason}")
        self._ask_again()

    def _ask_again(self) -> None:
        if self._asking is not None or self._transport is None:
            return
        if self._asked >= _MAX_ASKED:
            self._give_up(f"no answer of the guardian can be read, after {self._asked} requests")
            return
        first, most = _ASK_SECONDS
        pause = min(first * 2.0**self._asked, most)
        self._asked += 1
        self._asking = asyncio.get_running_loop().call_later(pause, self.say_hello)

    def say_hello(self) -> None:
        """Ask for everything the guardian holds."""
        self._asking = None
        self._hellos += 1
        self.say(wire.AgentHello(pid=os.getpid(), number=self._hellos))

    def _give_up(self, why: str) -> None:
        """HEAR-2."""
        log.error(f"{why}; this agent ends and the next one goes on, on a new line")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        if self._asking is not None:
            self._asking.cancel()
        self._lose()

    def say(self, request: wire.Request) -> None:
        """Send one message; lost with the line, which then ends this agent anyway."""
        frame = encode_frame(wire.encode(request))
        if self._held is not None:
            self._held.append(frame)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Send what is said meanwhile at once at the end: many short tasks cost one write, and the
        ranks of a gang are stopped together, and looked for once (TREE-5)."""
        held: list[bytes] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            if held and self._transport is not None and not self._transport.is_closing():
                self._transport.write(b"".join(held))

    def say_alive(self, *, holding: bool = False) -> None:
        """Say that the loop turns. `holding`: ends wait for uploads."""
        if not self._count_unread():
            self._deaf_since = None
        elif self._deaf_since is None:
            self._deaf_since = read_boottime()
        self.say(wire.AgentAlive(holding=holding))

    @property
    def deaf_seconds(self) -> float:
        """How long the guardian has neither read nor said anything (HEAR-3)."""
        return 0.0 if self._deaf_since is None else read_boottime() - self._deaf_since

    def _count_unread(self) -> int:
        """Return how many bytes the guardian has not read."""
        if self._transport is None:
            return 0
        line, unread = self._transport.get_extra_info("socket"), array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, unread)
        return unread[0]

    def launch(self, launch: wire.LaunchTask) -> None:
        """Start a task. Raises ValidationError for one that is larger than a frame."""
        self.say(launch)
        self._launched[launch.key] = self._hellos

    def must_be_held(self, key: TaskKey, number: int) -> bool:
        """Whether the launch was said before the hello of this number."""
        return self._launched.get(key, number) < number

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        """Have a task ended: TERM, grace, KILL."""
        self.say(wire.StopTask(key=key, grace_seconds=grace_seconds))

    def extend(self, deadlines: list[tuple[TaskKey, float]]) -> None:
        """Move deadlines later."""
        if deadlines:
            self.say(wire.Extend(deadlines=deadlines))

    def ack(self, keys: list[TaskKey]) -> None:
        """Have the guardian forget ends that are on record."""
        for first in range(0, len(keys), _ACKS_PER_FRAME):
            self.say(wire.Ack(keys=keys[first : first + _ACKS_PER_FRAME]))
        for key in keys:
            self._launched.pop(key, None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()
