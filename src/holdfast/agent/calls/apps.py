"""Find the apps that this host lists and cannot run now, from the ends of their executors.

ABLE-4  An executor failed because of its app if it ended, in any way, while it imported the app, or
        if functions of the app cannot be imported here, or if its interpreter cannot be started.
        After `TRIES` such failures in a row the app is taken off this host for a pause, which is
        twice as long each time. The end of the pause, or a call that succeeds, brings it back.
        An app whose code was brought along is no app of this host: its failures are its own.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.calls.places import Place, read_place
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.sync_wish import SyncWish
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
    """The failures of one app on this host.

    failures: the number of executors in a row that failed because of the app. aside: the number of
    times in a row that the app was taken off. reason: the sentence of the last failure while the
    app is off; None while it is listed.
    """

    failures: int = 0
    aside: int = 0
    reason: str | None = None

    def fail(self, reason: str) -> "AppTrial":
        """Count a failure of the app. An app that is back after a pause is off this host again at
        its first failure."""
        failures = self.failures + 1
        if failures < TRIES and not self.aside:
            return AppTrial(failures)
        aside = self.aside + (self.reason is None)
        return AppTrial(failures, aside, reason[:MAX_REASON])

    def try_again(self) -> "AppTrial":
        """Offer the app to the controller again, after its pause."""
        return AppTrial(self.failures, self.aside)

    @property
    def pause_seconds(self) -> float:
        """Return the seconds for which the app stays off this host."""
        return min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.aside - 1, 10), MAX_PAUSE_SECONDS)


@dataclass(eq=False)
class AppTrials:
    """Holds the apps of this host that failed lately."""

    news: SyncWish
    _trials: dict[str, AppTrial] = field(default_factory=dict)

    def list_faults(self) -> list[Hindrance]:
        """Return a hindrance for each app that is off this host, for the controller."""
        off = {app: trial.reason for app, trial in self._trials.items() if trial.reason is not None}
        return [Hindrance(part="apps", apps=(app,), reason=why) for app, why in off.items()][:8]

    def judge_end(self, task: AgentTask, facts: TaskFacts) -> TaskFacts:
        """Return the facts of an executor's end, with the reason if this host cannot run the
        app."""
        assert task.order is not None
        why = find_app_error(task.order.app, facts, read_place(task.folder))
        if why is None:
            return facts
        if task.order.code is not None:
            return msgspec.structs.replace(facts, app_error=why[:4096])
        app = task.order.app
        before = self._trials.get(app, AppTrial())
        trial = self._trials[app] = before.fail(why)
        if trial.reason is not None and before.reason is None:
            log.error(f"app {app} is taken off this host for {trial.pause_seconds:g} s: {why}")
            asyncio.get_running_loop().call_later(trial.pause_seconds, self._try_again, app)
            self.news.report()
        return msgspec.structs.replace(facts, app_error=why[:4096])

    def note_success(self, task: AgentTask | None) -> None:
        """Note that a call of the executor succeeded, which brings its app back."""
        if not self._trials or task is None or task.order is None or task.order.code is not None:
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
    """Return the reason if an executor failed because of its app; None if it did not."""
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
    """Return the executor's own last line of the log; an empty text if it wrote none."""
    lines = [line for line in log_tail.splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK) if lines else ""
