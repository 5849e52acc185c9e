"""`projects`: their quotas, what they use of them, and their retry defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.face import Face, talks
from holdfast.cli.operate.config import read_changes, value_text
from holdfast.cli.output import count_of, facts, table

if TYPE_CHECKING:
    from holdfast.core.records import ProjectRecord


@click.group(invoke_without_command=True)
@click.pass_context
@talks
def projects(face: Face, context: click.Context) -> None:
    """List projects: running jobs, used quotas and settings.

    There is one called default; an admin makes others before work names them.

    \b
    Examples:
      holdfast projects
      holdfast projects create vision
      holdfast projects set vision quota_gpus=8 max_retries=2
      holdfast projects show vision
    """
    if context.invoked_subcommand is not None:
        return
    with face.client() as client:
        rows = client.projects()
    face.show(
        rows,
        projects_table(rows)
        if rows
        else "no projects but default; `holdfast projects create NAME` makes one",
    )


def projects_table(rows: Sequence[ProjectRecord]) -> str:
    """Draw the table of `projects`."""
    return table(
        ("PROJECT", "JOBS", "GPUS", "UNFINISHED", "RETRIES", "SETTINGS"),
        [
            (
                p.name,
                _use(p, p.running, "quota_jobs"),
                _use(p, p.gpus, "quota_gpus"),
                str(p.unfinished),
                "held" if p.settings.get("retries_enabled") is False else "-",
                _settings(p) or "-",
            )
            for p in rows
        ],
    )


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
            ("retries", f"held{f': {reason}' if reason else ''}" if held else ""),
            ("settings", _settings(p)),
        ]
    )


@projects.command("show")
@click.argument("name", metavar="PROJECT")
@talks
def show_project(face: Face, name: str) -> None:
    """Show one project. `holdfast config --project` shows every setting in force and its source.

    \b
    Example:
      holdfast projects show vision
    """
    face.answer(lambda client: client.project(name), _project_text)


@projects.command("create")
@click.argument("name", metavar="PROJECT")
@talks
def create_project(face: Face, name: str) -> None:
    """Make a project, without settings of its own. One that is there stays as it is.

    \b
    Example:
      holdfast projects create vision
    """
    face.answer(lambda client: client.put_project(name, {}), _project_text)


@projects.command("set")
@click.argument("name", metavar="PROJECT")
@click.argument("changes", metavar="SETTING=VALUE...", nargs=-1, required=True)
@talks
def set_project(face: Face, name: str, changes: Sequence[str]) -> None:
    """Make a project, or change its settings. `off` switches a limit off.

    quota_jobs and quota_gpus limit what runs at once. With quota=soft further jobs wait; with
    quota=hard they are refused at submission, and every unfinished job counts. share_gpus and
    share_cpu_slots are its own: more is borrowed while idle, and given back when asked for. Retry
    defaults:
    max_retries, retry_delay_seconds, retry_backoff, …

    \b
    Examples:
      holdfast projects set vision quota_gpus=8 quota=hard
      holdfast projects set speech share_gpus=4
      holdfast projects set vision max_retries=2 retry_on=failures,infra,system
    """
    face.answer(lambda client: client.put_project(name, read_changes(changes)), _project_text)


@projects.command("unset")
@click.argument("name", metavar="PROJECT")
@click.argument("settings", metavar="SETTING...", nargs=-1, required=True)
@talks
def unset_project(face: Face, name: str, settings: Sequence[str]) -> None:
    """Remove settings of a project, so that the cluster's values apply.

    \b
    Example:
      holdfast projects unset vision quota_gpus
    """
    face.answer(lambda client: client.put_project(name, {}, settings), _project_text)


@projects.command("delete")
@click.argument("name", metavar="PROJECT")
@talks
def delete_project(face: Face, name: str) -> None:
    """Forget a project's settings; refused while it has unfinished jobs. Its ended jobs stay.

    \b
    Example:
      holdfast projects delete vision
    """
    with face.client() as client:
        client.delete_project(name)
    face.show({"deleted": name}, f"{name}: deleted")
