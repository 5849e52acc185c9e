"""Arguments and results that are too large for a message: kept in the blob store under their
SHA-256, with a reference in their place. Pure.

A text that only looks like a reference is sent by reference itself, so that none is mistaken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from holdfast.core.calls.values import MAX_INLINE_BYTES
from holdfast.errors import ValidationError

_PREFIX = '{"$blob":"'


class BlobReference(msgspec.Struct, frozen=True):
    """A text that is kept elsewhere."""

    sha256: str = msgspec.field(name="$blob")
    size: int


def shorten(text: str, keep: Callable[[str, bytes], None]) -> str:
    """Return `text`, or a reference to it after `keep(sha256, data)` has taken a large one."""
    if len(text) * 4 <= MAX_INLINE_BYTES and not text.startswith(_PREFIX):
        return text
    data = text.encode()
    if len(data) <= MAX_INLINE_BYTES and not text.startswith(_PREFIX):
        return text
    sha256 = hashlib.sha256(data).hexdigest()
    keep(sha256, data)
    return msgspec.json.encode(BlobReference(sha256, len(data))).decode()


def read_blob(text: str) -> BlobReference | None:
    """Return the reference that a text is, None where it is the value itself."""
    if not text.startswith(_PREFIX):
        return None
    return msgspec.json.decode(text, type=BlobReference)


def lengthen(text: str, fetch: Callable[[str], bytes]) -> str:
    """Return the text that `shorten` was given. Raises ValidationError for bytes that differ."""
    reference = read_blob(text)
    return text if reference is None else check_blob(reference.sha256, fetch).decode()


def check_blob(sha256: str, fetch: Callable[[str], bytes]) -> bytes:
    """Return the bytes of a blob. Raises ValidationError for others than its name says."""
    data = fetch(sha256)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValidationError(f"the blob {sha256} is not what was kept under its name")
    return data
