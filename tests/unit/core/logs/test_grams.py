"""Blooms of chunks: no text is missed (GREP-1)."""

from __future__ import annotations

import random

import re2
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.logs.grams import (
    CARRY_BYTES,
    MARK_BITS,
    fold,
    hash_text,
    make_bloom,
    mark_grams,
    may_hold,
)
from holdfast.core.logs.texts import find_texts
from holdfast.store.postgres.logs.marking import find_marker, load_marker

LETTERS = st.text(alphabet="abcKkS \nſK", max_size=80)


@given(LETTERS, st.integers(0, 200), st.integers(1, 40), st.binary(max_size=60))
def test_the_chunk_in_which_a_text_ends_may_hold_it(
    text: str, at: int, size: int, noise: bytes
) -> None:
    data = noise + text.encode() + noise
    begin = min(at, len(data))
    end = min(len(data), begin + size)
    bloom = make_bloom(data[:begin], data[begin:end])
    for start in range(len(text)):
        for stop in range(start + 1, min(len(text), start + 20) + 1):
            if begin < len(noise) + len(text[:stop].encode()) <= end:
                assert may_hold(bloom, hash_text(fold(text[start:stop].encode())))


def test_a_bloom_tells_most_chunks_apart() -> None:
    chance = random.Random(4)
    words = "loss step epoch rank gradient norm throughput batch validation checkpoint".split()
    lines = [
        f"{chance.choice(words)} {chance.choice(words)}={chance.random()}" for _ in range(1500)
    ]
    chunk = "\n".join(lines).encode()
    bloom = make_bloom(b"", chunk)
    absent = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(500)]
    wrong = sum(may_hold(bloom, hash_text(t)) for t in absent if t not in chunk)
    assert wrong < 25
    assert len(bloom) * 8 <= MARK_BITS
    small = make_bloom(b"", b"loss=0.1 at step 100\n")
    assert len(small) == 16
    assert sum(may_hold(small, hash_text(t)) for t in absent) < 25


@given(st.binary(max_size=300))
def test_the_native_way_and_python_mark_the_same_bits(data: bytes) -> None:
    assert load_marker()(data) == mark_grams(data)
    assert find_marker() is not mark_grams


def test_a_long_text_is_found_by_its_beginning() -> None:
    text = b"a text that is longer than what precedes a chunk" * 3
    assert len(text) > CARRY_BYTES
    assert may_hold(make_bloom(text[:-1], text[-1:]), []) is True
    assert may_hold(make_bloom(b"", text), hash_text(text))
    assert not may_hold(make_bloom(b"", b"something else"), hash_text(text))


PATTERNS = st.recursive(
    st.one_of(
        st.sampled_from(
            ["abc", "Kk", "s", "é", "a", " b", r"\.", r"\d", ".", "[ab]", "[^a]", "x?"]
        ),
        st.sampled_from(["^", "$", r"\b", "(?i)abc", r"\x61bcd", "[[:alpha:]]", "[a-c]b", "(?:)"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda c: "(" + "|".join(c) + ")"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}?", "+?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
        inner.map(lambda p: f"(?P<n>{p})"),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("abckKs éÉſK.1x", max_size=12), max_size=8), st.booleans())
def test_each_line_that_matches_holds_one_of_the_texts(
    pattern: str, lines: list[str], ignore_case: bool
) -> None:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        return
    texts = find_texts(pattern, ignore_case=ignore_case)
    for line in lines:
        if texts and compiled.search(line) is not None:
            assert any(text in fold(line.encode()) for text in texts)


def test_the_texts_of_usual_patterns() -> None:
    def texts(pattern: str, ignore_case: bool = False) -> list[bytes]:
        return find_texts(pattern, ignore_case=ignore_case)

    assert texts("NCCL timeout") == [b"nccl timeout"]
    assert texts(r"rank \d+: (Error|Timeout) of .*") == [b": error of ", b": timeout of "]
    assert texts(r"rank \d+(x|y)z?") == [b"rank "]
    assert texts("error|Timeout|fatal") == [b"error", b"fatal", b"timeout"]
    assert texts("(RuntimeError|ValueError): [a-z]+ is NaN") == [b"runtimeerror: ", b"valueerror: "]
    assert texts(r"step=[012]5\b") == [b"step=05", b"step=15", b"step=25"]
    assert texts(r"(?:ab)+cde") == [b"cde"]
    assert texts("xyz(abcdef)*") == texts("(?:abcdef){0,2}xyz") == [b"xyz"]
    assert texts("(abcdef)?x") == []
    assert texts(r"größe", False) == ["größe".encode()]
    assert texts(r"größe", True) == []
    assert texts(r"ab") == texts(r"\d{5}") == texts("(?i)error") == texts("abcd?|x") == []
    assert texts("error)") == texts("(" * 80) == texts("a{") == texts("[") == texts("\\") == []
    assert texts("an error that is longer than twenty") == [b"an error that is lon"]
