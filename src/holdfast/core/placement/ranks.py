"""Ranks of a gang in words that stay short for a gang of any size."""

from collections.abc import Iterable, Sequence


def say_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Write ranks as ranges: `0-7, 9, 12-15`; after `most` ranges, the number of ranks left."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:most]]
    left = sum(last - first + 1 for first, last in spans[most:])
    return ", ".join(words) + (f" and {left} more" if left else "")


def name_ranks(ranks: Sequence[int]) -> str:
    """Write ranks as ranges with their noun: `rank 3`, `ranks 0-7`."""
    return f"rank{'s' * (len(ranks) != 1)} {say_ranks(ranks)}"


def name_places(places: Iterable[tuple[int, str | None]], most: int = 3) -> str:
    """Return `ranks 0-1 on box-1, rank 5 on box-2`, at most `most` hosts and how many more."""
    by_host: dict[str, list[int]] = {}
    for rank, host in places:
        by_host.setdefault(host or "?", []).append(rank)
    words = [f"{name_ranks(ranks)} on {host}" for host, ranks in list(by_host.items())[:most]]
    left = len(by_host) - most
    more = f" and those on {left} more host{'s' * (left != 1)}" if left > 0 else ""
    return ", ".join(words) + more


def say_names(names: Iterable[str], most: int = 5) -> str:
    """Join names in order without repetition; after `most` of them, the number left."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more
