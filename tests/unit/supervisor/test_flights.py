"""What torch's flight records of many ranks say together, and what is concluded from it."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.supervisor.gather.flights import Flights, judge_flights, merge_flights, read_flights
from holdfast.supervisor.gather.ranks import Looks, look_at_ranks, read_start
from holdfast.supervisor.gather.report import render_report
from holdfast.supervisor.gather.spans import count_ranks, join_spans, list_ranks, make_spans
from holdfast.supervisor.member.flight_records import (
    FILE_VARIABLES,
    PIPE_VARIABLE,
    ask_for_record,
    make_flight_environment,
    name_files,
    name_pipe,
    read_record,
)


def entry(number: int, name: str = "nccl:all_reduce", group: str = "0", **more: Any) -> Any:
    words = (group, "default_pg" if group == "0" else "dp")
    return {
        "process_group": words,
        "collective_seq_id": number,
        "profiling_name": name,
        "input_sizes": [[8, 2]],
        "state": "completed",
        "retired": True,
        **more,
    }


def waits(*words: Any, **more: Any) -> Any:
    return entry(*words, state="started", retired=False, **more)


def record(*entries: Any, ranks: str = "") -> Any:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "entries": list(entries), "pg_config": config}


def merge(records: dict[int, Any]) -> Flights:
    merged: Flights = {}
    for rank, found in records.items():
        merged = merge_flights(merged, read_flights(rank, found))
    return merged


def first(records: dict[int, Any]) -> tuple[list[int], str]:
    verdict = judge_flights(merge(records))[0]
    return list(list_ranks(verdict.ranks)), verdict.sentence


def test_the_rank_that_never_came() -> None:
    records = {r: record(entry(4111), waits(4112)) for r in range(64)}
    records[17] = record(entry(4111))
    assert first(records) == (
        [17],
        "rank 17 never entered all_reduce 4,112 of default_pg, in which 63 ranks (0-16, 18-63) wait",
    )


def test_ranks_that_differ_are_told_apart_before_those_that_are_late() -> None:
    records = {r: record(entry(1), waits(2)) for r in range(3)}
    records[1] = record(entry(1), waits(2, "nccl:all_gather"))
    records[2] = record(entry(1))
    assert first(records) == (
        [0],
        "ranks disagree about number 2 of default_pg: rank 0 entered all_reduce of 8x2, "
        "rank 1 entered all_gather",
    )
    records[1] = record(entry(1), waits(2, input_sizes=[[9, 2]]))
    assert "rank 1 entered all_reduce of 9x2" in first(records)[1]


def test_sizes_that_may_differ_are_no_difference() -> None:
    records = {r: record(waits(2, "nccl:all_gather", input_sizes=[[r]])) for r in range(3)}
    assert (
        first(records)[1] == "3 ranks (0-2) entered all_gather 2 of default_pg and have not left it"
    )


def test_a_rank_that_waits_elsewhere_is_not_to_blame() -> None:
    """FLIGHT-2: rank 1 is absent from the world's collective, because it waits for rank 0."""
    records = {
        0: record(entry(1), entry(1, group="7")),
        1: record(entry(1), entry(1, group="7"), waits(2, group="7")),
        2: record(entry(1), waits(2)),
    }
    ranks, sentence = first(records)
    assert ranks == [0]
    assert sentence.startswith("rank 0 never entered all_reduce 2 of ")


def test_a_rank_without_a_record_is_named_where_the_group_lists_it() -> None:
    records = {r: record(waits(5), ranks="[0, 1, 2]") for r in range(2)}
    assert first(records) == (
        [2],
        "2 ranks (0-1) wait in all_reduce 5 of default_pg, and rank 2 left no record",
    )


def test_a_run_that_goes_on_is_not_judged() -> None:
    assert judge_flights(merge({r: record(entry(1), entry(2)) for r in range(4)})) == []
    assert judge_flights({}) == []
    p2p = {0: record(entry(9, is_p2p=True)), 1: record(entry(1))}
    assert judge_flights(merge(p2p)) == []


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(0, 12),
)
def test_the_order_of_merges_changes_nothing(last: list[int], random: Any, cut: int) -> None:
    """Nor does what the wire makes of it; and the named ranks are those with the least number."""
    records = {
        r: record(*(entry(n) for n in range(1, most)), waits(most)) for r, most in enumerate(last)
    }
    one = merge(records)
    shuffled = list(records)
    random.shuffle(shuffled)
    parts = (
        merge({r: records[r] for r in shuffled[:cut]}),
        merge({r: records[r] for r in shuffled[cut:]}),
    )
    sent = [
        msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(part)), Flights)
        for part in parts
    ]
    assert judge_flights(merge_flights(*sent)) == judge_flights(one)
    (verdict,) = judge_flights(one)
    if min(last) < max(last):
        assert list(list_ranks(verdict.ranks)) == [r for r, n in enumerate(last) if n == min(last)]


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_spans_are_sets(one: set[int], other: set[int]) -> None:
    joined = join_spans(make_spans(one), make_spans(other))
    assert list(list_ranks(joined)) == sorted(one | other)
    assert count_ranks(joined) == len(one | other)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(joined))


