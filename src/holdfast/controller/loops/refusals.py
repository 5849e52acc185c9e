"""Why the last admission passed jobs over, for `why`."""

from __future__ import annotations

from collections.abc import Mapping


class Refusals:
    """Job id → the reason, of the last round of admission on this replica."""

    def __init__(self) -> None:
        self._reasons: Mapping[str, str] = {}

    def replace(self, reasons: Mapping[str, str]) -> None:
        """Keep the reasons of a new round instead."""
        self._reasons = reasons

    def find(self, job_id: str) -> str | None:
        """Return the reason for `job_id`, None where the last round did not pass it over."""
        return self._reasons.get(job_id)
