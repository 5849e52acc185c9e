"""choose_feed(…): which waiting calls an executor takes next.

FEED-1  A feed whose model is loaded goes first, so that models are seldom swapped.
FEED-2  A feed that was passed over for its `cold_wait_seconds` goes before the warm one: its first
        call has waited for so long, and no batch of the feed was handed out for so long. The second
        condition keeps executors from swapping models at every batch when they are overloaded.
FEED-3  Otherwise the highest priority goes first, then the oldest head.
FEED-4  A feed whose model does not fit into the memory of the executor's GPU is always passed over,
        even under FEED-2. The loaded model fits by definition.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from holdfast.core.settings.table import SETTINGS


class WaitingFeed(Protocol):
    """The facts of a feed that the choice looks at.

    ready: number of waiting calls. head_priority, head_age_seconds: of its first waiting call.
    unserved_seconds: time since an executor last received a batch of it. vram_gb: GPU memory that
    its model needs. cold_wait_seconds: the bound of FEED-2.
    """

    @property
    def id(self) -> int: ...
    @property
    def model(self) -> str | None: ...
    @property
    def vram_gb(self) -> float: ...
    @property
    def ready(self) -> int: ...
    @property
    def head_priority(self) -> int: ...
    @property
    def head_age_seconds(self) -> float: ...
    @property
    def unserved_seconds(self) -> float: ...
    @property
    def cold_wait_seconds(self) -> float: ...


ColdWaitOf = Callable[[str], float]
"""Queue → seconds that its calls may wait while executors prefer calls of a loaded model."""


def find_cold_wait(own: float | None, queue: str, cold_wait_of: ColdWaitOf | None) -> float:
    """Return the `cold_wait_seconds` in force for a feed: the function's `own`, else the
    queue's."""
    if own is not None:
        return own
    if cold_wait_of is not None:
        return cold_wait_of(queue)
    default = SETTINGS["cold_wait_seconds"].default
    assert isinstance(default, (int, float))
    return float(default)


F = TypeVar("F", bound=WaitingFeed)


def choose_feed(feeds: Sequence[F], loaded: str | None, free_gb: float | None = None) -> F | None:
    """Return the feed from which an executor receives its next batch, or None.

    loaded: the model that the executor has in memory. free_gb: GPU memory that the executor has for
    a model, including what unloading the present one frees; None: not known.
    """
    fitting = [f for f in feeds if f.ready > 0 and fits_executor(f, loaded, free_gb)]
    return min(fitting, key=lambda feed: _order(feed, loaded), default=None)


def fits_executor(feed: WaitingFeed, loaded: str | None, free_gb: float | None) -> bool:
    """Return whether an executor has the memory for calls of the feed (FEED-4)."""
    return free_gb is None or feed.vram_gb <= free_gb or is_warm(feed, loaded)


def overdue_seconds(feed: WaitingFeed) -> float:
    """Return how long the feed has been passed over beyond its bound; 0 or less: within it
    (FEED-2)."""
    return min(feed.head_age_seconds, feed.unserved_seconds) - feed.cold_wait_seconds


def _order(feed: WaitingFeed, loaded: str | None) -> tuple[float, bool, int, float, int]:
    cold = not is_warm(feed, loaded)
    overdue = overdue_seconds(feed) if cold else 0.0
    return (-max(0.0, overdue), cold, -feed.head_priority, -feed.head_age_seconds, feed.id)


def is_warm(feed: WaitingFeed, loaded: str | None) -> bool:
    """Return whether an executor can run calls of the feed without loading another model first.
    loaded: the model that the executor has loaded."""
    return feed.model is None or feed.model == loaded