def test_the_sentence_joins_records_and_stacks() -> None:
    records = {r: record(entry(1), waits(2)) for r in range(2)} | {2: record(entry(1))}
    looks = Looks(
        texts={"a stack": [[0, 1]], "another": [[2, 2]]},
        places={"all_reduce (torch.py:1)": [[0, 1]], "read (train.py:7)": [[2, 2]]},
        flights=merge(records),
        records=[[0, 2]],
    )
    report = render_report(looks, 4, {"h1": "its cable was cut"}, {})
    assert report.sentence == (
        "rank 2 never entered all_reduce 2 of default_pg, in which 2 ranks (0-1) wait; "
        "rank 2 is in read (train.py:7)"
    )
    assert report.text.startswith(
        report.sentence + "\n\nrank 2:\nanother\n\n2 ranks (0-1):\na stack"
    )
    assert "default_pg: last 1 of rank 2, 2 of 2 ranks (0-1)" in report.text
    assert "rank 3: nothing was heard of there" in report.text
    assert "h1: its cable was cut" in report.text
    assert render_report(Looks(), 0, {}, {}).sentence == "no rank's stacks could be read"


# ---- on the host: torch's pipe and file


def test_a_record_is_asked_for_and_the_new_one_is_read(tmp_path: Path) -> None:
    environ = make_flight_environment(f"{tmp_path}/f-")
    pipe, (file,) = name_pipe(environ, 3), name_files(environ, 3)
    assert pipe is not None
    assert not ask_for_record(environ, 3), "without a pipe nobody is asked"
    os.mkfifo(pipe)
    assert not ask_for_record(environ, 3), "nor where nobody listens"
    listener = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    Path(file).write_bytes(pickle.dumps(record(entry(1))))
    os.utime(file, (1.0, 1.0))
    asked_at = time.time() - 1
    assert ask_for_record(environ, 3)
    assert os.read(listener, 9) == b"1\n"
    os.close(listener)
    whole = pickle.dumps(record(entry(2)))

    def write() -> None:
        Path(file).write_bytes(whole[:20])  # as torch does: not at once
        Path(file).write_bytes(whole)

    threading.Timer(0.3, write).start()
    found = read_record([file], asked_at, time.monotonic() + 20)
    assert found["entries"][0]["collective_seq_id"] == 2


def test_an_old_record_is_better_than_none(tmp_path: Path) -> None:
    file = tmp_path / "r0"
    file.write_bytes(pickle.dumps(record(entry(1))))
    assert read_record([str(tmp_path / "none"), str(file)], time.time() + 60, 0.0) is not None
    assert read_record([str(tmp_path / "none")], 0.0, 0.0) is None


def test_a_record_of_an_earlier_start_is_of_no_rank_that_runs_now(tmp_path: Path) -> None:
    """The run started again in the same folder, and hangs before its first collective."""
    file = tmp_path / "r0"
    file.write_bytes(pickle.dumps(record(entry(7))))
    began = read_start(os.getpid())
    assert time.time() - 3600 * 24 < began < time.time()
    assert read_record([str(file)], 0.0, 0.0, began) is not None, (
        "by itself, as NCCL's watchdog does"
    )
    os.utime(file, (began - 1.0, began - 1.0))
    assert read_record([str(file)], 0.0, 0.0, began) is None
    assert read_start(2**22 + 1) == math.inf
    environ = {PIPE_VARIABLE: str(tmp_path / "p"), FILE_VARIABLES[0]: str(tmp_path / "r")}
    with subprocess.Popen(["/bin/sleep", "60"], env=environ) as process:
        try:
            looks = msgspec.convert(look_at_ranks([[0, process.pid]]), Looks)
            assert looks.flights == {}
            os.utime(file)
            looks = msgspec.convert(look_at_ranks([[0, process.pid]]), Looks)
            assert looks.records == [[0, 0]]
        finally:
            process.kill()


def test_a_record_that_would_call_something_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "r0"
    file.write_bytes(pickle.dumps({"entries": [os.system]}))
    assert read_record([str(file)], 0.0, 0.0) is None
    file.write_bytes(b"no pickle")
    assert read_record([str(file)], 0.0, 0.0) is None


@pytest.mark.parametrize("odd", [None, [], {}, {"entries": [{}]}, {"entries": 3}])
def test_what_is_no_record_is_refused(odd: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        read_flights(0, odd)


def test_two_runs_share_no_pipe() -> None:
    one, other = (name_pipe(make_flight_environment(), 0) for _ in range(2))
    assert one != other


def test_torch_chooses_where_it_is_not_told() -> None:
    assert name_files({"HOME": "/home/me"}, 7) == [
        "/home/me/.cache/torch/comm_lib_trace_rank_7",
        "/tmp/nccl_trace_rank_7",
    ]
    assert name_pipe({}, 7) is None
