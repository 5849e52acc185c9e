"""A report on the terminal and as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.cli.output import count_columns, printable, unstyle
from holdfast.cli.report.spreadsheet import write_csv
from holdfast.cli.report.tables import draw_idle, draw_report
from holdfast.cli.report.words import name_row
from holdfast.core.report.idle import IdleJob
from tests.unit.cli.report.samples import ledger_sum, lost_of, make_report, usual_report


@pytest.mark.usefixtures("eighty_columns")
def test_a_report_is_readable_on_80_columns() -> None:
    text = draw_report(usual_report())
    assert all(count_columns(line) <= 80 for line in text.splitlines()), text
    for words in (
        "GPU-hours, 19 Nov 2026 00:00 - 26 Nov 2026 12:00 UTC",
        "OWNER",
        "kept: steps that count        110.5 h",
        "$7.75  3.1 h: steps done again after 4 stalls of `train`",
        "saved 2.4 h",
        "(no owner)",
        "13.0 h are without a price",
        "40.0 h are of jobs that send no beats",
        "Some jobs still run",
    ):
        assert words in text


@pytest.mark.parametrize("field", ["job", "owner", "project", "queue", "pool", "label:team"])
def test_hours_without_a_value_are_named_by_what_they_lack(field: str) -> None:
    """Hosts of one's own run jobs, and have no pool."""
    report = make_report(ledger_sum("", "vision", "h1", kept=1.0), by=(field,))
    (text,) = name_row(report.rows[0], (field,))
    assert text == f"(no {field.removeprefix('label:')})"


def test_the_lines_tell_hours_goodput_and_dollars() -> None:
    lines = {
        line.split()[0]: line.split() for line in draw_report(usual_report()).splitlines() if line
    }
    assert lines["ada"][1:7] == ["116.1", "84", "%", "290.25", "245.00", "45.25"]
    assert lines["bob"][1:6] == ["40.0", "-", "100.00", "-", "-"]
    assert lines["cyd"][1:6] == ["13.0", "96", "%", "?", "?"]
    assert lines["total"][1:3] == ["169.1", "86"]


def test_an_empty_span_says_so() -> None:
    assert "no hours are on record" in draw_report(make_report())


names = st.text(max_size=80)


@given(names, names)
@example(" \x1b", "\x1b]0;title\x07")
@example("\x1b[31mred", "\x1b[2J")
def test_no_name_breaks_a_table_or_commands_a_terminal(owner: str, job: str) -> None:
    sums = ledger_sum(owner, "p", "h1", kept=1, lost=3.1)
    text = printable(draw_report(make_report(sums, losses=(lost_of(job),))))
    assert "\x1b" not in unstyle(text)
    assert text.splitlines()[2].startswith("OWNER")


@given(names, names)
def test_csv_holds_every_name_and_no_formula(owner: str, job: str) -> None:
    row = ledger_sum(owner, job, "p", "h1", kept=1.5, idle=0.5)
    text = write_csv(make_report(row, by=("owner", "job")))
    head, line = csv.reader(io.StringIO(text))
    found = dict(zip(head, line, strict=True))
    for field, value in (("owner", owner), ("job", job)):
        line_of = value.replace("\r", " ").replace("\n", " ")
        assert found[field].removeprefix("'") == line_of.removeprefix("'")
        assert not found[field].startswith(("=", "+", "-", "@", "\t"))
    assert (found["hours"], found["goodput"], found["kept_hours"]) == ("2.0000", "0.7500", "1.5000")
    assert (found["usd"], found["useful_usd"], found["idle_hours"]) == (
        "5.0000",
        "3.7500",
        "0.5000",
    )


def test_idle_jobs_are_listed_with_owner_time_and_dollars() -> None:
    job = IdleJob(
        job_id="j1",
        name="sweep",
        project="vision",
        owner="ada",
        queue="gpu",
        gpus=8,
        idle_seconds=5400,
        usd=30.0,
        policy="drain",
    )
    head, line = draw_idle([job]).splitlines()
    assert head.split() == ["JOB", "ID", "OWNER", "PROJECT", "GPUS", "IDLE", "USD", "NEXT"]
    assert line.split() == ["sweep", "j1", "ada", "vision", "8", "1h30m", "30.00", "drain"]
    assert draw_idle([]) == "no job holds idle GPUs"
