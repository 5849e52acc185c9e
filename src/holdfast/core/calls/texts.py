"""Arguments and results that are too large for a message: kept in the blob store under their
SHA-256, with a reference in their place. Pure.

A user's text that looks like a reference is itself sent by reference, so that no text of a user is
ever taken for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from holdfast.core.calls.values import MAX_INLINE_BYTES
from holdfast.errors import ValidationError

_PREFIX = '{"$blob":"'


class BlobReference(msgspec.Struct, frozen=True):
    """A text in the blob store. size: its bytes."""

    sha256: str = msgspec.field(name="$blob")
    size: int


def shorten(text: str, keep: Callable[[str, bytes], None]) -> str:
    """Return `text`, or a reference to it where it is large; `keep(sha256, data)` then stores
    it."""
    if len(text) * 4 <= MAX_INLINE_BYTES and not text.startswith(_PREFIX):
        return text
    data = text.encode()
    if len(data) <= MAX_INLINE_BYTES and not text.startswith(_PREFIX):
        return text
    sha256 = hashlib.sha256(data).hexdigest()
    keep(sha256, data)
    return msgspec.json.encode(BlobReference(sha256, len(data))).decode()


def read_blob(text: str) -> BlobReference | None:
    """Read a reference to a blob; None where the text is the value itself."""
    if not text.startswith(_PREFIX):
        return None
    return msgspec.json.decode(text, type=BlobReference)


def lengthen(text: str, fetch: Callable[[str], bytes]) -> str:
    """Return the text that was given to `shorten`. Raises ValidationError where the blob's bytes do
    not match its SHA-256."""
    reference = read_blob(text)
    return text if reference is None else check_blob(reference.sha256, fetch).decode()


def check_blob(sha256: str, fetch: Callable[[str], bytes]) -> bytes:
    """Return the bytes of a blob. Raises ValidationError where they do not match its SHA-256."""
    data = fetch(sha256)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValidationError(f"the blob {sha256} is not what was kept under its name")
    return data
