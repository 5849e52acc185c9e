"""What is refused on the wire, over the real wire: unknown keys, other runs, and anything that is
no message of ours."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import TooLarge, ValidationError
from holdfast.supervisor import Context
from holdfast.supervisor.line.keys import ManagerKey, make_keys, parse_manager_key
from holdfast.supervisor.line.values import decode_value, encode_value
from holdfast.wire.bus.messages import (
    FLAG_DOWN,
    MAX_FRAME_BYTES,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    VERSION,
    Assembler,
    Bye,
    Deliver,
    LaunchProcesses,
    MachineFacts,
    ManagerHello,
    Welcome,
    cut_parts,
    decode_down,
    decode_header,
    decode_up,
    encode_body,
    encode_header,
    encode_message,
)
from tests.system.supervisor.rig import PATIENCE, Managers, attach, local_context
from tests.waits import wait_until


@contextmanager
def stranger(ctx: Context, key: ManagerKey | None) -> Iterator[zmq.Socket[bytes]]:
    """A socket that speaks to the supervisor as it likes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.rcvtimeo = dealer.sndtimeo = int(PATIENCE * 1000)
    if key is not None and key.client_secret:
        dealer.curve_serverkey = key.server_public.encode()
        dealer.curve_publickey = key.client_public.encode()
        dealer.curve_secretkey = key.client_secret.encode()
    dealer.connect(f"tcp://127.0.0.1:{ctx.port}")
    try:
        yield dealer
    finally:
        dealer.close(linger=0)
        context.term()


def own_key(ctx: Context) -> ManagerKey:
    return parse_manager_key(ctx.key_file.read_bytes())


def hello(run: str = "", version: int = VERSION) -> bytes:
    message = ManagerHello(version, run, MachineFacts(hostname="stranger"), 1)
    return encode_header(0, 0, 0) + encode_body([encode_message(message)])


def refused(ctx: Context, why: str, count: int = 1) -> Callable[[], bool]:
    return lambda: ctx.status().refused.get(why, 0) >= count


def meet(dealer: zmq.Socket[bytes]) -> int:
    """Be welcomed; the session."""
    dealer.send(hello())
    (welcome,) = decode_down(dealer.recv())
    assert isinstance(welcome, Welcome)
    return welcome.session


def say(dealer: zmq.Socket[bytes], frame: bytes) -> None:
    """Send it only while there is a peer: a handshake that was refused leaves a socket without
    one."""
    with contextlib.suppress(zmq.Again):
        dealer.send(frame, zmq.NOBLOCK)


@pytest.mark.slow
def test_an_unknown_key_is_refused_and_counted(ctx: Context, managers: Managers) -> None:
    theirs = make_keys("0" * 32, True)
    own = own_key(ctx)
    mixed = ManagerKey(
        run=own.run,
        server_public=own.server_public,
        client_public=theirs.client_public,
        client_secret=theirs.client_secret,
    )
    with stranger(ctx, mixed) as dealer:
        say(dealer, hello())
        wait_until(refused(ctx, "unknown key"), PATIENCE, what="the refusal of the key")
    with stranger(ctx, None) as dealer:  # no encryption at all
        say(dealer, hello())
        wait_until(refused(ctx, "handshake"), PATIENCE, what="the refusal of plain text")
    with stranger(ctx, theirs.for_managers()) as dealer:  # the wrong server key
        say(dealer, hello())
        wait_until(
            refused(ctx, "handshake", 2), PATIENCE, what="the refusal of the other run's key"
        )
    assert ctx.status().managers_idle == 0
    attach(ctx, managers, 1)


