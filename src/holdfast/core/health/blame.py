"""Whether a host is to blame for the failures on it.

BLAME-1  A failure speaks against a host only where the same job then succeeded elsewhere. What fails
         everywhere is the job's own fault, and what fails only once is chance.
BLAME-2  A host is set aside for `MIN_JOBS` such jobs in the window, if most of what ended there failed.
BLAME-3  A host that was blamed is let back on probation: one more such job sets it aside again, for
         twice as long.
BLAME-4  Two checks in a row that fail set a host aside, and one that passes lets it back.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.core.health.checks import CheckVerdict

WINDOW_SECONDS = 6 * 3600.0
MIN_JOBS = 3
MIN_FAILED_SHARE = 0.5
MIN_FAILED_CHECKS = 2
PROBATION_SECONDS = 3600.0
MAX_ASIDE_SECONDS = 24 * 3600.0


class HostStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for and against one active or quarantined host, within the window.

    jobs: those that failed here and then succeeded elsewhere. passed, failed: tasks that ended here.
    verdicts: of its checks, the newest first. blames: how often it was set aside already.
    aside: for what it is set aside now; "" where it is not, or an operator did it.
    aside_left_seconds: until its probation.
    """

    host_id: str
    name: str
    jobs: tuple[str, ...] = ()
    passed: int = 0
    failed: int = 0
    verdicts: tuple[CheckVerdict, ...] = ()
    check_message: str = ""
    blames: int = 0
    aside: Literal["", "jobs", "checks"] = ""
    aside_left_seconds: float = 0.0


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Quarantine the host, with the evidence; for `seconds`, where time alone lets it back."""

    host_id: str
    kind: Literal["jobs", "checks"]
    reason: str
    seconds: float
    jobs: tuple[str, ...] = ()


class LetBack(msgspec.Struct, frozen=True, kw_only=True):
    """Release the host from the quarantine that these decisions put it in."""

    host_id: str
    reason: str


def judge_hosts(standings: Sequence[HostStanding]) -> list[SetAside | LetBack]:
    """Return which hosts are set aside now, and which are let back."""
    judged = (_judge(standing) for standing in standings)
    return [verdict for verdict in judged if verdict is not None]


def _judge(standing: HostStanding) -> SetAside | LetBack | None:
    if standing.aside == "checks":
        if standing.verdicts[:1] not in ((CheckVerdict.FAIL,), ()):
            return LetBack(host_id=standing.host_id, reason="its last check passed")
        return None
    if standing.aside == "jobs":
        if standing.aside_left_seconds <= 0:
            return LetBack(host_id=standing.host_id, reason="on probation: one more failure counts")
        return None
    failed = standing.verdicts[:MIN_FAILED_CHECKS]
    if len(failed) == MIN_FAILED_CHECKS and all(v is CheckVerdict.FAIL for v in failed):
        reason = f"its last {MIN_FAILED_CHECKS} checks failed: {standing.check_message}"
        return SetAside(host_id=standing.host_id, kind="checks", reason=reason, seconds=0.0)
    return _judge_by_jobs(standing)


def _judge_by_jobs(standing: HostStanding) -> SetAside | None:
    ended = standing.passed + standing.failed
    share = standing.failed / ended if ended else 1.0
    if standing.blames:
        guilty = bool(standing.jobs)
    else:
        guilty = len(standing.jobs) >= MIN_JOBS and share >= MIN_FAILED_SHARE
    if not guilty:
        return None
    count, shown = len(standing.jobs), ", ".join(standing.jobs[:3])
    seconds = min(PROBATION_SECONDS * 2.0 ** min(standing.blames, 10), MAX_ASIDE_SECONDS)
    reason = (
        f"{count} job{'s' * (count != 1)} failed here and then succeeded elsewhere ({shown}); "
        f"{standing.failed} of {ended} task{'s' * (ended != 1)} failed here in {WINDOW_SECONDS / 3600:.0f} h; "
        f"set aside for {seconds / 3600:.0f} h, then on probation"
    )
    return SetAside(
        host_id=standing.host_id, kind="jobs", reason=reason, seconds=seconds, jobs=standing.jobs
    )
