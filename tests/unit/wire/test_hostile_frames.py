"""Every kind of message on every line inside a host, fed with values that no sender means: what reads
it refuses it, and goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.uplink.calls import decode_body
from holdfast.bounds import UNREADABLE
from holdfast.controller.calls.call_poll import read_calls
from holdfast.controller.http.bodies import decode_packed, decode_report
from holdfast.controller.sync.reports import read_sync
from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.wire import agent, beat, calls, guardian, health
from holdfast.wire.bus import line as bus_line
from holdfast.wire.bus import local as bus_local
from holdfast.wire.bus import messages as bus
from holdfast.wire.frames import encode_frame
from holdfast.wire.logs import uploads
from holdfast.wire.sessions.websocket import BINARY, MessageReader
from tests.hostile import Maker
from tests.system.agent.guardian_rig import Rig

PACKED = [
    *get_args(guardian.Request | guardian.Answer), *get_args(bus.Up | bus.Down), *get_args(bus_line.ToBus | bus_line.FromBus),
    *get_args(bus_local.WardenRequest | bus_local.WardenAnswer | bus_local.FromProcess),
    calls.ExecutorFrame, calls.AgentFrame, calls.CallsRequest, calls.CallsAnswer, uploads.LogsRequest,
]  # fmt: skip
JSON = [
    beat.Beat, agent.SyncRequest, agent.SyncAnswer, agent.RegisterRequest, agent.RegisterAnswer, agent.Forensics, agent.CheckpointSkip,
    agent.CheckpointOffer, agent.CheckpointStored, uploads.LogsAnswer, health.HealthRequest, health.HealthAnswer,
]  # fmt: skip


@settings(max_examples=settings().max_examples * 4)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(PACKED))
def test_what_is_no_message_is_told_by_the_same_errors(seed: int, kind: Any) -> None:
    """UNREADABLE is all that a reader of msgpack has to catch."""
    data = Maker(seed).encode_packed(kind)
    try:
        msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE:
        pass


READERS: dict[Any, Callable[[bytes], Any]] = {
    agent.SyncRequest: read_sync,
    calls.CallsRequest: read_calls,
    uploads.LogsRequest: lambda body: decode_packed(body, msgspec.msgpack.Decoder(uploads.LogsRequest)),
    health.HealthRequest: lambda body: decode_report(body, msgspec.json.Decoder(health.HealthRequest)),
    agent.SyncAnswer: lambda body: decode_body(agent.decode_sync_answer, body),
    health.HealthAnswer: lambda body: decode_body(health.decode_answer, body),
}  # fmt: skip


@settings(max_examples=settings().max_examples * 4)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(list(READERS)))
def test_readers_refuse_with_an_error_of_ours(seed: int, kind: Any) -> None:
    maker = Maker(seed)
    packed = kind in (calls.CallsRequest, uploads.LogsRequest)
    body = maker.encode_packed(kind) if packed else maker.encode_json(kind)
    try:
        READERS[kind](body)
    except (HoldfastError, Unavailable):
        pass


@settings(max_examples=settings().max_examples * 4)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(JSON))
def test_a_number_that_was_read_is_within_its_bounds(seed: int, kind: Any) -> None:
    try:
        found = msgspec.json.decode(Maker(seed).encode_json(kind), type=kind)
    except UNREADABLE:
        return
    assert max(list_numbers(msgspec.to_builtins(found)), default=0) <= 2**62


def list_numbers(value: Any) -> list[float]:
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [number for each in inner for number in list_numbers(each)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [abs(value)] if is_number else []


@pytest.mark.slow
def test_a_guardian_outlives_whatever_its_agent_says(tmp_path: Path) -> None:
    """LINE-1: three hundred frames, and the next task is started and ends as if there had been none."""
    rig = Rig(tmp_path)
    try:
        rig.start()
        rig.meet()
        pid = rig.guardian.pid
        kinds, known = get_args(guardian.Request), {"argv": [["true"]], "cwd": [str(tmp_path)]}
        for seed in range(3000 if os.environ.get("HOLDFAST_HYPOTHESIS") == "long" else 300):
            maker = Maker(seed, {**known, "argv[]": [["true"]], "stdout": ["/dev/null"], "stderr": ["/dev/null"]})  # fmt: skip
            rig.send_frames(encode_frame(maker.encode_packed(maker.pick(kinds))))
            while rig.hear(0):  # a guardian reads no more from an agent that does not read
                pass
        ended = rig.run_task(["sh", "-c", "exit 7"], job="after")
        assert ended.exit_code == 7
        assert (rig.guardian.pid, rig.guardian.poll()) == (pid, None)
    finally:
        rig.close()


def test_a_message_in_tens_of_thousands_of_pieces_is_joined_as_it_comes() -> None:
    """Each piece costs the same: an agent that added all up anew would stand still for a minute."""
    reader = MessageReader(1 << 17)
    reader.feed(b"\x02\x01a")
    for _ in range(60):
        assert reader.feed(b"\x00\x01a" * 1000) == []
    assert reader.feed(b"\x80\x00") == [(BINARY, b"a" * 60_001)]
    with pytest.raises(ValidationError, match="a message is over"):
        reader.feed(b"\x02\x01a" + b"\x00\x01a" * (1 << 17))


@pytest.mark.parametrize("pieces", [b"\x80\x01a", b"\x02\x01a\x82\x01b"])
def test_a_message_that_lost_a_part_is_none(pieces: bytes) -> None:
    """Its rest is given to no program as if it were the whole."""
    with pytest.raises(ValidationError, match="a message begins within another"):
        MessageReader(1 << 17).feed(pieces)