@pytest.mark.slow
def test_garbage_below_the_messages_harms_nobody(ctx: Context, managers: Managers) -> None:
    noises = [
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        os.urandom(4096),
        b"\xff" + bytes(8) + b"\x7f" + os.urandom(500),
    ]
    with ExitStack() as stack:
        for noise in noises:
            talk = stack.enter_context(socket.create_connection(("127.0.0.1", ctx.port)))
            with contextlib.suppress(OSError):  # cut off already
                talk.sendall(noise)
                talk.shutdown(socket.SHUT_WR)
        wait_until(
            lambda: ctx.status().disconnects >= len(noises),
            PATIENCE,
            what="the count of connections that were cut",
        )
        assert f"{len(noises)} disconnects" in str(ctx.status())
        hosts, _ = attach(ctx, managers, 1)
        (process,) = ctx.create_process_group(hosts, ["true"])
        assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_malformed_frames_are_refused_and_never_fatal(patient: Context, managers: Managers) -> None:
    """BUS-1, FLEET-4."""
    patient.request_hosts(1)
    with stranger(patient, own_key(patient)) as dealer:
        session = meet(dealer)
        head = encode_header(session, 1, 0)
        bad = [
            b"",
            b"HF",
            os.urandom(200),
            encode_header(0, 0, 0),
            encode_header(0, 0, 0) + b"\x90",
            encode_header(0, 0, 0) + b"\xc1",
            encode_header(0, 0, 0) + encode_body([encode_message(Bye("x", 0))]),
            head + b"\x91\x93\x63\x01\x02",
            encode_header(session, 2, 0) + b"\x91\x92\x09",
            b"HF\x09" + head[3:],
        ]
        for frame in bad:
            dealer.send(frame)
        wait_until(refused(patient, "malformed", len(bad)), PATIENCE, what="the refusals")
        dealer.send_multipart([hello(), b"more", b"and more"])
        wait_until(
            refused(patient, "malformed", len(bad) + 1),
            PATIENCE,
            what="the refusal of several parts",
        )
        dealer.send(encode_header(session ^ 1, 1, 0))
        wait_until(refused(patient, "session"), PATIENCE, what="the refusal of the session")
        dealer.send(encode_header(0, 0, 0) + b"\x00" * (MAX_FRAME_BYTES + 1))
        wait_until(refused(patient, "oversized"), PATIENCE, what="the refusal of the size")
        before = patient.render_metrics()
        assert 'holdfast_supervisor_refused_total{why="oversized"} 1' in before
        # Far beyond the limit the socket itself hangs up; the next connection is as good as any.
        cut = patient.status().disconnects
        dealer.send(b"\x00" * (3 * MAX_FRAME_BYTES))
        wait_until(
            lambda: patient.status().disconnects > cut, PATIENCE, what="the end of that connection"
        )
    attach(patient, managers, 1)


@pytest.mark.slow
def test_a_manager_speaks_only_for_its_own_host(patient: Context, managers: Managers) -> None:
    """CREW-1."""
    hosts, _ = attach(patient, managers, 1)
    (process,) = patient.create_process_group(hosts, ["sleep", "6000"])
    process.pid().result(PATIENCE)
    hosts += patient.request_hosts(1)
    with stranger(patient, own_key(patient)) as dealer:
        session = meet(dealer)
        assert hosts[1].hostname().result(PATIENCE) == "stranger"
        group = patient.create_process_group(hosts, ["sleep", "6000"])
        wait_until(lambda: group[0].pid().done(), PATIENCE, what="the group's first process")
        lies = [
            Deliver(group.number, 0, encode_value("a lie")),
            Deliver(process.group.number, 0, encode_value("another")),
        ]
        dealer.send(
            encode_header(session, 1, 0) + encode_body([encode_message(lie) for lie in lies])
        )
        wait_until(refused(patient, "foreign rank", 2), PATIENCE, what="the refusal of the lies")
    assert not process.recv().done()
    assert not group[0].recv().done()


@pytest.mark.slow
def test_a_replay_from_an_older_run_changes_nothing(managers: Managers) -> None:
    with local_context(encrypt=False) as first, stranger(first, None) as dealer:
        session = meet(dealer)
        old = [
            hello(first._run.state.run),
            encode_header(session, 1, 0) + encode_body([encode_message(Bye("a replay", 0))]),
        ]
    with local_context(encrypt=False) as ctx:
        attach(ctx, managers, 1)
        with stranger(ctx, None) as dealer:
            for frame in old * 3:
                dealer.send(frame)
            wait_until(refused(ctx, "run", 3), PATIENCE, what="the refusal of the older run")
            wait_until(refused(ctx, "session", 3), PATIENCE, what="the refusal of its session")
        status = ctx.status()
        assert (status.hosts_attached, status.managers_idle) == (1, 0)


