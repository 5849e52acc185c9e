"""`supervise`: a policy script and its hosts as one job, each of whose ranks is a host."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.code.workdir import CODE_OPTIONS, UNSENT, send_workdir, take_workdir
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import remember_job
from holdfast.cli.jobs.flags import DATA_OPTIONS, PLACE_OPTIONS, POLICY_OPTIONS, WATCH_OPTIONS
from holdfast.cli.jobs.submit import (
    ABOUT_OPTIONS,
    NEED_OPTIONS,
    START_OPTIONS,
    name_parents,
    read_spec,
)
from holdfast.cli.options import COUNT, POSITIVE, add_options
from holdfast.cli.output import note
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.cli.code.workdir import Workdir
    from holdfast.client.locate import ControllerPlace
    from holdfast.core.records import JobRecord
    from holdfast.core.spec import JobSpec

_OPTIONS = (
    *ABOUT_OPTIONS,
    *NEED_OPTIONS,
    *PLACE_OPTIONS,
    *WATCH_OPTIONS,
    *POLICY_OPTIONS,
    *CODE_OPTIONS,
    *DATA_OPTIONS,
    *START_OPTIONS,
)
# The options of `submit` that a supervised job does not have.
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("file", "shell", "image", "runtime", "pull", "pull_timeout")),
    "volumes": (),
}


def _check_listen(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    if value is not None:
        from holdfast.supervisor.run_config import parse_listen

        try:
            parse_listen(value)
        except ValidationError as error:
            raise click.BadParameter(error.message, context, parameter) from None
    return value


@click.command()
@click.argument("script", metavar="POLICY.PY")
@click.argument("args", nargs=-1, metavar="[-- ARGS]...")
@click.option(
    "--hosts", type=POSITIVE, required=True, metavar="N", help="Hosts, including the script's own."
)
@click.option(
    "--gpus-per-host", type=COUNT, default=0, metavar="G", help="Whole GPUs of each host."
)
@click.option(
    "--python", metavar="CMD", help="The hosts' Python with Holdfast. [default: this one]"
)
@click.option("--follow", "-f", is_flag=True, help="Show the output, exit with its code.")
@click.option(
    "--metrics-port",
    metavar="[ADDRESS:]PORT",
    callback=_check_listen,
    help="Serve the supervisor's metrics on the script's host. [default address: loopback]",
)
@add_options(*_OPTIONS)
@talks
def supervise(
    io: CommandIO, script: str, args: Sequence[str], follow: bool, **options: Any
) -> None:
    """Run a policy script over N hosts, and print the job's id.

    The job is a gang. Rank 0's host runs the script; every rank, including rank 0, is a host of its
    `Context()`, which needs no port, key or address here. A rank that is lost, or whose host the
    script replaces, gets another host while the other ranks go on; the script decides about the
    processes. The job ends as the script does: exit 0 is success, anything else is a failure, after
    which all ranks start again if --max-retries allows it. --gpus-per-host, --cpus and --memory are
    for each host. --on-straggler replace gives a slow rank another host, except the script's own.

    \b
    Examples:
      holdfast supervise policy.py --hosts 16 --gpus-per-host 8
      holdfast supervise policy.py --hosts 16 --on-straggler replace
      holdfast supervise -f restart.py --hosts 2 -- --hosts 2 -- python train.py
      holdfast supervise policy.py --hosts 18 --max-retries 2 -- --spares 2
      holdfast logs -f JOB --rank 0                 the script's output

    \b
    Exit codes: as `holdfast submit`. With -f the script's own, 75 to 79 when a
    watchdog ended the job, 128 + n for signal n, 1 for a failure without a code,
    130 after Ctrl-C, which cancels it.
    """
    with io.client() as client:
        given = name_parents(client, options)
        fields: dict[str, Any] = {}
        workdir = take_workdir(fields, options)
        where = (script, args, given, os.environ, time.time(), workdir, fields)
        spec = make_spec(client.place, *where)
        spec = send_workdir(client, spec, workdir)

        def submit() -> JobRecord:
            made = client.submit(spec)
            remember_job(client, made.id)
            return made

        if follow:
            from holdfast.cli.jobs.run import follow_job

            follow_job(io, client, submit, 0)
            return
        job = submit()
    io.show(job, job.id)
    if not io.as_json and os.isatty(2):
        note(f"submitted {job.name!r}. The script's output: holdfast logs -f {job.id} --rank 0")


def make_spec(
    place: ControllerPlace,
    script: str,
    args: Sequence[str],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    now: float,
    workdir: Workdir | None = None,
    fields: Mapping[str, Any] | None = None,
) -> JobSpec:
    """Return the job: `--hosts` ranks, spread over hosts, each of which runs
    `supervisor/member/`.

    `on_partial` is "restart", because a host that the script gave back is a rank that is done, and
    the job may still be retried after a later failure of the script. `now` is Unix seconds.

    Raises:
        ValidationError: naming the flag or the field.
    """
    python = options["python"] or sys.executable
    member = [python, "-P", "-m", "holdfast.supervisor.member", str(options["gpus_per_host"])]
    given = {
        **_ABSENT, **options, "gpus": options["gpus_per_host"], "tasks": options["hosts"], "placement": "spread",
        "on_partial": "restart", "python": None, "name": options["name"] or Path(script).name,
        "command": [*member, options["metrics_port"] or "", python, script, *args],
    }  # fmt: skip
    fields = {**(fields or {}), **({} if workdir is None else {"code": UNSENT})}
    spec = msgspec.structs.replace(read_spec(place, given, environ, now, fields), supervised=True)
    where = spec.cwd if workdir is None else os.path.abspath(os.path.expanduser(workdir.path))
    if spec.code is None or workdir is not None:
        _check_script(script, where, place.is_local or workdir is not None)
    return spec


def _check_script(script: str, cwd: str | None, local: bool) -> None:
    """Refuse a script that no host could find."""
    if not os.path.isabs(script) and cwd is None:
        raise ValidationError(
            f"the hosts would look for {script} in the job's own working folder: write its whole "
            "path, or give its folder with --cwd",
            field="script",
        )
    if local and not os.path.isfile(os.path.join(cwd or "/", script)):
        raise ValidationError(f"there is no policy script {script} in {cwd or '/'}", field="script")
