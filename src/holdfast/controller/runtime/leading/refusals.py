"""Why the last admission passed jobs over, for `why`."""

from collections.abc import Iterable, Mapping


class Refusals:
    """Job id → the reason, of the last round of admission on this replica."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def replace(self, reasons: Mapping[str, str]) -> None:
        """Keep the reasons of a round over the whole queues instead."""
        self._reasons = dict(reasons)

    def renew(self, considered: Iterable[str], reasons: Mapping[str, str]) -> None:
        """Keep the reasons of a round that considered these jobs alone."""
        for job_id in considered:
            self._reasons.pop(job_id, None)
        self._reasons.update(reasons)

    def find(self, job_id: str) -> str | None:
        """Return the reason for `job_id`, None where the last round did not pass it over."""
        return self._reasons.get(job_id)
