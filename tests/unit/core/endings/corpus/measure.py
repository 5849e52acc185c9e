"""Measure the classifier on the labelled endings, and print the measured part of the page of causes.

python -m tests.unit.core.endings.corpus.measure            the figures, and what the tuned half got wrong
python -m tests.unit.core.endings.corpus.measure --write    docs/reference/causes.md with them
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.core.causes import Budget, Cause
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import AttemptEnding, Charges, Decision, Policy, decide
from holdfast.core.endings.patterns import CASCADE_RULES
from holdfast.core.facts import TaskFacts
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobEvent

HERE = Path(__file__).parent
PAGE = HERE.parents[4] / "docs" / "reference" / "causes.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
POLICY = Policy(retry=RetryPolicy(max_retries=3))
"""A job with retries left, as most that train have."""


class Labelled(NamedTuple):
    """One ending. own: its fault must not be taken for a peer's."""

    name: str
    source: str
    facts: TaskFacts
    cause: str
    decision: str
    own: bool

    @property
    def part(self) -> str:
        """Return its part: one of PARTS."""
        if self.source in ("later", "unseen"):
            return PARTS[0 if self.source == "later" else 5]
        tuned = hashlib.sha256(self.name.encode()).digest()[-1] % 2 == 0
        return PARTS[1 + tuned + 2 * (self.source == "public")]


PARTS = (
    "written after all rules",
    "held out at first",
    "tuned on",
    "public, for judging only",
    "public, tuned on",
    "written after those rules",
)
TUNED = (PARTS[2], PARTS[4])
FRAMES = (
    'Traceback (most recent call last):\n  File "/home/ada/job/train.py", line 40, in <module>\n'
    "    main()\n"
)


class Result(NamedTuple):
    """What the classifier makes of one ending."""

    ending: Labelled
    cause: str
    decision: str
    rule: str

    @property
    def right(self) -> bool:
        """Return whether both cause and decision are those of the label."""
        ending = self.ending
        cascade = ending.own and self.rule in CASCADE_RULES
        return (self.cause, self.decision) == (ending.cause, ending.decision) and not cascade


def read_corpus() -> list[Labelled]:
    """Return the endings of all sources."""
    ends = json.loads((HERE / "endings.json").read_text())
    found: list[Labelled] = []
    for program in tomllib.loads((HERE / "programs.toml").read_text())["program"]:
        facts = {"runtime_seconds": 2.0, **ends[program["name"]]}
        found.append(_label(program, "program", facts))
    files = (("shapes.toml", "shape"),)
    files += tuple((f"{name}.toml", name) for name in ("later", "public", "unseen"))
    shapes = [
        (source, shape)
        for name, source in files
        for shape in tomllib.loads((HERE / name).read_text())["shape"]
    ]
    for source, shape in shapes:
        said = f"{FRAMES}{shape['raised']}\n" if "raised" in shape else shape.get("log", "")
        facts = {"log_tail": said.lstrip("\n"), **shape.get("facts", {})}
        if "signal" in shape:
            facts["signal"] = shape["signal"]
        elif not shape.get("none"):
            facts["exit_code"] = shape.get("code", 1)
        found.append(_label(shape, source, facts))
    return found


def _label(entry: dict[str, Any], source: str, facts: dict[str, Any]) -> Labelled:
    return Labelled(
        entry["name"],
        source,
        msgspec.convert(facts, TaskFacts),
        entry.get("cause", "nonzero_exit"),
        entry.get("decision", "retry"),
        entry.get("own", False),
    )


def name_decision(decision: Decision) -> str:
    """Return the word of the labels for a decision."""
    if decision.event in (JobEvent.FAIL, JobEvent.CANCEL):
        return "never"
    if decision.cause is Cause.PROGRAM_ERROR:
        return "once"
    if decision.cause is Cause.START_TIMEOUT:
        return "start_again"
    if decision.charged_to is Budget.INFRA:
        return "other_host" if decision.avoid_host else "infra"
    words = {Budget.RETRIES: "retry", Budget.WATCHDOG: "watchdog", Budget.NOTHING: "requeue"}
    assert decision.charged_to is not None
    return words[decision.charged_to]


def measure(corpus: Sequence[Labelled]) -> list[Result]:
    """Classify and decide each ending, as of a job's first attempt, without a step."""
    results = []
    for ending in corpus:
        found = classify(ending.facts)
        end = AttemptEnding(job_id="j", elsewhere=found.cause is Cause.PROGRAM_ERROR)
        decision = decide(found, Charges(), POLICY, end, chance=0.0)
        results.append(Result(ending, str(found.cause), name_decision(decision), found.rule))
    return results


def share(results: Sequence[Result]) -> str:
    """Return how many are right: "141 of 150, 94.0 %"."""
    right = sum(result.right for result in results)
    return f"{right} of {len(results)}, {100 * right / len(results):.1f} %"


def render(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of the measured part of the page."""
    parts = {part: [r for r in results if r.ending.part == part] for part in PARTS}
    programs = [r for r in results if r.ending.source == "program"]
    yield "| endings | cause and decision right |"
    yield "|---|---|"
    for words, part in (*parts.items(), ("programs that really ran", programs), ("all", results)):
        yield f"| {words} | {share(part)} |"
    for words, label, found in (
        ("cause", lambda r: r.ending.cause, lambda r: r.cause),
        ("decision", lambda r: r.ending.decision, lambda r: r.decision),
    ):
        counts = Counter((label(r), found(r)) for r in results)
        rows = sorted({label(r) for r in results} | {found(r) for r in results})
        columns = sorted({found(r) for r in results})
        yield ""
        yield f"By {words}: a row for each label, a column for what the classifier said."
        yield ""
        yield f"| {words} | {' | '.join(columns)} |"
        yield f"|---|{'---|' * len(columns)}"
        for row in rows:
            cells = [str(counts[row, column] or "") for column in columns]
            yield f"| **{row}** | {' | '.join(cells)} |"
    wrong = [r for r in results if not r.right]
    yield ""
    yield f"The {len(wrong)} that are wrong:"
    yield ""
    yield "| ending | part | label | classifier | rule |"
    yield "|---|---|---|---|---|"
    for result in wrong:
        ending = result.ending
        yield (
            f"| {ending.name} | {ending.part} | {ending.cause}, {ending.decision} "
            f"| {result.cause}, {result.decision} | `{result.rule}` |"
        )


def fill_page(page: str, results: Sequence[Result]) -> str:
    """Return the page with its measured part written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(render(results)) + f"\n\n{END}{after}"


def main() -> None:
    """Print the figures, or write them."""
    results = measure(read_corpus())
    if "--write" in sys.argv:
        PAGE.write_text(fill_page(PAGE.read_text(), results))
    for part in PARTS:
        print(part, share([r for r in results if r.ending.part == part]))
    for result in results:
        if not result.right and result.ending.part in TUNED:
            ending = result.ending
            print(
                ending.name,
                (ending.cause, ending.decision),
                (result.cause, result.decision),
                result.rule,
            )


if __name__ == "__main__":
    main()
