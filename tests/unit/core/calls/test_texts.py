"""Large values go by reference, and no text is mistaken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.texts import lengthen, shorten
from holdfast.core.calls.values import MAX_INLINE_BYTES
from holdfast.errors import ValidationError

LIKENESS = '{"$blob":"' + 64 * "0" + '","size":3}'


@given(st.one_of(st.text(max_size=50), st.just(LIKENESS), st.just('{"$blob":"')))
def test_what_was_sent_is_what_comes(text: str) -> None:
    kept: dict[str, bytes] = {}
    sent = shorten(text, kept.__setitem__)
    assert lengthen(sent, kept.__getitem__) == text
    assert bool(kept) == text.startswith('{"$blob":"')


@pytest.mark.parametrize("extra", [0, 1])
def test_the_limit_is_of_bytes(extra: int) -> None:
    text = "é" * (MAX_INLINE_BYTES // 2) + extra * "x"
    kept: dict[str, bytes] = {}
    sent = shorten(text, kept.__setitem__)
    assert (len(kept), len(sent.encode()) <= MAX_INLINE_BYTES) == (extra, True)
    assert lengthen(sent, kept.__getitem__) == text


def test_other_bytes_than_were_kept_are_refused() -> None:
    with pytest.raises(ValidationError, match="is not what was kept"):
        lengthen(LIKENESS, lambda sha256: b"abc")