@pytest.mark.slow
def test_a_replay_within_the_run_acts_once(patient: Context) -> None:
    """LINK-1 against a peer that says everything three times."""
    (host,) = patient.request_hosts(1)
    with stranger(patient, own_key(patient)) as dealer:
        session = meet(dealer)
        host.hostname().result(PATIENCE)
        (process,) = patient.create_process_group([host], ["true"])
        while not any(
            isinstance(message, LaunchProcesses) for message in decode_down(dealer.recv())
        ):
            pass  # no manager speaks for processes that it has not been given
        words = [
            encode_header(session, n + 1, 0) + encode_body([deliver(process.group.number, n)])
            for n in range(4)
        ]
        for frame in [*words, *words, *reversed(words)]:
            dealer.send(frame)
        assert [process.recv().result(PATIENCE) for _ in range(4)] == [0, 1, 2, 3]
        dealer.send(
            encode_header(session, 5, 0) + encode_body([deliver(process.group.number, "end")])
        )
        assert process.recv().result(PATIENCE) == "end"


def deliver(group: int, value: object) -> bytes:
    return encode_message(Deliver(group, 0, encode_value(value)))


# ---- the codec alone


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_codec(noise: bytes) -> None:
    for frame in (noise, encode_header(1, 1, 0) + noise, encode_header(0, 0, 0) + b"\x91" + noise):
        for decode in (decode_header, decode_up, decode_down):
            try:
                decode(frame)
            except (ValidationError, TooLarge):
                pass


def test_a_frame_that_comes_back_to_its_sender_is_refused() -> None:
    for direction in (0, FLAG_DOWN):
        frame = encode_header(1, 1, 0, direction)
        assert decode_header(frame, direction).sequence == 1
        with pytest.raises(ValidationError, match="came back"):
            decode_header(frame, direction ^ FLAG_DOWN)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value: object) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        2**70,
        {"a": [print]},
        {(1, 2): 3},
        [b"x", {"y": object}],
        1j,
        Exception("x"),
    ],
)
def test_other_values_are_refused_with_words(value: object) -> None:
    with pytest.raises(ValidationError, match=r"cannot be"):
        encode_value(value)


def test_arrays_of_objects_are_refused_both_ways() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ValidationError, match="ndarray cannot be sent"):
        encode_value(numpy.array([object()]))
    assert decode_value(encode_value(numpy.float32(1.5))) == 1.5
    assert (decode_value(encode_value({"a": numpy.zeros((0, 3))}))["a"]).shape == (0, 3)
    import msgspec

    forged = msgspec.msgpack.encode(
        msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|O", [1], b"\0" * 8)))
    )
    with pytest.raises(ValidationError, match="no plain number"):
        decode_value(forged)
    with pytest.raises(ValidationError, match="unknown extension"):
        decode_value(msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"")))
    with pytest.raises(ValidationError, match="cannot be read"):
        decode_value(
            msgspec.msgpack.encode(
                msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("<f8", [9], b"")))
            )
        )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 3 * MAX_INLINE_BYTES))
def test_parts_make_the_message_again(size: int) -> None:
    data = b"\xa5" * size
    cuts = cut_parts(data)
    assert (len(cuts) == 1) == (size <= MAX_INLINE_BYTES)
    assembler = Assembler()
    found = [assembler.add(*cut) for cut in cuts]
    assert found[-1] == data
    assert found[:-1] == [None] * (len(cuts) - 1)
    if len(cuts) > 2:  # a tail whose head was lost is no message, and the next one is whole
        assert [assembler.add(*cut) for cut in cuts[1:]] == [None] * (len(cuts) - 1)
        assert [assembler.add(*cut) for cut in cuts][-1] == data


def test_a_message_beyond_all_limits_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_MESSAGE_BYTES + 1

    with pytest.raises(TooLarge, match="put it in a file"):
        cut_parts(Huge())


def test_keys_are_judged() -> None:
    for text in ("", "{}", '{"run": "x", "server_public": "short"}'):
        with pytest.raises(ValidationError):
            parse_manager_key(text)
    keys = make_keys("r", True)
    assert keys.server_secret not in str(keys.for_managers())
