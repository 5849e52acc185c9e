"""HTTP-4: the head of an answer and its body leave together."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.controller.http.protocol import JOINED_BYTES, JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Recorder:
    """A transport that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def write_eof(self) -> None:
        self.told.append("eof")

    def close(self) -> None:
        self.told.append("close")

    def is_closing(self) -> bool:
        return False


async def test_a_head_waits_for_its_body_and_for_no_other_turn_of_the_loop() -> None:
    below = Recorder()
    line = JoiningTransport(below, asyncio.get_running_loop())
    line.write(HEAD)
    assert not below.told
    line.write(b"{}")
    assert below.told == [HEAD + b"{}"]
    line.write(b"more")
    assert below.told == [HEAD + b"{}", b"more"]
    line.write(HEAD)
    await asyncio.sleep(0)
    assert below.told[2:] == [HEAD]
    await asyncio.sleep(0)
    assert len(below.told) == 3
    assert not line.is_closing()


async def test_an_answer_without_a_body_keeps_the_next_one_apart() -> None:
    below = Recorder()
    line = JoiningTransport(below, asyncio.get_running_loop())
    line.write(HEAD)
    line.write(b"")
    line.write(HEAD)
    line.write(b"{}")
    assert below.told == [HEAD, HEAD + b"{}"]


@pytest.mark.parametrize("end", ["eof", "close"])
async def test_nothing_is_held_back_at_the_end(end: str) -> None:
    below = Recorder()
    line = JoiningTransport(below, asyncio.get_running_loop())
    line.write(HEAD)
    line.write_eof() if end == "eof" else line.close()
    assert below.told == [HEAD, end]


async def test_a_large_part_is_not_copied() -> None:
    below, part = Recorder(), bytes(JOINED_BYTES)
    line = JoiningTransport(below, asyncio.get_running_loop())
    line.write(HEAD)
    line.write(part)
    assert below.told == [HEAD, part]
    assert below.told[1] is part
