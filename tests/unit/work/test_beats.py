"""`beat`, `section` and `track` over a real datagram socket: what is sent, and that nothing ever
hurts the job."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.wire.beat import MAX_DATAGRAM_BYTES, Beat, decode_beat
from holdfast.work import beats
from holdfast.work.beats import Reporter, Section
from tests.waits import crowding, run_patiently

TASK = "0123456789abcdefghjk:0:3"


class Agent:
    """The agent's end: a bound datagram socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(60)

    def next(self) -> Beat:
        return decode_beat(self.socket.recv(65_536))

    def waiting(self) -> list[Beat]:
        self.socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(decode_beat(self.socket.recv(65_536)))
            except BlockingIOError:
                self.socket.settimeout(60)
                return found

    def die(self) -> None:
        self.socket.close()
        os.unlink(self.address)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    found = Agent(str(tmp_path / "beats"))
    yield found
    found.socket.close()


@pytest.fixture
def reporter(agent: Agent) -> Iterator[Reporter]:
    made = Reporter(TASK, agent.address)
    yield made
    made._line.close()


def section(reporter: Reporter, name: str, timeout: float | None = None) -> Section:
    return Section(name, timeout, lambda: reporter)


def pause_coalescing(reporter: Reporter) -> None:
    """As if the last datagram were long ago."""
    reporter._next_at = 0.0


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ((), Beat(task=TASK)),
        ((0,), Beat(task=TASK, step=0)),
        ((12, 100), Beat(task=TASK, step=12, total=100)),
        ((None, 100), Beat(task=TASK, total=100)),
        ((2**53, 2**53), Beat(task=TASK, step=2**53, total=2**53)),
        ((3.9, 10.0), Beat(task=TASK, step=3, total=10)),
        ((True,), Beat(task=TASK, step=1)),
    ],
)
def test_the_wire_reads_what_beat_writes(
    agent: Agent, reporter: Reporter, given: tuple[int, ...], sent: Beat
) -> None:
    reporter.beat(*given)
    assert agent.next() == sent


class Hostile:
    def __index__(self) -> int:
        raise RuntimeError("no")

    __float__ = __len__ = __index__

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "step", ["x", -1, 2**53 + 1, float("nan"), float("inf"), object(), Hostile(), [], b"\xff"]
)
def test_a_step_that_is_none_still_beats_and_raises_nothing(
    agent: Agent, reporter: Reporter, step: object
) -> None:
    reporter.beat(step, step)
    assert agent.next() == Beat(task=TASK)


def test_close_beats_are_one_datagram_and_the_newest_step_is_not_lost(
    agent: Agent, reporter: Reporter
) -> None:
    reporter._next_at = float("inf")
    for step in range(1000):
        reporter.beat(step, 1000)
    assert agent.waiting() == []
    reporter.flush()
    assert agent.waiting() == [Beat(task=TASK, step=999, total=1000)]
    reporter.flush()
    assert agent.waiting() == []  # once only


def test_a_beat_after_the_interval_is_sent_at_once(agent: Agent, reporter: Reporter) -> None:
    reporter.beat(1)
    assert agent.next().step == 1
    assert 0 < reporter._next_at - time.monotonic() <= beats.COALESCE_SECONDS
    pause_coalescing(reporter)
    reporter.beat()
    assert agent.next().step == 1  # what is known is repeated


def test_a_full_buffer_drops_and_never_waits(agent: Agent, reporter: Reporter) -> None:
    begun = time.monotonic()
    for step in range(5000):
        pause_coalescing(reporter)
        reporter.beat(step)
    assert time.monotonic() - begun < 2.0 * crowding()
    assert reporter._pending
    kept = agent.waiting()
    assert 0 < len(kept) < 5000
    reporter.flush()
    assert agent.next().step == 4999


def test_an_entry_waits_a_little_for_a_full_buffer_and_no_longer(
    agent: Agent, reporter: Reporter
) -> None:
    for step in range(5000):
        pause_coalescing(reporter)
        reporter.beat(step)
    begun = time.monotonic()
    with section(reporter, "never read"):
        entered = time.monotonic() - begun
    assert beats.PATIENCE_SECONDS <= entered < 1.0

    drain = threading.Thread(target=lambda: (time.sleep(0.01), agent.waiting()))
    drain.start()
    with section(reporter, "eval"):
        drain.join()
        pause_coalescing(reporter)
        reporter.beat()
    assert [b.section for b in agent.waiting()][-1] == "eval"


def test_without_an_agent_nothing_happens_and_it_is_found_when_it_comes(tmp_path: Path) -> None:
    address = str(tmp_path / "late")
    reporter = Reporter(TASK, address)
    reporter.beat(1)
    with section(reporter, "eval"):
        reporter.beat(2)
    agent = Agent(address)
    pause_coalescing(reporter)
    reporter.beat(3)
    assert agent.waiting() == []  # at most one attempt a second
    reporter._line._retry_at = 0.0
    pause_coalescing(reporter)
    reporter.beat(4)
    assert agent.next().step == 4
    reporter._line.close()
    agent.die()


