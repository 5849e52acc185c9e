"""Imports that cost less, for processes that run nothing but Holdfast's own code."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def import_msgspec() -> None:
    """Import msgspec without `typing_extensions`, which costs half of what starting Python does.

    msgspec takes from it only what `typing` has in every Python that Holdfast runs on.
    """
    if "msgspec" in sys.modules:
        return
    unknown = "typing_extensions" not in sys.modules
    if unknown:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the import fails then
    try:
        import msgspec  # noqa: F401  # kept in memory
    finally:
        if unknown:
            del sys.modules["typing_extensions"]


@contextmanager
def collect_nothing() -> Iterator[None]:
    """Import in the block without garbage collections, which take a fifth of the time of a large
    program's imports and find nothing, because modules live to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
