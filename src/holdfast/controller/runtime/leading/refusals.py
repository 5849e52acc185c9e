"""The reasons why the last admission passed jobs over, for `why`."""

from collections.abc import Iterable, Mapping


class Refusals:
    """Job id → the reason, from the last round of admission on this replica."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def replace(self, reasons: Mapping[str, str]) -> None:
        """Replace all reasons by those of a round over the whole queues."""
        self._reasons = dict(reasons)

    def renew(self, considered: Iterable[str], reasons: Mapping[str, str]) -> None:
        """Replace the reasons of the jobs that a round considered, and keep the others."""
        for job_id in considered:
            self._reasons.pop(job_id, None)
        self._reasons.update(reasons)

    def find(self, job_id: str) -> str | None:
        """Return the reason for `job_id`, None where the last round did not pass it over."""
        return self._reasons.get(job_id)
