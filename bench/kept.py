"""The run that the docs keep: its rows, what became worse since, and the table that is made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bench.figures import Figures, Line, number_of

KEPT_FILE = Path("docs/reference/benchmarks.json")
PAGE = Path("docs/reference/benchmarks.md")
MARKERS = ("<!-- kept: begin -->", "<!-- kept: end -->")
WORSE_PART = 0.1
_FIRST = re.compile(r"(<=|>=|<|>|≤|≥)")

HEADLINES = (
    ("true", "/bin/true, 2 slots", "`/bin/true` jobs ÷ bare fork-exec-wait, 2 slots"),
    ("true", "/bin/true, 16 slots", "the same, 16 slots"),
    ("true", "a job with 2 slots: CPU, all", "CPU of such a job, all parts together, 2 slots"),
    ("true", "a job with 16 slots: CPU, all", "the same, 16 slots"),
    (
        "latency",
        "submit to process start, p50",
        "idle submit → start, p50 ÷ bare HTTP and fork-exec",
    ),
    ("latency", "submit to process start, p99", "the same, p99"),
    ("calls", "map through up", "Python calls by `map` ÷ raw claim loop"),
    ("calls", "share of its slot", "share of its slot that calls of 1 ms keep busy"),
    ("gang-restart", "", "one of 8 ranks killed → 8 running ÷ bare loop"),
    ("exit", "", "a killed task → known to its agent"),
    ("trip", "", "a trip → run again, over timeout and confirmation"),
    ("start", "holdfast up, from nothing", "`holdfast up` from nothing"),
    ("start", "holdfast up beside", "the same beside 8 burners ÷ its bare steps in turn"),
    ("start", "hosts lost", "hosts lost, trips and lapsed leases beside 8 burners"),
    ("sync", "10 000", "10,000 agents, cores of the controller"),
    ("idle", "controller: CPU", "idle controller"),
    ("code", "first upload", "`--workdir` of 10,000 files ÷ `tar` through a socket"),
    ("code", "unchanged", "nothing changed in it, over `holdfast version`"),
    ("sessions", "exec JOB", "`exec JOB -- true` over `holdfast version`"),
    ("sessions", "echo beside 50 MB/s", "a key's echo beside 50 MB/s, p99"),
    ("pages", "page now, of a core", "page *Now* with 100,000 jobs, of a core"),
    ("pages", "page job, of a core", "the page of one of them, of a core"),
    ("why", "", "`why` of a job among 100,000, of a core"),
)
"""The rows by which a user decides: case, beginning of the row, and the words of the docs."""

Direction = Literal["less", "more"]


class KeptRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row with a budget. judged: the figure that the budget is about (`judge`), and by which two
    runs are compared. shown: the value as the table shows it, with its unit. commit: where the row
    was carried over from an earlier run, the commit of that.
    """

    case: str
    what: str
    budget: str
    judged: float
    shown: str
    met: bool
    commit: str = ""


class KeptRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: of which commit, when (UTC), on which machine, and its rows with budgets."""

    commit: str = ""
    at: str = ""
    machine: dict[str, str] = {}
    rows: tuple[KeptRow, ...] = ()


def judge(line: Line) -> float:
    """Return the figure that a line's budget is about: the ratio where the budget says "x", the
    difference where it says "over", and the value elsewhere."""
    ratio = line.ratio
    if ratio is not None and re.search(r" x\b|×|\bratio\b", line.budget):
        return ratio
    if line.limit is not None and re.search(r"\bover\b", line.budget):
        return line.value.median - line.limit.median
    return line.value.median


def read_direction(budget: str) -> Direction:
    """Return which figures are the better ones: more where the budget's first sign is at least,
    less elsewhere."""
    found = _FIRST.search(budget)
    return "more" if found is not None and found[1] in (">=", ">", "≥") else "less"


def list_rows(figures: Sequence[Figures]) -> tuple[KeptRow, ...]:
    """Return the rows of a run that have a budget."""
    return tuple(
        KeptRow(
            case=each.name,
            what=line.what,
            budget=line.budget,
            judged=float(f"{judge(line):.4g}"),
            shown=_show(line),
            met=bool(line.met),
        )
        for each in figures
        for line in each.lines
        if line.budget
    )


def _show(line: Line) -> str:
    shown = f"{number_of(line.value.median)} {line.unit}".strip()
    figure = judge(line)
    if figure == line.value.median:
        return shown
    kind = "" if line.ratio != figure else " x"
    return f"{number_of(figure)}{kind or ' over'} ({shown})"


def _name(row: KeptRow) -> tuple[str, str]:
    """Return what a row is called in every run: without what was measured beside it."""
    return row.case, re.sub(r" *\([^)]*\)|;.*", "", row.what)


def is_worse(before: KeptRow, now: KeptRow) -> bool:
    """Return whether a row is worse by more than a tenth than it was, or has lost its budget."""
    if before.met and not now.met and before.budget == now.budget:
        return True
    step = WORSE_PART * abs(before.judged)
    if read_direction(now.budget) == "more":
        return now.judged < before.judged - step
    return now.judged > before.judged + step


def list_warnings(kept: KeptRun, rows: Sequence[KeptRow], cases: Sequence[str]) -> list[str]:
    """Return a sentence for each row with a budget that is worse than in the kept run, and for each
    kept row of `cases`, which were run, that was not measured now."""
    now = {_name(row): row for row in rows}
    found = []
    for before in kept.rows:
        row = now.get(_name(before))
        if row is None and before.case in cases:
            found.append(
                f"WARNING {before.case}, {before.what}: not measured now; was {before.shown}"
            )
        elif row is not None and is_worse(before, row):
            found.append(
                f"WARNING {row.case}, {row.what}: {row.shown} now, {before.shown} in the run kept of "
                f"{kept.at or 'an unknown day'} ({kept.commit or 'no commit'}); budget {row.budget}"
            )
    return found


def merge(kept: KeptRun, run: KeptRun, cases: Sequence[str]) -> KeptRun:
    """Return the run to keep: the new rows, and the kept rows of all cases but `cases`, which were
    run. A case that failed has no rows then, because what it was is no figure of today."""
    left = tuple(
        msgspec.structs.replace(row, commit=row.commit or kept.commit)
        for row in kept.rows
        if row.case not in cases
    )
    return msgspec.structs.replace(run, rows=(*run.rows, *left))


def read_kept(root: Path) -> KeptRun:
    """Return the kept run; an empty one where none is kept yet."""
    path = root / KEPT_FILE
    return msgspec.json.decode(path.read_bytes(), type=KeptRun) if path.exists() else KeptRun()


def encode(run: KeptRun) -> bytes:
    """Return the run as the file keeps it."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def render(run: KeptRun) -> str:
    """Return the table of the docs: the rows of `HEADLINES`, and how many others miss a budget."""
    if not run.rows:
        return "No run is kept yet: `make bench-keep` measures one and writes it here."
    rows = [
        f"| {words} | {row.budget} | {row.shown if row.met else f'**{row.shown}**'} |"
        for case, begin, words in HEADLINES
        for row in run.rows
        if row.case == case and row.what.startswith(begin)
    ]
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    missed = sorted({f"`{row.case}`" for row in run.rows if not row.met})
    names = f" (in {', '.join(missed)})" if missed else ""
    count = sum(not row.met for row in run.rows)
    old = sorted({row.commit for row in run.rows if row.commit})
    return "\n".join(
        [
            f"Commit {run.commit}, {run.at[:10]}; {machine}.",
            *([f"Some rows are of {', '.join(old)}."] if old else []),
            "",
            "| figure | to reach | measured |",
            "|---|---|---|",
            *rows,
            "",
            f"{len(run.rows)} rows have a budget, and {count} miss it{names}.",
        ]
    )


def put_between(page: str, table: str) -> str:
    """Return the page with the table between its markers. Raises ValueError where it has none."""
    begin, rest = page.split(MARKERS[0])
    end = rest.split(MARKERS[1])[1]
    return f"{begin}{MARKERS[0]}\n{table}\n{MARKERS[1]}{end}"


def keep(run: KeptRun, root: Path) -> None:
    """Write the run and the table of the docs."""
    (root / KEPT_FILE).write_bytes(encode(run))
    page = root / PAGE
    page.write_text(put_between(page.read_text(), render(run)))
