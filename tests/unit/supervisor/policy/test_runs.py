"""settle_hang: a run that ends well while a report of it is made has not hung."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.supervisor.policy.runs import RunFailure, settle_hang
from holdfast.supervisor.rosters.groups import ProcessGroup
from holdfast.supervisor.rosters.hosts import Host

HUNG = RunFailure("no progress for 60 s", cast(Host, None), hung=True)
LOST = RunFailure("host lost", cast(Host, None))


def make_group(*codes: int | Exception | None) -> ProcessGroup:
    """Ranks that ended with these codes; None: it runs; an error: its host is lost."""

    def end(code: int | Exception | None) -> Any:
        error = code if isinstance(code, Exception) else None
        return SimpleNamespace(
            done=lambda: code is not None, exception=lambda: error, result=lambda: code
        )

    return cast(
        ProcessGroup, [SimpleNamespace(returncode=lambda code=code: end(code)) for code in codes]
    )


@pytest.mark.parametrize(
    ("codes", "settled"),
    [((0, 0), True), ((0, None), False), ((0, 1), False), ((0, OSError()), False)],
)
def test_a_hang_is_none_where_every_rank_has_ended_with_0(
    codes: tuple[int | Exception | None, ...], settled: bool
) -> None:
    group = make_group(*codes)
    assert settle_hang(group, HUNG) == (None if settled else HUNG)
    assert settle_hang(group, LOST) == LOST
    assert settle_hang(group, None) is None
