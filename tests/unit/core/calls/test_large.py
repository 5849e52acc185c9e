"""Large values inside arguments come back where they stood."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.large import LargeValue, fill_arguments, read_result, write_arguments
from holdfast.errors import ValidationError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
BLOBS = [msgspec.json.encode(value) for value in ([1, {"a": "b"}], "text", {"$large": None})]
NAMES = {hashlib.sha256(data).hexdigest(): data for data in BLOBS}
LARGE = st.sampled_from([LargeValue("up", name, len(data)) for name, data in NAMES.items()])
MIXED = st.recursive(
    PLAIN | LARGE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def put_in(value: Any) -> Any:
    """The reference: the same by plain recursion."""
    if isinstance(value, LargeValue):
        return msgspec.json.decode(NAMES[value.sha256])
    if isinstance(value, dict):
        return {key: put_in(part) for key, part in value.items()}
    return [put_in(part) for part in value] if isinstance(value, list) else value


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), MIXED))
def test_what_was_written_is_what_comes(args: dict[str, Any]) -> None:
    text = write_arguments(args)
    assert msgspec.json.decode(fill_arguments(text, NAMES.__getitem__)) == put_in(args)


def test_a_users_own_likeness_is_left_alone() -> None:
    likeness = {"x": {"$args": {}, "$large": []}, "y": {"$blob": "0" * 64, "size": 3}}
    text = write_arguments(likeness)
    assert msgspec.json.decode(fill_arguments(text, {}.__getitem__)) == likeness
    assert read_result("up", '{"x":{"$blob":"0"}}') == {"x": {"$blob": "0"}}


def test_other_bytes_and_paths_that_lead_nowhere_are_refused() -> None:
    name = next(iter(NAMES))
    text = write_arguments({"x": LargeValue("up", name, 9, (1, "nothing"))})
    with pytest.raises(ValidationError, match=r"the result of node up has no \[1\]\['nothing'\]"):
        fill_arguments(text, NAMES.__getitem__)
    with pytest.raises(ValidationError, match="is not what was kept"):
        fill_arguments(text, lambda sha256: b"other")
