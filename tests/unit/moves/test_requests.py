"""A repeat of a submission: what is compared, and what was resolved at submission and is not."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.bundles.code import CodeRef
from holdfast.core.spec import JobSpec
from holdfast.moves.jobs.requests import hash_spec

HERE = "https://code.lab.example/x.git"
PLAIN = JobSpec(argv=("train",), idempotency_key="k")


def at(**code: object) -> JobSpec:
    return msgspec.structs.replace(PLAIN, code=msgspec.convert(code, CodeRef))


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        ({"start_at": 100.0}, {"start_at": 200.0}, True),
        ({"start_at": 100.0}, {}, False),
        ({"priority": 10}, {"priority": 20}, False),
    ],
)
def test_a_start_after_a_while_is_the_same_wish_later(
    first: dict[str, object], again: dict[str, object], same: bool
) -> None:
    one, two = (msgspec.structs.replace(PLAIN, **fields) for fields in (first, again))
    assert (hash_spec(one) == hash_spec(two)) is same


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        (
            at(url=HERE, ref="main", commit="a" * 40),
            at(url=HERE, ref="main", commit="b" * 40),
            True,
        ),
        (
            at(url=HERE, ref="main", commit="a" * 40),
            at(url=HERE, ref="dev", commit="a" * 40),
            False,
        ),
        (at(url=HERE, commit="a" * 40), at(url=HERE, commit="b" * 40), False),
        (at(digest="a" * 64, dirty=True), at(digest="a" * 64, branch="main"), True),
        (at(digest="a" * 64), at(digest="b" * 64), False),
        (at(digest="a" * 64), PLAIN, False),
    ],
)
def test_the_commit_of_a_branch_is_resolved_anew(
    first: JobSpec, again: JobSpec, same: bool
) -> None:
    assert (hash_spec(first) == hash_spec(again)) is same
