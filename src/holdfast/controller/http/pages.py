"""Pages and cursors. A cursor is opaque to the client, and one that the server did not make is
refused."""

import base64
import binascii
from collections.abc import Sequence

from starlette.responses import Response

from holdfast.controller.http.problems import answer_json
from holdfast.core.ids import ID_PATTERN
from holdfast.errors import NotFound, ValidationError


def make_cursor(job_id: str) -> str:
    """Return the cursor that goes on after `job_id`."""
    return base64.urlsafe_b64encode(b"j1:" + job_id.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    """Return the id a cursor goes on after. Raises ValidationError for any other text."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (ValueError, binascii.Error, UnicodeError):
        text = ""
    if not ID_PATTERN.fullmatch(text[3:]) or make_cursor(text[3:]) != cursor:
        raise ValidationError(
            "query.cursor: this is no cursor of ours; take `next` of the page before",
            field="query.cursor",
        )
    return text[3:]


def answer_page(items: Sequence[object], next_cursor: str | None = None) -> Response:
    """Return a page."""
    return answer_json({"items": items, "next": next_cursor})


def check_job_id(job_id: str) -> str:
    """Raise NotFound for text that cannot be a job's id, before the store is asked."""
    if not ID_PATTERN.fullmatch(job_id):
        raise NotFound(
            f"there is no job {job_id[:64]!r}; a job's id is 20 letters and digits, as `holdfast "
            "jobs` shows it"
        )
    return job_id
