"""The grams of a piece of a log, and the bloom that keeps them. Pure.

A *gram* is three bytes in a row, with A to Z as a to z. The *bloom* of a chunk has a bit for each
of its grams, so a chunk whose bloom lacks a gram of a text does not hold the text. One hash for
each gram is enough, because a text has many grams.

GREP-1  A chunk is left unread only where the text does not end in it: its bloom has the grams of
        the `CARRY_BYTES` before the chunk, too, and there is no bloom where those are not known.
"""

from collections.abc import Callable

GRAM_BYTES = 3
CARRY_BYTES = 64
"""The bytes before a chunk whose grams are in its bloom."""
TEXT_BYTES = 20
"""The longest text that is looked for in a bloom; longer ones are cut. A text of so many folded
bytes is at most three times as long in the log, so all but its last byte lie in the carry."""
MARK_BITS = 1 << 15
MIN_BITS = 64
BITS_FOR_EACH = 4
"""Bits of a bloom for each gram: at most 22 % of them are set."""
FACTOR = 2_654_435_761
"""2³² divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""
Marker = Callable[[bytes], int]
"""Returns a number whose bit `hash_gram(gram)` is set for each gram of folded bytes."""


def fold(data: bytes) -> bytes:
    """Return bytes in which letters that `(?i)` takes for the same ASCII letter are the same."""
    data = data.lower()
    if data.isascii():
        return data
    # The Kelvin sign and the long s, the two that fold to a letter of ASCII.
    return data.replace(b"\xe2\x84\xaa", b"k").replace(b"\xc5\xbf", b"s")


def hash_gram(gram: bytes) -> int:
    """Return the bit of a gram in `MARK_BITS` bits; a smaller bloom has it at the remainder."""
    return (int.from_bytes(gram, "little") * FACTOR >> 16) % MARK_BITS


def mark_grams(folded: bytes) -> int:
    """Mark the grams of folded bytes, in Python; the native way is a hundred times as fast."""
    marks = bytearray(MARK_BITS // 8)
    for a, b, c in set(zip(folded, folded[1:], folded[2:], strict=False)):
        bit = ((a | b << 8 | c << 16) * FACTOR >> 16) % MARK_BITS
        marks[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(marks, "little")


def make_bloom(before: bytes, data: bytes, mark: Marker = mark_grams) -> bytes:
    """Return the bloom of a chunk. before: the bytes in front of it, of which the last
    `CARRY_BYTES` count."""
    marks = mark(fold(before[-CARRY_BYTES:] + data))
    wanted, bits = BITS_FOR_EACH * marks.bit_count(), MARK_BITS
    while bits > MIN_BITS and bits >= 2 * wanted:
        bits //= 2
        marks = (marks >> bits) | (marks & ((1 << bits) - 1))
    return marks.to_bytes(bits // 8, "little")


def hash_text(text: bytes) -> list[int]:
    """Return the bits that the bloom of a chunk must have for a folded text to end in the chunk;
    none where the text has no gram."""
    cut = text[:TEXT_BYTES]
    return [hash_gram(cut[i : i + GRAM_BYTES]) for i in range(len(cut) - GRAM_BYTES + 1)]


def may_hold(bloom: bytes | None, hashes: list[int]) -> bool:
    """Return whether a text may end in a chunk. bits: the text's `hash_text`."""
    if bloom is None:
        return True
    bits = 8 * len(bloom)
    return all(bloom[(h % bits) >> 3] >> (h % bits & 7) & 1 for h in hashes)
