"""judge_hosts(…): which hosts are set aside because failures or checks speak against them.

BLAME-1  A failure speaks against a host only where the same job then succeeded elsewhere. Such
         failures are counted by program: a program counts if two or more of its jobs failed so on
         this host, and if this happened on no more hosts than `MAX_ASIDE_SHARE` of the pool. A
         program that fails on more hosts is itself at fault.
BLAME-2  A host is set aside for `MIN_PROGRAMS` such programs in the window, if most tasks that
         ended there failed.
BLAME-3  A host that was blamed is let back on probation: one more such program sets it aside again,
         for twice as long.
BLAME-4  A check that fails sets a host aside, because it measures the hardware, and one that passes
         lets it back.
BLAME-5  No more hosts of a pool are aside at once than `MAX_ASIDE_SHARE` of them, or one; and none of
         a pool of one for the jobs that failed on it. So no program takes a pool out of service.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.core.host_checks import CheckVerdict
from holdfast.core.records import HostRecord
from holdfast.core.spec import JobSpec, find_script
from holdfast.core.states import HostState

WINDOW_SECONDS = 6 * 3600.0
MIN_PROGRAMS = 2
MIN_JOBS = 2
MAX_JOBS = 500  # jobs of one host that are considered
MIN_FAILED_SHARE = 0.5
MAX_ASIDE_SHARE = 0.25
PROBATION_SECONDS = 3600.0
MAX_ASIDE_SECONDS = 24 * 3600.0


class HostStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence for and against one active or quarantined host, within the window.

    jobs: ids of jobs that failed here and then succeeded elsewhere. programs: the program of each
    of these jobs (`name_program`). passed, failed: number of tasks that ended well or badly here.
    verdicts: the verdicts of its checks, the newest first. check_message: the newest check's
    sentence. blames: how often it has been set aside. aside: the evidence for which it is set aside
    now; "" where it is not, or an operator quarantined it. aside_left_seconds: time until its
    probation. pool_hosts: active and quarantined hosts of its pool; pool_aside: quarantined ones.
    """

    host_id: str
    name: str
    jobs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    passed: int = 0
    failed: int = 0
    verdicts: tuple[CheckVerdict, ...] = ()
    check_message: str = ""
    blames: int = 0
    aside: Literal["", "jobs", "checks"] = ""
    aside_left_seconds: float = 0.0
    pool: str = ""
    pool_hosts: int = 1
    pool_aside: int = 0

    @property
    def most_aside(self) -> int:
        """Return how many hosts of its pool may be set aside at once (BLAME-5)."""
        return max(1, int(self.pool_hosts * MAX_ASIDE_SHARE))


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to quarantine a host. kind, reason, jobs: the evidence. seconds: how long, where
    it comes back by time alone."""

    host_id: str
    kind: Literal["jobs", "checks"]
    reason: str
    seconds: float
    jobs: tuple[str, ...] = ()


class LetBack(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to release a host from the quarantine that a `SetAside` put it in."""

    host_id: str
    reason: str


def name_program(project: str, spec: JobSpec) -> str:
    """Return the project and the program of a job, without its arguments. Lines for a shell or
    an interpreter that differ in their digits alone are one program."""
    if spec.executor:
        what = spec.executor
    elif spec.shell is not None:
        what = _shorten(spec.shell)
    elif not spec.argv:
        what = spec.image or ""
    else:
        script = find_script(spec.argv)
        inline = script == spec.argv[0] and len(spec.argv) > 1
        code = next((n for n, word in enumerate(spec.argv) if _CODE.fullmatch(word)), None)
        what = _shorten(" ".join(spec.argv[: code + 2])) if inline and code is not None else script
    return f"{project}: {what}"


_CODE = re.compile(r"-[a-zA-Z]*c")


def _shorten(line: str) -> str:
    return re.sub(r"[0-9]+", "", line)[:1000]


