"""What is masked of a secret in logs: the value, its parts, and the forms in which logs show it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent import redact
from holdfast.agent.redact import Redactor, list_forms

SECRET = "s3cr/et+w0rd ä!"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhk\niG9w0BAQEFAASCBKcw\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (SECRET, SECRET),
        (SECRET, quote(SECRET)),
        (SECRET, quote(SECRET, safe="")),
        (SECRET, quote_plus(SECRET)),
        (KEY, "iG9w0BAQEFAASCBKcw"),
        (KEY, json.dumps(KEY)[1:-1]),
        ('to"ken\twith', json.dumps('to"ken\twith')[1:-1]),
        ("postgres://ada:hunter2%2Fx@db/jobs", "hunter2%2Fx"),
        ("postgres://ada:hunter2%2Fx@db/jobs", "hunter2/x"),
        (json.dumps({"private_key": KEY, "type": "account"}), "MIIEvQIBADANBgkqhk"),
        ("k" * 100, base64.encodebytes(b"k" * 100).splitlines()[0].decode()),
    ],
)
def test_a_form_in_which_logs_show_a_secret_is_masked(secret: str, said: str) -> None:
    """REDACT-1."""
    masked = Redactor([secret]).mask(f"before {said} after".encode())
    assert masked == b"before " + b"*" * len(said.encode()) + b" after"


@given(before=st.binary(max_size=5), after=st.binary(max_size=5), urlsafe=st.booleans())
def test_base64_is_masked_wherever_the_secret_begins(
    before: bytes, after: bytes, urlsafe: bool
) -> None:
    """REDACT-1."""
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    text = encode(before + SECRET.encode() + after)
    masked = Redactor([SECRET]).mask(b"Basic " + text)
    assert masked.count(b"*") >= len(SECRET.encode()) * 8 // 6 - 1


@given(cut=st.integers(0, 60))
def test_a_form_over_the_border_of_two_chunks_waits_for_its_rest(cut: int) -> None:
    """REDACT-1."""
    redactor, said = Redactor([SECRET]), b"x " + quote(SECRET).encode() + b" y"
    first = said[: min(cut, len(said))]
    settled = redactor.count_settled(first, redactor.count_pending(first))
    assert quote(SECRET).encode()[:4] not in redactor.mask(first[:settled])
    assert redactor.count_pending(b"x" * 1000) == 0


def test_what_is_short_or_common_is_left() -> None:
    assert list_forms("abc") == set()
    assert Redactor(["a\nb\nyes: 1\nlong enough"]).mask(b"yes: 1, a") == b"yes: 1, a"
    assert Redactor(["://["]).mask(b"://[ and ok") == b"**** and ok"


def test_a_task_that_prints_nothing_costs_no_search_for_its_secrets_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[str] = []
    monkeypatch.setattr(redact, "list_forms", lambda secret: listed.append(secret) or set())
    redactor = Redactor([SECRET])
    assert listed == []
    assert redactor.mask(b"text") == b"text"
    assert (redactor.overlap_bytes, listed) == (0, [SECRET]), "once"
