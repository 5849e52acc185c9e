"""Which life of a rank wrote which part of its stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import TaskKey
from holdfast.core.logs.plan import LogLife, split_by_life

bases = st.lists(st.none() | st.integers(0, 100), max_size=5)


@given(bases, st.integers(0, 120), st.integers(0, 120))
def test_every_byte_belongs_to_the_last_life_that_began_before_it(
    later: list[int | None], start: int, end: int
) -> None:
    grown, high = [], 0
    for base in later:
        high = high if base is None else max(high, base)
        grown.append(None if base is None else high)
    lives = [LogLife(TaskKey("job", 0, n), f"h{n}", base) for n, base in enumerate([0, *grown])]
    parts = split_by_life(lives, start, end)
    wrote = {at: part.life for part in parts for at in range(part.start, part.end)}
    assert sum(part.end - part.start for part in parts) == len(wrote)
    assert wrote == {
        at: [life for life in lives if life.base is not None and life.base <= at][-1]
        for at in range(start, end)
    }
