"""Spans of time, amounts of memory and counts, in words, as every sentence and every column has
them."""

_BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def count_of(count: int, noun: str, nouns: str = "") -> str:
    """Return a number of things: `1 job`, `2 jobs`. nouns: a plural that is not the noun and an s."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def say_span(seconds: float) -> str:
    """Return a span of time in its natural unit, for a sentence: `90 s`, `12 min`, `1.5 h`; 0 s
    where it is negative."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def split_span(seconds: float) -> str:
    """Return a span of time in its two largest units, for a column: `850ms`, `5m03s`, `1d04h`; `in
    5m03s` where it is negative, so still to come."""
    if seconds < 0:
        return f"in {split_span(-seconds)}"
    if 0 < seconds < 1:
        return f"{int(seconds * 1000)}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def say_bytes(count: float) -> str:
    """Return an amount of memory in powers of 1024: `812 bytes`, `1.5 KiB`, `12 MiB`, `2 GiB`."""
    unit = _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if count < 1024 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1024
    return f"{count:.{0 if count >= 10 else 1}f}".removesuffix(".0") + f" {unit}"


def short_bytes(count: float) -> str:
    """Return an amount of memory for a column: `812B`, `1.5K`, `12M`, `2G`."""
    said, unit = say_bytes(count).split()
    return said + unit[0].upper()
