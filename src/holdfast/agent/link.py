"""The agent's end of the line to its guardian: frames out, frames in, and what a broken line means."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.wire.frames import FrameReader, encode_frame
from holdfast.wire.guardian import (
    Ack,
    Alive,
    Answer,
    Extend,
    Hello,
    Launch,
    Request,
    Stop,
    decode_answer,
    encode,
)

log = logging.getLogger("holdfast.agent.link")

_ACKS_PER_FRAME = 4096


class GuardianLink(asyncio.Protocol):
    """Say what is wanted, hear what happened. `hear` gets every answer; `lose` is called once when the line ends."""

    def __init__(self, hear: Callable[[Answer], None], lose: Callable[[], None]) -> None:
        self._hear = hear
        self._lose = lose
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, fd: int, hear: Callable[[Answer], None], lose: Callable[[], None]) -> GuardianLink:
        """Take over the socket `fd` and say hello; the snapshot comes to `hear`. Raises OSError."""
        line = socket.socket(fileno=fd)
        line.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(hear, lose), sock=line)
        link.say(Hello(pid=os.getpid()))
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            answers = [decode_answer(frame) for frame in self._reader.feed(data)]
        except (ValidationError, msgspec.MsgspecError) as error:
            log.error(f"the guardian sent what is no message; starting again: {error}")
            self.close()
            return
        for answer in answers:
            self._hear(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._lose()

    def say(self, request: Request) -> None:
        """Send one message; lost with the line, which then ends this agent anyway."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(encode(request)))

    def say_alive(self, *, holding: bool = False) -> None:
        """The loop turns; `holding`: ends wait for uploads."""
        self.say(Alive(holding=holding))

    def launch(self, launch: Launch) -> None:
        """Start a task."""
        self.say(launch)

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        """TERM, grace, KILL."""
        self.say(Stop(key=key, grace_seconds=grace_seconds))

    def extend(self, deadlines: list[tuple[TaskKey, float]]) -> None:
        """Move deadlines later."""
        if deadlines:
            self.say(Extend(deadlines=deadlines))

    def ack(self, keys: list[TaskKey]) -> None:
        """These ends are on record."""
        for first in range(0, len(keys), _ACKS_PER_FRAME):
            self.say(Ack(keys=keys[first : first + _ACKS_PER_FRAME]))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()
