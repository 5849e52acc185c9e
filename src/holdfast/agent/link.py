"""Exchange messages with the guardian, over the agent's end of their line (a Unix socket).

HEAR-1  A message that cannot be read is refused, counted and logged with its first bytes. The agent
        concludes nothing from it, and asks for a snapshot (`AgentHello`), which repeats all that
        the message may have said.
HEAR-2  If the bytes of the line cannot be cut into messages any more, or this agent failed to carry
        out a message, this agent alone ends, and the guardian starts another, on a new line
        (AGENT-3). Neither that nor the end of the line proves that the guardian is gone: only its
        death does (`guardian_env.wait_for_guardians_end`).
HEAR-3  A guardian that reads nothing is frozen. The agent then stops asking for renewals of its
        tasks' leases, because their keepers end the tasks with their leases, and no message would
        report that.
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
_ASK_SECONDS = (0.05, 5.0)  # pause before the next hello; doubles while no answer can be read
_MAX_ASKED = 10  # hellos in a row


class GuardianLink(asyncio.Protocol):
    """Sends requests and receives answers. A request that is sent before the line is open, or
    after its end, is lost.

    incarnation: the incarnation of the guardian; a snapshot of another one is refused. refused:
    the number of messages that could not be read.
    """

    def __init__(self, incarnation: str = "") -> None:
        self._hear: Callable[[wire.Answer], None] = lambda answer: None
        self._lose: Callable[[], None] = lambda: None
        self._incarnation = incarnation
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._hellos = 0
        self._launched: dict[TaskKey, int] = {}  # task → number of hellos sent before
        self._asking: asyncio.TimerHandle | None = None
        self._asked = 0
        self._held: list[bytes] | None = None
        self._deaf_since: float | None = None
        self.refused = 0

    async def open(
        self, fd: int, hear: Callable[[wire.Answer], None], lose: Callable[[], None]
    ) -> None:
        """Take over the socket `fd` and send a hello.

        hear: called with every answer, the snapshot first. lose: called once, at the line's end.
        Raises OSError.
        """
        self._hear, self._lose = hear, lose
        line = socket.socket(fileno=fd)
        line.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=line)
        self.say_hello()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport; the event loop calls this."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read messages and pass each answer on; the event loop calls this."""
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
        """Count and log a message that cannot be read, and ask for a snapshot (HEAR-1)."""
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
        """Ask for a snapshot of everything that the guardian knows."""
        self._asking = None
        self._hellos += 1
        self.send_message(wire.AgentHello(pid=os.getpid(), number=self._hellos))

    def _give_up(self, why: str) -> None:
        """Log the reason, and end the line and with it this agent (HEAR-2)."""
        log.error(f"{why}; this agent ends and the next one goes on, on a new line")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the line; the event loop calls this."""
        self._transport = None
        if self._asking is not None:
            self._asking.cancel()
        self._lose()

    def send_message(self, request: wire.Request) -> None:
        """Send the guardian one message. If the line ends, the message is lost, and this agent ends
        as well."""
        frame = encode_frame(wire.encode(request))
        if self._held is not None:
            self._held.append(frame)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Collect the messages that are sent meanwhile, and send them in one write at the end,
        because many short tasks then cost one write, and the ranks of a gang are stopped by one
        search for their processes (TREE-5)."""
        held: list[bytes] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            if held and self._transport is not None and not self._transport.is_closing():
                self._transport.write(b"".join(held))

    def say_alive(self, *, holding: bool = False) -> None:
        """Report to the guardian that the agent's loop turns. holding: True if ends of tasks wait
        for uploads."""
        if not self._count_unread():
            self._deaf_since = None
        elif self._deaf_since is None:
            self._deaf_since = read_boottime()
        self.send_message(wire.AgentAlive(holding=holding))

    @property
    def deaf_seconds(self) -> float:
        """Return the seconds for which the guardian has neither read nor sent anything (HEAR-3)."""
        return 0.0 if self._deaf_since is None else read_boottime() - self._deaf_since

    def _count_unread(self) -> int:
        """Return the number of bytes that the guardian has not read."""
        if self._transport is None:
            return 0
        line, unread = self._transport.get_extra_info("socket"), array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, unread)
        return unread[0]

    def launch(self, launch: wire.LaunchTask) -> None:
        """Have the guardian start a task. Raises ValidationError if the message is larger than a
        frame."""
        self.send_message(launch)
        self._launched[launch.key] = self._hellos

    def must_be_held(self, key: TaskKey, number: int) -> bool:
        """Return True if the launch was sent before the hello of this number."""
        return self._launched.get(key, number) < number

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        """Have the guardian end a task: TERM, grace, KILL."""
        self.send_message(wire.StopTask(key=key, grace_seconds=grace_seconds))

    def extend(self, deadlines: list[tuple[TaskKey, float]]) -> None:
        """Have the guardian move deadlines later."""
        if deadlines:
            self.send_message(wire.Extend(deadlines=deadlines))

    def ack(self, keys: list[TaskKey]) -> None:
        """Have the guardian forget ends that are on record."""
        for first in range(0, len(keys), _ACKS_PER_FRAME):
            self.send_message(wire.Ack(keys=keys[first : first + _ACKS_PER_FRAME]))
        for key in keys:
            self._launched.pop(key, None)

    def close(self) -> None:
        """Close the line."""
        if self._transport is not None:
            self._transport.close()
