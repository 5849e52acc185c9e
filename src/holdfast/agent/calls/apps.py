"""Which apps this host lists and cannot run now, by the ends of their executors.

ABLE-4  An executor that ended while it imported its app, however it did, or because functions of the
        app cannot be imported here, or whose interpreter cannot be started, failed for the app's
        sake. After `TRIES` of those in a row the app is taken off this host for a while, which is
        twice as long each time; a call that ends well there, or the end of that while, gives it back.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.calls.places import Place, read_place
from holdfast.agent.tasks import AgentTask
from holdfast.agent.uplink.news import News
from holdfast.core.facts import TaskFacts
from holdfast.core.host_faults import Hindrance
from holdfast.wire.calls import PHASE_LOADING, PHASE_UNABLE

log = logging.getLogger("holdfast.agent.calls")

TRIES = 3
FIRST_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 300.0
MAX_REASON = 1024
_MARK = "[holdfast] "


class AppTrial(msgspec.Struct, frozen=True):
    """failures: executors in a row that failed for the app's sake. aside: how often in a row the app
    was taken off. reason: of the last failure, while the app is off."""

    failures: int = 0
    aside: int = 0
    reason: str | None = None

    def fail(self, reason: str) -> "AppTrial":
        """Count a failure. After a while off the host the first one is enough."""
        failures = self.failures + 1
        if failures < TRIES and not self.aside:
            return AppTrial(failures)
        aside = self.aside + (self.reason is None)
        return AppTrial(failures, aside, reason[:MAX_REASON])

    def try_again(self) -> "AppTrial":
        """List the app again, on trial."""
        return AppTrial(self.failures, self.aside)

    @property
    def pause_seconds(self) -> float:
        """How long it stays off the host."""
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.aside - 1, 10), MAX_PAUSE_SECONDS)


@dataclass(eq=False)
class AppTrials:
    """The apps of this host that failed lately."""

    news: News
    _trials: dict[str, AppTrial] = field(default_factory=dict)

    def list_faults(self) -> list[Hindrance]:
        """What to tell the controller."""
        off = {app: trial.reason for app, trial in self._trials.items() if trial.reason is not None}
        return [Hindrance(part="apps", apps=(app,), reason=why) for app, why in off.items()][:8]

    def judge_end(self, task: AgentTask, facts: TaskFacts) -> TaskFacts:
        """Return the facts of an executor's end, with why this host cannot run the app."""
        assert task.order is not None
        why = find_app_error(task.order.app, facts, read_place(task.folder))
        if why is None:
            return facts
        app = task.order.app
        before = self._trials.get(app, AppTrial())
        trial = self._trials[app] = before.fail(why)
        if trial.reason is not None and before.reason is None:
            log.error(f"app {app} is taken off this host for {trial.pause_seconds:g} s: {why}")
            asyncio.get_running_loop().call_later(trial.pause_seconds, self._try_again, app)
            self.news.report()
        return msgspec.structs.replace(facts, app_error=why[:4096])

    def note_success(self, task: AgentTask | None) -> None:
        """A call of the executor ended well."""
        if not self._trials or task is None or task.order is None:
            return
        trial = self._trials.pop(task.order.app, None)
        if trial is not None and trial.reason is not None:
            self.news.report()

    def _try_again(self, app: str) -> None:
        trial = self._trials.get(app)
        if trial is not None and trial.reason is not None:
            self._trials[app] = trial.try_again()
            self.news.report()


def find_app_error(app: str, facts: TaskFacts, place: Place | None) -> str | None:
    """Return why an executor ended for its app's sake, None where it did not."""
    memory = facts.oom or facts.over_memory_bytes > 0
    if facts.stopped or facts.trip is not None or facts.lost is not None or memory:
        return None
    if facts.start_error is not None:
        never = facts.exit_code in (126, 127)
        return f"its executor cannot be started: {facts.start_error}" if never else None
    if place is None:
        return None
    if place.phase == PHASE_UNABLE:
        return _find_said(facts.log_tail) or f"functions of app {app} cannot be imported"
    if place.phase != PHASE_LOADING or place.calls or place.batch:
        return None
    how = f"signal {facts.signal}" if facts.exit_code is None else f"exit code {facts.exit_code}"
    said = facts.log_tail.strip().rpartition("\n")[2]
    last = f": {said}" if said and not said.startswith("[") else ""
    return f"the import of app {app} ended its process with {how}{last}"


def _find_said(log_tail: str) -> str:
    """Return the executor's last word."""
    lines = [line for line in log_tail.splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK) if lines else ""
