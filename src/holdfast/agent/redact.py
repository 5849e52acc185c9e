"""Mask secrets in all text that leaves the host: logs, log tails, forensics.

REDACT-1  A secret value of `MIN_SECRET_BYTES` or more is replaced by as many asterisks, also across
          the borders of chunks, so that offsets stay true. So are the forms in which logs often
          show one: base64 wherever it begins in the encoded bytes, quoted for a URL or for JSON,
          each line of several, a URL's password, and the long texts of a JSON value. Other forms
          (compressed, encrypted, a hash, a few of its letters) are not recognised.
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

MIN_SECRET_BYTES = 4
MIN_PART_BYTES = 8
"""A shorter part or encoded form may be a word that stands in any log."""


class Redactor:
    """Masks the secret values of one task. The forms of the values are made with the first text,
    because most short tasks print none."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.values = tuple(secrets)

    @cached_property
    def _secrets(self) -> list[bytes]:
        forms = {form for value in self.values for form in list_forms(value)}
        return sorted(forms, key=len, reverse=True)

    @cached_property
    def overlap_bytes(self) -> int:
        """Return the bytes to read on each side of a range, so that a secret across its border is
        found."""
        return max((len(secret) - 1 for secret in self._secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        """Return `data` with every secret, overlapping ones too, replaced by as many asterisks."""
        masked: bytearray | None = None
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                if masked is None:
                    masked = bytearray(data)
                masked[at : at + len(secret)] = b"*" * len(secret)
                at = data.find(secret, at + 1)
        return data if masked is None else bytes(masked)

    def mask_text(self, text: str) -> str:
        """Return `text` with every secret replaced by `***`."""
        for secret in self._secrets:
            text = text.replace(secret.decode(errors="replace"), "***")
        return text

    def count_settled(self, data: bytes, pending: int) -> int:
        """Return how many of the first bytes may be masked for good while the last `pending`
        wait for more. A secret that reaches into the pending bytes waits as a whole, because it
        may share bytes with another."""
        settled = len(data) - pending
        crossing = True
        # Each pass moves the border before a secret across it, where another may cross it then.
        while crossing:
            crossing = False
            for secret in self._secrets:
                at = data.find(secret, max(0, settled - len(secret) + 1))
                if 0 <= at < settled:
                    settled, crossing = at, True
        return settled

    def count_pending(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a secret whose rest is not
        there yet."""
        longest = 0
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
            while 0 <= at < len(data) - longest:
                if secret.startswith(data[at:]):
                    longest = len(data) - at
                at = data.find(secret[:1], at + 1)
        return longest


def list_forms(secret: str) -> set[bytes]:
    """Return the forms of a secret that are masked; none for a secret that is too short."""
    value = secret.encode(errors="surrogateescape")
    if len(value) < MIN_SECRET_BYTES:
        return set()
    parts = {part.encode(errors="surrogateescape") for part in _list_parts(secret)}
    whole = {value, *(part for part in parts if len(part) >= MIN_PART_BYTES)}
    encoded = {form for part in whole for form in _encode(part)}
    return whole | {form for form in encoded if len(form) >= MIN_PART_BYTES}


def _list_parts(secret: str) -> Iterator[str]:
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines)
    try:
        password = urlsplit(secret).password if "://" in secret else None
        if password is not None:
            yield from (password, unquote(password))
        if secret.lstrip()[:1] in ("{", "["):
            yield from _list_texts(json.loads(secret))
    except (ValueError, RecursionError):  # no URL, no JSON
        return


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) >= 2 * MIN_PART_BYTES:
        yield value
        yield from (line.strip() for line in value.splitlines())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _list_texts(each)


def _encode(value: bytes) -> Iterator[bytes]:
    for skipped in range(3):
        # Only the letters that no neighbour of the value can change.
        begin, end = math.ceil(skipped * 8 / 6), (skipped + len(value)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * skipped + value)[begin:end]
    yield from (line for line in base64.encodebytes(value).splitlines() if len(line) == 76)
    yield from (quote(value, safe=safe).encode() for safe in ("", "/"))
    yield quote_plus(value).encode()
    text = value.decode(errors="replace")
    yield from (json.dumps(text, ensure_ascii=pure)[1:-1].encode() for pure in (True, False))
