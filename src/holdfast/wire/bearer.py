"""The form of a token, so that a bad one is refused where it is read and not deep in a library, and
the tokens of jobs.

JOB-TOKEN-1  A job's token is derived from its host's key, its id, its rank and its epoch, and is on
             record nowhere. It is good while that task holds its lease under that epoch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.ids import TaskKey

_OF_A_JOB = (  # a text, because the command line would compile it and read none
    r"hfb_([0-9a-hjkmnp-tv-z]{20})\.(\d{1,5})\.(\d{1,18})\.([A-Za-z0-9_-]{43})(?:~([0-9a-hjkmnp-tv-z]{20}))?"
)


def is_token(text: str) -> bool:
    """Return whether a text can stand in an Authorization header: printable ASCII without
    spaces."""
    return bool(text) and all("!" <= char <= "~" for char in text)


def make_job_token(host_key_hash: bytes, key: TaskKey) -> str:
    """Return the token of a task on the host whose key has this SHA-256 (JOB-TOKEN-1)."""
    return f"hfb_{key.job_id}.{key.rank}.{key.epoch}.{_sign(host_key_hash, key)}"


def name_call_set(token: str, set_id: str) -> str:
    """Add to an executor's token the call set for whose call it is used."""
    return f"{token}~{set_id}"


def read_job_token(token: str) -> tuple[TaskKey, str, str] | None:
    """Read a job's token: the task that it names, its signature, and the call set for whose call an
    executor uses it, or "". None for any other token."""
    from holdfast.core.ids import TaskKey

    found = re.fullmatch(_OF_A_JOB, token)
    if found is None:
        return None
    return TaskKey(found[1], int(found[2]), int(found[3])), found[4], found[5] or ""


def check_job_token(host_key_hash: bytes, key: TaskKey, signature: str) -> bool:
    """Return whether the host with this key signed the token of this task."""
    import hmac

    return hmac.compare_digest(_sign(host_key_hash, key), signature)


def _sign(host_key_hash: bytes, key: TaskKey) -> str:
    import base64  # the command line never needs these
    import hashlib
    import hmac

    digest = hmac.digest(host_key_hash, f"job token of task {key}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
