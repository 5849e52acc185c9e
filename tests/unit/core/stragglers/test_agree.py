"""Ranks whose checksums differ are named by the majority (AGREE-1, AGREE-2)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.core.stragglers.agree import (
    LEAST_AGREED,
    MAX_TOLD,
    Agreement,
    ChecksumRing,
    Disagreement,
    StepChecksum,
)


def tell(agreement: Agreement, step: int, texts: Mapping[int, str], ranks: int) -> object:
    found = None
    for rank, text in texts.items():
        group, _, word = text.rpartition(":")
        found = agreement.compare_checksums(rank, [StepChecksum(step, word, group)], ranks) or found
    return found


def agree(agreement: Agreement, ranks: int) -> None:
    for step in range(LEAST_AGREED):
        assert tell(agreement, step, dict.fromkeys(range(ranks), "a"), ranks) is None


@pytest.mark.parametrize(
    ("texts", "odd"),
    [("aab", (2,)), ("abaa", (1,)), ("ababa", (1, 3)), ("ab", ()), ("abc", ()), ("aabb", ())],
)
def test_the_ranks_outside_of_the_majority_are_named(texts: str, odd: tuple[int, ...]) -> None:
    """AGREE-2"""
    agreement = Agreement()
    agree(agreement, len(texts))
    found = tell(agreement, 9, dict(enumerate(texts)), len(texts))
    assert isinstance(found, Disagreement)
    assert (found.step, found.odd, found.comparable) == (9, odd, True)


def test_ranks_that_never_agreed_say_nothing_about_a_host() -> None:
    """AGREE-1"""
    found = tell(Agreement(), 1, {0: "a", 1: "a", 2: "b"}, 3)
    assert isinstance(found, Disagreement)
    assert not found.comparable


def test_only_the_first_disagreement_counts() -> None:
    agreement = Agreement()
    agree(agreement, 3)
    assert tell(agreement, 9, {0: "a", 1: "a", 2: "b"}, 3) is not None
    assert tell(agreement, 10, {0: "b", 1: "c", 2: "b"}, 3) is None


def test_a_step_is_compared_when_all_ranks_told_it() -> None:
    agreement = Agreement()
    agree(agreement, 3)
    assert tell(agreement, 9, {0: "a", 1: "b"}, 3) is None
    assert tell(agreement, 9, {2: "a"}, 3) is not None


def test_ranks_of_different_groups_are_not_compared() -> None:
    agreement = Agreement()
    for step in range(LEAST_AGREED):
        assert tell(agreement, step, {0: "x:a", 1: "x:a", 2: "y:b", 3: "y:b"}, 4) is None
    found = tell(agreement, 9, {0: "x:a", 1: "x:a", 2: "y:b", 3: "y:c"}, 4)
    assert isinstance(found, Disagreement)
    assert (set(found.texts), found.odd) == ({2, 3}, ())


def test_what_all_ranks_had_is_known_for_the_next_attempt() -> None:
    agreement = Agreement()
    agree(agreement, 2)
    assert (agreement.find_agreed(1), agreement.find_agreed(7)) == ("a", None)


def test_ranks_that_tell_too_many_checksums_keep_the_same_steps() -> None:
    kept = []
    for first in (1, 2, 5):
        ring = ChecksumRing()
        for step in range(first, 500):
            ring.add(StepChecksum(step, "a"))
        told = ring.take_checksums()
        assert 1 <= len(told) <= MAX_TOLD
        assert ring.take_checksums() == []
        kept.append({one.step for one in told})
    assert kept[0] & kept[1] & kept[2]


def test_the_last_report_tells_the_newest_again_and_they_are_compared_once() -> None:
    """The sync that told them may have been cut."""
    rings = [ChecksumRing() for _ in range(3)]
    agreement = Agreement()
    for step in range(LEAST_AGREED):
        for ring in rings:
            ring.add(StepChecksum(step, "a"))
    for rank, ring in enumerate(rings):
        assert agreement.compare_checksums(rank, ring.take_checksums(), 3) is None
    for rank, ring in enumerate(rings):
        ring.add(StepChecksum(9, "aab"[rank]))
    rings[2].take_checksums()  # in a sync that never arrived
    found = [
        agreement.compare_checksums(rank, ring.list_last(), 3) for rank, ring in enumerate(rings)
    ]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert (found[2].step, found[2].odd, found[2].comparable) == (9, (2,), True)
