"""`projects`: their quotas, what they use of them, and their retry defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from holdfast.cli.operate.config import read_changes, value_text
from holdfast.cli.operate.resource import Columns, resource
from holdfast.cli.output import facts, note
from holdfast.client.synchronous import Client
from holdfast.core.records import ProjectRecord
from holdfast.core.words import count_of

COLUMNS: Columns[ProjectRecord] = {
    "PROJECT": lambda p: p.name,
    "JOBS": lambda p: _use(p, p.running, "quota_jobs"),
    "GPUS": lambda p: _use(p, p.gpus, "quota_gpus"),
    "UNFINISHED": lambda p: str(p.unfinished),
    "SPENT": lambda p: _spend(p) or "-",
    "RETRIES": lambda p: "held" if p.settings.get("retries_enabled") is False else "-",
    "SETTINGS": lambda p: _settings(p) or "-",
}


@resource(
    "PROJECT", COLUMNS, nothing="no projects but default; `holdfast projects create NAME` makes one"
)
def projects(client: Client) -> Sequence[ProjectRecord]:
    """List projects: running jobs, used quotas and settings.

    There is one called default; an admin makes others before work names them.

    \b
    Examples:
      holdfast projects
      holdfast projects create vision
      holdfast projects set vision quota_gpus=8 max_retries=2
      holdfast projects show vision
    """
    return client.projects()


def _use(project: ProjectRecord, count: int, name: str, noun: str = "") -> str:
    quota = project.settings.get(name)
    text = str(count) if quota is None else f"{count}/{quota}"
    return f"{text} {noun}{'' if text == '1' else 's'}" if noun else text


def _share(project: ProjectRecord) -> str:
    kinds = (
        ("share_gpus", project.gpus, "GPU"),
        ("share_cpu_slots", project.cpu_slots, "CPU slot"),
    )
    held = [
        f"{count} of {count_of(int(own), noun)}"
        for name, count, noun in kinds
        if isinstance(own := project.settings.get(name), int)
    ]
    return ", ".join(held)


def _spend(project: ProjectRecord) -> str:
    budget = project.settings.get("budget_usd_per_month")
    if not project.spent_month or (budget is None and not project.spent_usd):
        return ""
    spent = f"${project.spent_usd:,.2f}"
    return spent if not isinstance(budget, (int, float)) else f"{spent} of ${budget:,.2f}"


def _settings(project: ProjectRecord) -> str:
    return " ".join(
        f"{name}={value_text(value)}" for name, value in sorted(project.settings.items())
    )


def _project_text(p: ProjectRecord) -> str:
    hard = "refused at submission" if p.settings.get("quota") == "hard" else "made to wait"
    limited = p.settings.get("quota_jobs") is not None or p.settings.get("quota_gpus") is not None
    reason = str(p.settings.get("retries_hold_reason") or "")
    held = p.settings.get("retries_enabled") is False
    return facts(
        [
            ("project", p.name),
            (
                "running",
                f"{_use(p, p.running, 'quota_jobs', 'job')}, {_use(p, p.gpus, 'quota_gpus', 'GPU')}",
            ),
            ("share", _share(p)),
            ("unfinished", count_of(p.unfinished, "job")),
            ("over quota", f"jobs are {hard}" if limited else "no quota of its own"),
            ("spent", f"{_spend(p)} in {p.spent_month}" if _spend(p) else ""),
            ("jobs", f"none starts: {p.held}" if p.held else ""),
            ("retries", f"held{f': {reason}' if reason else ''}" if held else ""),
            ("settings", _settings(p)),
        ]
    )


@projects.add("show", _project_text)
def show_project(client: Client, name: str) -> ProjectRecord:
    """Show one project. `holdfast config --project` shows every setting in force and its source.

    \b
    Example:
      holdfast projects show vision
    """
    return client.project(name)


@projects.add("create", _project_text)
def create_project(client: Client, name: str) -> ProjectRecord:
    """Make a project, without settings of its own. One that is there stays as it is.

    \b
    Example:
      holdfast projects create vision
    """
    return client.put_project(name, {})


@projects.add("set", _project_text)
@click.argument("changes", metavar="[SETTING=VALUE]...", nargs=-1)
def set_project(
    client: Client,
    name: str,
    changes: Sequence[str],
    budget_usd: str | None,
    at_budget: Literal["notice", "hold", "preempt"] | None,
) -> ProjectRecord:
    """Make a project, or change its settings. `off` switches a limit off.

    quota_jobs and quota_gpus limit what runs at once. With quota=soft further jobs wait; with
    quota=hard they are refused at submission, and every unfinished job counts. share_gpus and
    share_cpu_slots are its own: more is borrowed while idle, and given back when asked for. Of a
    budget in dollars a month, people are told at 80 % and at 100 %; then at_budget decides whether
    further jobs wait (hold), or running ones stop as well (preempt). Retry defaults: max_retries,
    retry_delay_seconds, …

    \b
    Examples:
      holdfast projects set vision quota_gpus=8 quota=hard
      holdfast projects set speech share_gpus=4
      holdfast projects set vision --budget-usd 500 --at-budget hold
      holdfast projects set vision max_retries=2 retry_on=failures,infra,system

    budget_usd (N): Short for budget_usd_per_month=N; `off` for none; 0 is spent at once.
    at_budget: Short for at_budget=…: what follows once the budget is spent.
    """
    given = {"budget_usd_per_month": budget_usd, "at_budget": at_budget}
    said = [f"{name}={value}" for name, value in given.items() if value is not None]
    if not (changes or said):
        raise click.UsageError("name a setting, as quota_gpus=8 or --budget-usd 500")
    project = client.put_project(name, read_changes([*changes, *said]))
    if project.settings.get("budget_usd_per_month") == 0:
        from holdfast.core.report.budgets import say_nothing_to_spend

        note(say_nothing_to_spend(name, str(project.settings.get("at_budget", "notice"))))
    return project


@projects.add("unset", _project_text)
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True)
def unset_project(client: Client, name: str, settings: Sequence[str]) -> ProjectRecord:
    """Remove settings of a project, so that the cluster's values apply.

    \b
    Example:
      holdfast projects unset vision quota_gpus
    """
    return client.put_project(name, {}, settings)


@projects.deletes()
def delete_project(client: Client, name: str) -> None:
    """Forget a project's settings; refused while it has unfinished jobs. Its ended jobs stay.

    \b
    Example:
      holdfast projects delete vision
    """
    client.delete_project(name)
