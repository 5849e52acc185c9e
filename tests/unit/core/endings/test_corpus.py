"""The labelled endings: how many are classified right, and no category that is unknown blocks a
retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.endings.classify import UNMEASURED, classify
from holdfast.core.endings.decide import AttemptEnding, Charges, decide
from holdfast.core.endings.mistakes import MISTAKES
from holdfast.core.endings.patterns import OWN
from holdfast.core.endings.wording import LogPart
from holdfast.core.facts import TaskFacts
from holdfast.core.states import JobEvent
from tests.unit.core.endings.corpus.measure import (
    PAGE,
    PARTS,
    POLICY,
    Result,
    fill_page,
    measure,
    name_decision,
    read_corpus,
)

LEAST = 0.9


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return measure(read_corpus())


def test_the_labels_are_words_of_holdfast(results: Sequence[Result]) -> None:
    assert len(results) >= 150
    assert len({r.ending.name for r in results}) == len(results)
    assert {r.ending.cause for r in results} <= set(Cause)
    assert {r.ending.decision for r in results} <= {
        "retry", "infra", "other_host", "watchdog", "requeue", "start_again", "once", "never",
    }  # fmt: skip
    assert Counter(r.ending.part for r in results).keys() == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_nine_of_ten_have_the_right_cause_and_decision(
    results: Sequence[Result], part: str
) -> None:
    found = [r for r in results if r.ending.part == part]
    assert sum(r.right for r in found) >= LEAST * len(found)


def test_no_ending_that_may_go_better_is_given_up(results: Sequence[Result]) -> None:
    """A retry too many costs an attempt; a retry too few ends a job, so none of these may be."""
    assert [r for r in results if r.decision == "never" and r.ending.decision != "never"] == []


def test_the_page_of_causes_has_the_figures(results: Sequence[Result]) -> None:
    page = PAGE.read_text()
    assert page == fill_page(page, results), (
        "run `python -m tests.unit.core.endings.corpus.measure --write`"
    )


# ---- never blocks

KNOWN_MISTAKES = {f"log-{p.name}" for p in MISTAKES + OWN if p.cause is Cause.PROGRAM_ERROR}
words = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=60)
names = st.from_regex(r"[a-z]{1,8}\.[A-Z][a-z]{2,12}(Error|Fault|Exception)", fullmatch=True)
lines = words | st.builds(lambda name, text: f"{name}: {text}", names, words)
tails = st.lists(
    lines | st.sampled_from([r.log_tail for r in (e.facts for e in read_corpus()) if r.log_tail]),
    max_size=6,
).map("\n".join)
ends = st.builds(TaskFacts, exit_code=st.integers(1, 255), log_tail=tails) | st.builds(
    TaskFacts, signal=st.integers(1, 64), log_tail=tails
)


@given(facts=ends)
def test_a_category_that_is_not_known_never_blocks_a_retry(facts: TaskFacts) -> None:
    found = classify(facts)
    decision = decide(found, Charges(), POLICY, AttemptEnding(job_id="j"), chance=0.0)
    assert decision.event is not JobEvent.FAIL or found.rule in KNOWN_MISTAKES


@given(name=names, text=words, code=st.integers(1, 255))
def test_an_exception_of_tomorrow_is_retried(name: str, text: str, code: int) -> None:
    log = f'Traceback (most recent call last):\n  File "t.py", line 1\n{name}: {text}\n'
    found = classify(TaskFacts(exit_code=code, log_tail=log))
    decision = decide(found, Charges(), POLICY, AttemptEnding(job_id="j"), chance=0.0)
    assert name_decision(decision) != "never" or found.rule in KNOWN_MISTAKES


def test_only_named_mistakes_of_a_program_end_a_job_by_its_words() -> None:
    causes = {rule.cause for rule in UNMEASURED if isinstance(rule.cause, Cause)}
    assert {c for c in causes if CHARGED_TO[c] is Budget.NEVER} == set()
    anywhere = {p.name for p in MISTAKES + OWN if p.part is LogPart.END}
    known = {p.name for p in MISTAKES + OWN if p.cause is Cause.PROGRAM_ERROR}
    assert known & anywhere == {"javascript"}, "which is bound to the end of the log by itself"
    refusing = {rule.name for rule in UNMEASURED if rule.cause is Cause.PROGRAM_ERROR}
    assert refusing == KNOWN_MISTAKES
