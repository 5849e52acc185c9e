"""`cancel` and `retry`, each for several jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.jobs.find import find_job
from holdfast.cli.output import Face, note, paint, print_text, talks
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the job.")
@click.option("--hard", is_flag=True, help="Kill at once, without TERM and grace.")
@talks
def cancel(face: Face, job_ids: Sequence[str], reason: str, hard: bool) -> None:
    """Cancel jobs. Running tasks get TERM, their grace, then KILL.

    \b
    Example:
      holdfast cancel 06ch2v8wq1m4kz7d9x3t --reason "wrong data"
    """
    with face.client() as client:
        _each(face, client, job_ids, lambda job_id: client.cancel(job_id, reason, hard=hard))


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--counted", is_flag=True, help="As one of its retries; refused if they are spent.")
@click.option(
    "--from-checkpoint/--from-scratch",
    "keep",
    default=True,
    help="With its checkpoints, or without.",
)
@talks
def retry(face: Face, job_ids: Sequence[str], counted: bool, keep: bool) -> None:
    """Queue failed or cancelled jobs again.

    Without --counted all budgets begin anew. Each rank starts from its newest checkpoint. A parked
    job goes on, and a job in back-off stops waiting. If a supervised job runs, its parked ranks get
    hosts again.

    \b
    Examples:
      holdfast retry 06ch2v8wq1m4kz7d9x3t
      holdfast retry --counted 06ch2v8wq1m4kz7d9x3t
      holdfast retry --from-scratch 06ch2v8wq1m4kz7d9x3t
    """
    with face.client() as client:
        scratch = not keep
        _each(
            face, client, job_ids, lambda i: client.retry(i, counted=counted, from_scratch=scratch)
        )


def _each(face: Face, client: Client, job_ids: Sequence[str], act: Any) -> None:
    """Act on every job, even after a refusal; the first refusal decides the exit code."""
    done = []
    refused: HoldfastError | None = None
    for job_id in job_ids:
        try:
            job = act(find_job(client, job_id))
        except HoldfastError as error:
            if refused is not None and not face.as_json:
                note(f"{job_id}: {error}")
            refused = refused or error
            continue
        done.append(job)
        if not face.as_json:
            print_text(f"{job.id}  {paint(job.state.value)}  {job.reason}".rstrip())
    if face.as_json and done:
        face.show_json(done[0] if len(job_ids) == 1 else done)
    if refused is not None:
        raise refused
