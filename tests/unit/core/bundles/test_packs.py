"""Packs: an index, and bytes that are compared with their digests."""

from __future__ import annotations

import hashlib

import pytest

from holdfast.core.bundles.packs import PackPart, head_of_pack, read_pack
from holdfast.errors import ValidationError

DATA = [b"one", b"two two", b"3" * 1000]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def make() -> bytes:
    return head_of_pack([(sha(d), len(d)) for d in DATA]) + b"".join(DATA)


def test_a_pack_says_where_its_parts_are() -> None:
    pack = make()
    parts = read_pack(pack)
    assert [pack[part.at : part.at + part.size] for part in parts] == DATA
    assert parts[0] == PackPart(sha(b"one"), len(pack) - 1010, 3)


def test_a_pack_with_other_bytes_is_refused() -> None:
    pack = make()
    with pytest.raises(ValidationError, match="another SHA-256"):
        read_pack(pack.replace(b"two two", b"two too"))
    for spoilt in (b"", pack[:-1], pack + b"x", b"XXXX" + pack[4:], head_of_pack([])):
        with pytest.raises(ValidationError, match="pack"):
            read_pack(spoilt)
    with pytest.raises(ValidationError, match="does not fit"):
        read_pack(head_of_pack([(b"short", 1)]) + b"x")
