"""Counts of statements: read from PostgreSQL's log, compared with the page of costs."""

from __future__ import annotations

import json
from pathlib import Path

from bench.counts.calls_of_host import count_calls
from bench.counts.counts import Counts, add_up, tell_rises
from bench.counts.statements import OWN_NAME, count_names, count_transactions, read_statements
from bench.counts.table import BEGIN, END, read_page, write_page

from holdfast.store.postgres.connection.queries import QUERIES


def write_log(*told: tuple[str, int], by: str = "", session: int = 1) -> bytes:
    """Lines of the log: each statement, and the number of its transaction if that has written."""
    lines = [
        {
            "message": f"duration: 0.010 ms  execute <unnamed>: {text}",
            "pid": session,
            "txid": txid,
            "application_name": by,
            "backend_type": "client backend",
        }
        for text, txid in told
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def test_a_statement_has_the_name_of_its_query_and_others_their_first_words() -> None:
    asked = QUERIES["read_now"].decode().replace("%(now)s", "$1")
    log = write_log((asked, 0), ("select  1", 0)) + write_log(("select 2", 0), by=OWN_NAME)
    assert count_names(read_statements(log)) == {"read_now": 1, "select 1": 1}


def test_parses_and_binds_are_no_statements() -> None:
    log = write_log(("begin", 0)).replace(b"execute <unnamed>", b"bind <unnamed>")
    assert read_statements(log) == []


def test_a_commit_waits_where_its_transaction_wrote_and_may_not_be_lost() -> None:
    wrote = write_log(("begin", 0), ("insert", 7), ("commit", 0))
    read = write_log(("begin", 0), ("select", 0), ("commit", 0))
    off = ("set local synchronous_commit = off", 0)
    relaxed = write_log(("begin", 0), off, ("insert", 8), ("commit", 0))
    kept = write_log(
        ("begin", 0), off, ("insert", 9), (QUERIES["commit_for_good"].decode(), 9), ("commit", 0)
    )
    lone = write_log(("insert", 10))
    found = [count_transactions(read_statements(log)) for log in (wrote, read, relaxed, kept, lone)]
    assert found == [(1, 1), (1, 0), (1, 0), (1, 1), (0, 1)]


def test_sessions_are_told_apart() -> None:
    ours = write_log(("begin", 0), ("insert", 7), session=1)
    log = ours + write_log(("begin", 0), ("commit", 0), session=2) + write_log(("commit", 0))
    assert count_transactions(read_statements(log)) == (2, 1)


def test_threads_are_no_forks_and_what_failed_counts_nothing() -> None:
    trace = (
        b"1 clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 2\n"
        b"1 vfork() = 3\n"
        b'1 openat(AT_FDCWD, "x", O_WRONLY|O_CREAT, 0600) = 4\n'
        b'1 openat(AT_FDCWD, "y", O_RDONLY) = 5\n'
        b'1 mkdir("z", 0700) = -1 EEXIST (File exists)\n'
        b"1 fdatasync(4) = 0\n"
    )
    assert count_calls(trace) == {"forks": 1.0, "fsyncs": 1.0, "files": 1.0}


def test_a_rise_is_told_and_a_statement_of_a_new_name_is_one() -> None:
    allowed = Counts({"statements": 2.0, "kilobytes": 1.0}, {"begin": 1.0})
    same = Counts({"statements": 2.0, "kilobytes": 1.1}, {"begin": 1.0})
    assert not list(tell_rises(allowed, same))
    more = Counts({"statements": 3.0, "kilobytes": 2.0}, {"begin": 1.0, "new": 1.0})
    assert len(list(tell_rises(allowed, more))) == 3


def test_parts_are_added_by_their_weights() -> None:
    part = Counts({"statements": 5.0}, {"begin": 1.0})
    assert add_up([(0.5, part), (1.0, part)]) == Counts({"statements": 7.5}, {"begin": 1.5})


def test_the_page_says_what_was_counted(tmp_path: Path) -> None:
    page = tmp_path / "costs.md"
    page.write_text(f"# Costs\n{BEGIN}{END}after\n")
    job = Counts(
        {"statements": 2.0, "rows": 1.5}, {"begin": 1.0, "select set_config('a', 'b'": 1.0}
    )
    sync = Counts({"statements": 9.0}, {"begin": 1.0})
    write_page({"a job": job, "gone": sync}, ["a job", "gone"], page)
    write_page({"a sync": sync}, ["a sync", "a job"], page)
    assert read_page(page) == {"a job": job, "a sync": sync}
    assert page.read_text().endswith(f"{END}after\n")