def test_a_new_agent_at_the_same_address_is_found(agent: Agent, reporter: Reporter) -> None:
    reporter.beat(1)
    agent.die()
    pause_coalescing(reporter)
    reporter.beat(2)
    second = Agent(agent.address)
    reporter._line._retry_at = 0.0
    pause_coalescing(reporter)
    reporter.beat(3)
    assert second.next().step == 3
    second.socket.close()


@pytest.mark.parametrize("address", ["/nonexistent/x", "x" * 300, "a\x00b", "/dev/null"])
def test_an_impossible_address_is_silent(address: str) -> None:
    reporter = Reporter(TASK, address)
    reporter.beat(1)
    with section(reporter, "s"):
        pass
    reporter.flush()


def test_sections_nest_and_every_datagram_says_where_the_work_is(
    agent: Agent, reporter: Reporter
) -> None:
    with section(reporter, "outer", timeout=600):
        with section(reporter, "inner"):
            pause_coalescing(reporter)
            reporter.beat(5)
        pause_coalescing(reporter)
        reporter.beat(6)
    pause_coalescing(reporter)
    reporter.beat(7)
    assert agent.waiting() == [
        Beat(task=TASK, section="outer", timeout=600.0),
        Beat(task=TASK, section="inner"),
        Beat(task=TASK, section="inner", step=5),
        Beat(task=TASK, section="inner", leave=True),
        Beat(task=TASK, section="outer", timeout=600.0, step=6),
        Beat(task=TASK, section="outer", leave=True),
        Beat(task=TASK, step=7),
    ]


def test_a_remembered_step_goes_out_before_the_section_changes(
    agent: Agent, reporter: Reporter
) -> None:
    reporter.beat(1)
    reporter.beat(2)
    with section(reporter, "eval"):
        pass
    assert [(b.step, b.section, b.leave) for b in agent.waiting()] == [
        (1, None, False),
        (2, None, False),
        (None, "eval", False),
        (None, "eval", True),
    ]


def test_a_section_left_by_an_exception_is_left(agent: Agent, reporter: Reporter) -> None:
    with pytest.raises(KeyError), section(reporter, "eval"):
        raise KeyError
    assert agent.waiting()[-1] == Beat(task=TASK, section="eval", leave=True)


@pytest.mark.parametrize(
    ("name", "timeout"),
    [
        ('say "hi"\\', None), ("tab\tnewline\n\x00", 1), ("é" * 500, 0.5), ("\U0001f600" * 500, 1e9),
        ("\ud800", -3), ("", float("nan")), (7, "600"), ("x", "soon"), ("x", Hostile()), (Hostile(), 5),
        (None, None),
    ],
)  # fmt: skip
def test_any_name_and_timeout_is_sent_readably_or_not_at_all(
    agent: Agent, reporter: Reporter, name: str, timeout: float
) -> None:
    with section(reporter, name, timeout):
        pause_coalescing(reporter)
        reporter.beat(2**53, 2**53)
        assert len(reporter._encode()) <= MAX_DATAGRAM_BYTES
    found = agent.waiting()
    assert all(b.section for b in found[:3]) or isinstance(name, Hostile)
    assert all(b.timeout is None or b.timeout > 0 for b in found)


def test_a_section_may_be_entered_again(agent: Agent, reporter: Reporter) -> None:
    again = section(reporter, "eval")
    for _ in range(2):
        with again:
            pass
    assert [b.leave for b in agent.waiting()] == [False, True, False, True]


def test_threads_send_only_whole_datagrams(agent: Agent, reporter: Reporter) -> None:
    stop = time.monotonic() + 0.3
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while time.monotonic() < stop:
                pause_coalescing(reporter)
                reporter.beat(number, 10)
                with section(reporter, f"s{number}", 5):
                    pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(t.is_alive() for t in threads):
        seen += len(agent.waiting())  # decodes each
    assert not failed
    assert seen > 10


# ---- a real script, in a process of its own

SCRIPT_OUTSIDE = """
import holdfast, sys
holdfast.beat(1)
with holdfast.section("x", timeout=3): pass
assert list(holdfast.track([1, 2])) == [1, 2]
assert "socket" not in sys.modules and "msgspec" not in sys.modules and "json" not in sys.modules
"""


