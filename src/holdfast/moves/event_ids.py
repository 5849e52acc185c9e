"""The opaque ids of events, and the errors about records that both stores share."""

from __future__ import annotations

from holdfast.errors import NotFound, ValidationError


def no_token(token_id: str) -> NotFound:
    """The error for an id no token has."""
    return NotFound(f"there is no token {token_id!r}; `holdfast token list` shows them")


def format_event_id(tx: int, number: int) -> str:
    """The opaque id of an event: fixed width, so that text order is the readers' order."""
    return f"{tx:012x}-{number:012x}"


def parse_event_id(text: str | None) -> tuple[int, int]:
    """(transaction, number) of an id; zeros for None. Raises ValidationError for what is no id."""
    if text is None:
        return 0, 0
    try:
        tx, number = (int(part, 16) for part in text.split("-"))
        if not (0 <= tx < 2**63 and 0 <= number < 2**63):
            raise ValueError
    except ValueError:
        raise ValidationError(f"{text[:80]!r} is not the id of an event", field="after") from None
    return tx, number
