"""`notebook`: Jupyter in a job, and its port here."""

from __future__ import annotations

import os
import secrets
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.endings import EXIT_INTERRUPTED
from holdfast.cli.find.jobs import find_job
from holdfast.cli.jobs.logs import exit_code_of_job, tell_end
from holdfast.cli.jobs.run import wait_to_run
from holdfast.cli.jobs.submit import submit_spec, takes_spec
from holdfast.cli.options import COUNT
from holdfast.cli.output import note, print_text
from holdfast.cli.sessions.terminal import tell_lost
from holdfast.errors import Unavailable, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.sessions.forward import PortForward
    from holdfast.core.records import JobRecord

TOKEN = "JUPYTER_TOKEN"
"""The variable in which Jupyter looks for its token."""
PORT_LABEL = "holdfast-notebook-port"
_PORTS = range(20_000, 30_000)
_START = r"""
for one in "jupyter-lab" "jupyter-notebook"; do
  if command -v "$one" >/dev/null 2>&1; then set -- "$one" "$@"; break; fi
done
if [ "${1#jupyter-}" = "$1" ]; then
  if command -v jupyter >/dev/null 2>&1; then set -- jupyter lab "$@"; else
    echo "holdfast: no Jupyter is installed where this job runs: pip install jupyterlab, or an --image with it" >&2
    exit 127
  fi
fi
[ "$(id -u)" != 0 ] || set -- "$@" --allow-root
exec "$@"
"""
_READY_SECONDS = 0.5
_LOOK_SECONDS = 2.0
_NOT_INSTALLED = 127


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--port", "local", type=COUNT, default=0, help="The port here. [default: any free]")
@click.option("--job", "job_word", metavar="JOB", help="Come back to this notebook.")
@takes_spec
@talks
def notebook(io: CommandIO, local: int, job_word: str | None, **options: Any) -> None:
    """Start Jupyter in a job, and reach it on this machine.

    It is the job's own Jupyter: of its image, its environment, or the host's. The address is printed
    once, with a token that is a secret of the job. Ctrl-C asks whether to end the job. The job is
    never run again by itself, and ends where it is left (--idle-timeout). Words after -- go to
    Jupyter.

    \b
    Examples:
      holdfast notebook --gpus 1
      holdfast notebook --image quay.io/jupyter/pytorch-notebook --gpus 1
      holdfast notebook --setup "uv pip install jupyterlab" --port 8888
      holdfast notebook --job JOB
    """
    with io.client() as client:
        job: JobRecord
        if job_word is not None:
            job = client.job(find_job(client, job_word))
            token = _ask_token(client, job.id)
        else:
            token = secrets.token_urlsafe(24)
            job = _submit(client, options, token)
            note(f"notebook is job {job.id}")
        try:
            job = wait_to_run(client, job)
        except KeyboardInterrupt:
            job = _ask_end(client, job)
        _serve(client, job, local, token)


def _submit(client: Client, options: dict[str, Any], token: str) -> JobRecord:
    port = secrets.choice(_PORTS)
    words = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--port-retries=0"]
    more = list(options["command"])
    options |= {
        "attended": True,
        "command": ("/bin/sh", "-c", _START, "notebook", *words, *more),
        "name": options["name"] or "notebook",
        "secrets": (*options["secrets"], f"{TOKEN}={token}"),
        "labels": (*options["labels"], f"{PORT_LABEL}={port}"),
    }
    submitted: JobRecord = submit_spec(client, options)
    return submitted


def _ask_token(client: Client, job_id: str) -> str:
    """Return the token of a notebook, from its own environment."""
    words = ["/bin/sh", "-c", f'printf %s "${TOKEN}"']
    with client.open_session(job_id, words, linger_seconds=0) as session:
        session.close_stdin()
        return b"".join(data for stream, data in session if stream == "stdout").decode()


def _serve(client: Client, job: JobRecord, local: int, token: str) -> None:
    """Forward the notebook's port until its job ends, or Ctrl-C."""
    if job.state.terminal:
        _end(client, job)
    port = job.spec.labels.get(PORT_LABEL)
    if port is None:
        raise ValidationError(f"job {job.id} is no notebook", field="job")
    try:
        forward = client.forward_port(job.id, int(port), local_port=local, on_notice=note)
    except OSError as error:
        raise ValidationError(
            f"port {local} cannot be listened on here: {error.strerror}", field="port"
        ) from error
    with forward:
        shown = lost = False
        while True:
            try:
                if not shown and _answers(forward):
                    print_text(f"http://127.0.0.1:{forward.port}/?token={token}")
                    shown = True
                if forward.wait(_LOOK_SECONDS if shown else _READY_SECONDS):
                    break
                job = client.job(job.id)
                if lost:
                    tell_lost("")
                lost = False
                if job.state.terminal:
                    break
            except Unavailable as error:  # the port stays, and goes on once the line is back
                if not lost:
                    tell_lost(str(error))
                lost = True
            except KeyboardInterrupt:
                job = _ask_end(client, job)
    _end(client, client.wait(job.id))


def _answers(forward: PortForward) -> bool:
    """Return whether Jupyter answers yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/api", timeout=5.0):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _ask_end(client: Client, job: JobRecord) -> JobRecord:
    """Ask whether to end the job. Leaves this program where the person would not."""
    back = f"back to it: holdfast notebook --job {job.id}; end it: holdfast cancel {job.id}"
    if not os.isatty(0):
        note(f"left; {back}")
        _leave(EXIT_INTERRUPTED)
    try:
        ends = click.confirm("\nEnd the notebook and its job?", default=False, err=True)
    except (click.Abort, KeyboardInterrupt):
        ends = False
    if not ends:
        note(f"left; {back}")
        _leave(0)
    client.cancel(job.id, "Ctrl-C in `holdfast notebook`")
    return client.wait(job.id)


def _end(client: Client, job: JobRecord) -> None:
    if job.exit_code == _NOT_INSTALLED:
        note(
            "no Jupyter is installed where this job ran: pip install jupyterlab there, or name an "
            f"--image that has it; what it printed: holdfast logs {job.id}"
        )
    tell_end(job)
    _leave(exit_code_of_job(job, None))


def _leave(code: int) -> None:
    """Exit without waiting for threads of connections."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