def run_script(script: str, **env: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    done = run_patiently(
        [sys.executable, "-c", script],
        env={**clean, **env},
        seconds=60,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_outside_holdfast_it_does_nothing_and_loads_nothing() -> None:
    run_script(SCRIPT_OUTSIDE)


def test_inside_the_last_step_is_sent_at_exit(agent: Agent) -> None:
    script = "import holdfast\nfor x in holdfast.track(range(50)): pass"
    run_script(script, HOLDFAST_TASK=TASK, HOLDFAST_BEAT_SOCKET=agent.address)
    found = agent.waiting()
    assert found[0] == Beat(task=TASK, step=1, total=50)
    assert found[-1] == Beat(task=TASK, step=50, total=50)


def test_track_beats_after_an_item_was_worked_on_and_works_without_a_length(agent: Agent) -> None:
    script = "import holdfast, time\nfor x in holdfast.track(iter('ab')):\n    time.sleep(0.02)\n    if x == 'b': break\n"
    run_script(script, HOLDFAST_TASK=TASK, HOLDFAST_BEAT_SOCKET=agent.address)
    assert agent.waiting() == [Beat(task=TASK, step=1)]


def test_a_forked_child_speaks_for_itself(agent: Agent) -> None:
    script = (
        "import holdfast, os\n"
        "holdfast.beat(1); holdfast.beat(2)\n"  # 2 is remembered, by the parent alone
        "with holdfast.section('s'):\n"
        "    holdfast.beat(3)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        import time; time.sleep(0.05)\n"
        "        holdfast.beat(7); raise SystemExit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    run_script(script, HOLDFAST_TASK=TASK, HOLDFAST_BEAT_SOCKET=agent.address)
    found = [(b.step, b.section, b.leave) for b in agent.waiting()]
    assert (7, None, False) in found  # not in the parent's section
    assert found.count((2, None, False)) == 1
    assert found.count((None, "s", True)) == 1  # the child's way out ends nothing


def test_a_forked_child_does_not_say_what_its_parent_remembered(agent: Agent) -> None:
    script = (
        "import holdfast, os\n"
        "holdfast.beat(1); holdfast.beat(2)\n"
        "pid = os.fork()\n"
        "if pid == 0: raise SystemExit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    run_script(script, HOLDFAST_TASK=TASK, HOLDFAST_BEAT_SOCKET=agent.address)
    assert [b.step for b in agent.waiting()] == [1, 2]


def test_what_is_lazy_is_found_and_what_is_not_there_is_named() -> None:
    import holdfast

    assert holdfast.__version__
    assert {"Client", "AsyncClient", "beat", "section", "track"} <= set(dir(holdfast))
    with pytest.raises(AttributeError, match="no_such"):
        _ = holdfast.no_such  # type: ignore[attr-defined]  # only log lines were sent


def test_a_wait_for_other_ranks_is_told_with_the_next_step(
    agent: Agent, reporter: Reporter
) -> None:
    """And by no datagram of its own, so that a wait excuses no silence."""
    with section(reporter, "wait"), section(reporter, "wait"):
        pass
    reporter.add_wait(1.5)
    reporter.beat(3, 10)
    (told,) = agent.waiting()
    assert (told.step, told.total, told.section) == (3, 10, None)
    assert told.waited is not None
    assert 1.5 <= told.waited < 2.5
    pause_coalescing(reporter)
    reporter.beat(4)
    assert agent.next().waited == told.waited, "it is the sum since the start"


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("no")


def test_losses_that_are_not_finite_are_counted_until_one_is(
    agent: Agent, reporter: Reporter
) -> None:
    told = []
    for step, loss in enumerate([2.5, float("nan"), float("inf"), "nan", Odd(), 1.0]):
        reporter.tell_loss(loss)
        pause_coalescing(reporter)
        reporter.beat(step)
        told.append(agent.next().nan_beats)
    assert told == [0, 1, 2, 3, 3, 0]


def test_a_beat_without_a_loss_says_nothing_of_it(agent: Agent, reporter: Reporter) -> None:
    reporter.beat(1)
    assert agent.next().nan_beats is None


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (7, "7"),
        (0.5, "0x1.0000000000000p-1"),
        (b"\x01\xff", "01ff"),
        ("abc", "abc"),
        ('"\x00', '"\x00'),
        ("a" * 64, "a" * 64),
    ],
)
def test_a_checksum_is_sent_at_once_as_a_short_text(
    agent: Agent, reporter: Reporter, given: object, sent: str
) -> None:
    reporter.beat(1)
    reporter.beat(2)  # coalesced
    reporter.tell_checksum(given, "tp0")
    first, second = agent.waiting()
    assert (first.step, first.checksum) == (1, None)
    assert second == Beat(task=TASK, step=2, checksum=sent, group="tp0")


def test_a_long_checksum_is_shortened_and_differs_where_the_long_one_does(
    agent: Agent, reporter: Reporter
) -> None:
    reporter.beat(1)
    for long in (b"a" * 1000, b"a" * 1000, b"a" * 999 + b"b"):
        reporter.tell_checksum(long, "")
    _, one, same, other = agent.waiting()
    assert one.checksum == same.checksum != other.checksum


def test_a_checksum_that_is_none_of_these_hurts_no_job(agent: Agent, reporter: Reporter) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    reporter.beat(1)
    reporter.tell_checksum(Bad(), Bad())
    reporter.tell_checksum("", "")
    assert [beat.checksum for beat in agent.waiting()] == [None]
