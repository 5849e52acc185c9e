"""FEED-1…4: the choice of a feed, and what it does to a queue of several models."""

from __future__ import annotations

from bench.warm_queue import QueueShape, choose_naively, choose_warm, simulate_queue
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.core.calls.feeds import choose_feed, find_cold_wait, is_warm, overdue_seconds

MODELS = st.sampled_from([None, "red", "blue", "green"])


class SomeFeed(Struct, frozen=True, kw_only=True):
    id: int
    model: str | None = None
    vram_gb: float = 0.0
    ready: int = 1
    head_priority: int = 50
    head_age_seconds: float = 0.0
    unserved_seconds: float = 1e9
    cold_wait_seconds: float = 60.0


SECONDS = st.floats(0, 300)
FEEDS = st.lists(
    st.builds(
        SomeFeed,
        id=st.integers(1, 99),
        model=MODELS,
        vram_gb=st.sampled_from([0.0, 10.0, 40.0]),
        ready=st.integers(0, 3),
        head_priority=st.integers(0, 100),
        head_age_seconds=SECONDS,
        unserved_seconds=SECONDS,
        cold_wait_seconds=SECONDS,
    ),
    max_size=6,
    unique_by=lambda feed: feed.id,
)


@given(FEEDS, MODELS, st.sampled_from([None, 20.0]))
def test_the_choice(feeds: list[SomeFeed], loaded: str | None, free: float | None) -> None:
    chosen = choose_feed(feeds, loaded, free)
    fitting = [
        f for f in feeds if f.ready and (free is None or f.vram_gb <= free or is_warm(f, loaded))
    ]
    assert (chosen is None) == (not fitting)
    if chosen is None:
        return
    assert chosen in fitting
    late = [f for f in fitting if not is_warm(f, loaded) and overdue_seconds(f) > 0]
    warm = [f for f in fitting if is_warm(f, loaded)]
    if late:
        assert overdue_seconds(chosen) == max(map(overdue_seconds, late))
    elif warm:
        assert chosen in warm
    rivals = late or warm or fitting
    for rival in rivals if not late else ():
        assert (chosen.head_priority, chosen.head_age_seconds) >= (
            rival.head_priority,
            rival.head_age_seconds,
        )


@given(FEEDS, MODELS)
def test_the_order_of_the_list_does_not_matter(feeds: list[SomeFeed], loaded: str | None) -> None:
    assert choose_feed(feeds, loaded) == choose_feed(feeds[::-1], loaded)


def test_a_feed_that_was_just_served_is_not_overdue() -> None:
    """Executors do not swap at every batch when more waits than they can serve."""
    warm = SomeFeed(id=1, model="red", head_age_seconds=500, unserved_seconds=0)
    cold = SomeFeed(id=2, model="blue", head_age_seconds=500, unserved_seconds=1)
    assert choose_feed([warm, cold], "red") is warm
    passed = SomeFeed(id=2, model="blue", head_age_seconds=500, unserved_seconds=61)
    assert choose_feed([warm, passed], "red") is passed


def test_a_model_that_does_not_fit_is_passed_over_and_a_loaded_one_fits() -> None:
    large = SomeFeed(id=1, model="red", vram_gb=40.0, head_priority=90, head_age_seconds=500)
    small = SomeFeed(id=2, model="blue", vram_gb=10.0)
    assert choose_feed([large, small], None, 20.0) is small
    assert choose_feed([large], None, 20.0) is None
    assert choose_feed([large], "red", 20.0) is large


def test_the_bound_in_force() -> None:
    assert find_cold_wait(5.0, "q", lambda queue: 7.0) == 5.0
    assert find_cold_wait(None, "q", lambda queue: 7.0) == 7.0
    assert find_cold_wait(None, "q", None) == 60.0


def test_models_are_kept_warm_and_none_is_forgotten() -> None:
    shape = QueueShape(hours=1.0, load=0.5)
    warm = simulate_queue(shape, choose_warm, seed=7)
    naive = simulate_queue(shape, choose_naively, seed=7)
    assert warm.calls == naive.calls
    assert (warm.warm > 0.85, naive.warm < 0.35) == (True, True)
    turns = len(shape.shares) * (shape.load_seconds + shape.call_seconds)
    assert warm.longest_passed_seconds <= 60 + turns
