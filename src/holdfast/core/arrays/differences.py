"""Name the fields in which two requests differ, for the error of a refused repeat. Pure."""

from collections.abc import Iterator
from typing import Any

import msgspec

MOST_NAMED = 5


def say_differences(before: Any, after: Any) -> str:
    """Return the fields in which two specs differ, by the fields' names and never by their values,
    as `argv[1], env.LR`. Values of secrets are not compared, because only their names are kept."""
    kept = [msgspec.to_builtins(spec) for spec in (before, after)]
    found = list(dict.fromkeys(_walk(kept[0], kept[1], "")))
    named = ", ".join(found[:MOST_NAMED])
    more = len(found) - MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _walk(before: Any, after: Any, place: str) -> Iterator[str]:
    if before == after and type(before) is type(after):
        return
    if isinstance(before, dict) or isinstance(after, dict):
        before, after = ({} if side is None else side for side in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}, key=str):
            if place.endswith("secrets") and key in before and key in after:
                continue
            there = f"{place}.{key}" if place else str(key)
            yield from _walk(before.get(key), after.get(key), there)
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            yield f"{place} ({len(after)} in place of {len(before)})"
            return
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _walk(*pair, f"{place}[{number}]")
    else:
        yield place or "it"
