"""Record what projects have spent this month, and tell, hold or stop where a budget is reached."""

import logging
from collections.abc import Mapping

from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.report.sums import find_budget, read_spent
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.report.budgets import MonthBudget, Spend, begin_month, judge
from holdfast.core.report.money import PRICE, Prices
from holdfast.core.states import JobState
from holdfast.core.webhooks.notices import BUDGET_REACHED
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import JobFilter

log = logging.getLogger("holdfast.loops")
MOST_STOPPED = 1000


class BudgetsLoop(Loop):
    """Judges what each project has spent of its month's budget (SPEND-1…3)."""

    name = "budgets"
    topic = "budgets"
    interval_seconds = 60.0

    async def run_once(self) -> Summary:
        controller, store = self._controller, self._controller.store
        settings = await controller.settings.current()
        prices = Prices(await store.money.note_prices(settings.environment_number(PRICE)))
        before = await store.money.read_spends()
        if not settings.sets("budget_usd_per_month") and set(before.values()) <= {Spend()}:
            return {}  # a cluster without budgets reads no month of its ledger
        now = await store.now()
        spent = await read_spent(store, prices, begin_month(now), now)
        spends: dict[str, Spend] = {}
        events: list[NewEvent] = []
        stops: dict[str, str] = {}
        for project in sorted({*before, *spent}):
            budget = find_budget(settings, project)
            if budget is None and project not in before:
                continue  # a project without settings needs no row
            known = before.get(project, Spend())
            found = judge(project, budget, known, round(spent.get(project, 0.0), 4), now)
            if found.spend != known:
                spends[project] = found.spend
            if found.tell and budget is not None:
                events.append(_tell(settings, project, budget, found.spend, found.tell))
            if found.stop:
                stops[project] = found.spend.held
        if spends or events:
            await store.money.write_spends(spends, events)
            controller.poke("admit", "events")
        stopped = await self._stop(stops)
        counts = {"written": len(spends), "told": len(events), "stopped": stopped}
        return {name: count for name, count in counts.items() if count}

    async def _stop(self, stops: Mapping[str, str]) -> int:
        """Stop the running jobs of these projects; each saves, and is queued again."""
        controller, stopped = self._controller, 0
        for project, reason in stops.items():
            states = (str(JobState.RESERVED), str(JobState.RUNNING))
            only = JobFilter(projects=(project,), states=states, limit=MOST_STOPPED)
            for job in await controller.store.jobs.list_jobs(only):
                stopped += await controller.store.jobs.drain_job(
                    job.id, Cause.PREEMPTED, reason, epoch=job.epoch
                )
        if stopped:
            log.warning("%d jobs are stopped, because budgets are spent", stopped)
            controller.poke("drain", "events")
        return stopped


def _tell(
    settings: Settings, project: str, budget: MonthBudget, spend: Spend, words: str
) -> NewEvent:
    log.warning("%s", words)
    data = {
        "percent": spend.told,
        "month": spend.month,
        "spent_usd": round(spend.usd, 2),
        "budget_usd": budget.usd,
        "at_budget": budget.at,
        "notify": str(settings.value("notify", project=project) or ""),
    }
    return NewEvent(kind=BUDGET_REACHED, project=project, message=words, data=data)