def judge_hosts(standings: Sequence[HostStanding]) -> list[SetAside | LetBack]:
    """Return which hosts are set aside now, and which are let back."""
    spread = Counter((s.pool, program) for s in standings for program in set(s.programs))
    back = [one for s in standings if (one := _let_back(s)) is not None]
    freed = {one.host_id for one in back}
    aside = {s.pool: s.pool_aside for s in standings}
    for standing in standings:
        aside[standing.pool] -= standing.host_id in freed
    found: list[SetAside | LetBack] = [*back]
    accused = [
        (s, verdict)
        for s in standings
        if not s.aside and (verdict := _accuse(s, spread)) is not None
    ]
    # Hosts with measured faults first, then the host that fails most.
    for standing, verdict in sorted(
        accused, key=lambda one: (one[1].kind != "checks", -len(one[1].jobs), one[0].host_id)
    ):
        if aside[standing.pool] < standing.most_aside:
            aside[standing.pool] += 1
            found.append(verdict)
    return found


def may_set_aside(host_id: str, hosts: Sequence[HostRecord]) -> str:
    """Return why a host is not set aside on a gang's evidence, "" where it may be (BLAME-5)."""
    host = next((host for host in hosts if host.id == host_id), None)
    if host is None or host.state is not HostState.ACTIVE:
        return "it is not active"
    kin = [h for h in hosts if h.pool == host.pool]
    kin = [h for h in kin if h.state in (HostState.ACTIVE, HostState.QUARANTINED)]
    aside = sum(h.state is HostState.QUARANTINED for h in kin)
    if len(kin) < 2:
        return "it is the only host of its pool"
    if aside >= max(1, int(len(kin) * MAX_ASIDE_SHARE)):
        return f"{aside} of {len(kin)} hosts of its pool are set aside already"
    return ""


def _let_back(standing: HostStanding) -> LetBack | None:
    if standing.aside == "checks" and standing.verdicts[:1] not in ((CheckVerdict.FAIL,), ()):
        return LetBack(host_id=standing.host_id, reason="its last check passed")
    if standing.aside == "jobs" and standing.aside_left_seconds <= 0:
        reason = "on probation: one more program that fails here alone counts"
        return LetBack(host_id=standing.host_id, reason=reason)
    return None


def _accuse(standing: HostStanding, spread: Counter[tuple[str, str]]) -> SetAside | None:
    if standing.verdicts[:1] == (CheckVerdict.FAIL,):
        reason = f"its last check failed: {standing.check_message}"
        return SetAside(host_id=standing.host_id, kind="checks", reason=reason, seconds=0.0)
    if standing.pool_hosts < 2:
        return None
    failed_here = Counter(standing.programs)
    guilty = {
        program
        for program, count in failed_here.items()
        if count >= MIN_JOBS and spread[standing.pool, program] <= standing.most_aside
    }
    ended = standing.passed + standing.failed
    share = standing.failed / ended if ended else 1.0
    enough = len(guilty) >= MIN_PROGRAMS and share >= MIN_FAILED_SHARE
    if not (guilty and (standing.blames or enough)):
        return None
    pairs = zip(standing.jobs, standing.programs, strict=True)
    jobs = tuple(job for job, program in pairs if program in guilty)
    seconds = min(PROBATION_SECONDS * 2.0 ** min(standing.blames, 10), MAX_ASIDE_SECONDS)
    many, tasks = len(guilty), "task" if ended == 1 else "tasks"
    reason = (
        f"{len(jobs)} jobs of {many} program{'s' * (many != 1)} failed here and then succeeded "
        f"elsewhere ({', '.join(jobs[:3])}); {standing.failed} of {ended} {tasks} failed here in "
        f"{WINDOW_SECONDS / 3600:.0f} h; set aside for {seconds / 3600:.0f} h, then on probation"
    )
    return SetAside(
        host_id=standing.host_id, kind="jobs", reason=reason, seconds=seconds, jobs=jobs
    )
