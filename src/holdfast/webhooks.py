"""For receivers of webhooks: checks that a call is from our Holdfast, and recent.

    from holdfast import webhooks

    def handle(headers, body: bytes):          # the body as it came, before it is parsed
        try:
            event = webhooks.verify(SECRET, headers, body)
        except webhooks.BadSignature:
            return 401
        if seen_before(event.delivery):        # at least once: drop repeats
            return 200
        ...

Loads nothing but the standard library, so that it may be used in any receiver.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Unauthorized

__all__ = ["BadSignature", "VerifiedDelivery", "verify"]

TOLERANCE_SECONDS = 300.0


class BadSignature(Unauthorized, code="bad_signature"):
    """The call is not from our Holdfast, or too old. Answer 401 and do nothing."""


@dataclass(frozen=True)
class VerifiedDelivery:
    """A call whose signature is right.

    delivery: the same for every try of one delivery, so that repeats can be dropped;
    event: `id`, `kind`, `at`, `message`, `data`, …; job: a summary, or None.
    """

    webhook: str
    delivery: str
    timestamp: int
    event: Mapping[str, Any]
    job: Mapping[str, Any] | None


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> VerifiedDelivery:
    """Check a call and return its content.

    Args:
        secret: the hook's secret, or several while one is being replaced.
        headers: of the request; names in any case.
        body: the bytes as they came.
        tolerance_seconds: how far its timestamp may be from our clock, either way. A recorded call
            is useless after that.
        now: Unix seconds; our clock when left out.

    Raises:
        BadSignature: with the reason.
    """
    given = {name.lower(): value for name, value in headers.items()}
    stamp, signatures = given.get("holdfast-timestamp", ""), given.get("holdfast-signature", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12) or not signatures:
        raise BadSignature(
            "Holdfast-Timestamp or Holdfast-Signature is missing or is not what it should be"
        )
    age = (time.time() if now is None else now) - int(stamp)
    if abs(age) > tolerance_seconds:
        raise BadSignature(
            f"the call was signed {age:.0f} s ago, and {tolerance_seconds:g} s are allowed; are "
            "both clocks right?"
        )
    secrets = [secret] if isinstance(secret, str) else list(secret)
    signed = stamp.encode() + b"." + body
    wanted = [hmac.new(one.encode(), signed, hashlib.sha256).hexdigest() for one in secrets]
    shown = [part.strip()[3:] for part in signatures.split(",") if part.strip().startswith("v1=")]
    # Every pair is compared in constant time, so that the time tells nothing about a secret.
    if not sum(
        hmac.compare_digest(a.encode(), b.encode("utf-8", "replace")) for a in wanted for b in shown
    ):
        raise BadSignature("no signature of the call is made with our secret")
    try:
        payload = json.loads(body)
        return VerifiedDelivery(
            webhook=payload["webhook"],
            delivery=payload["delivery"],
            timestamp=int(stamp),
            event=payload["event"],
            job=payload.get("job"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadSignature(f"the body is signed and is no delivery: {error!r}") from None
