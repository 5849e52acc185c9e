"""`up`: everything on this machine, from one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from holdfast.client.locate import DATA_FOLDER
from holdfast.errors import ValidationError

DEFAULT_PORT = 7878
MAX_GPUS = 1024


@click.command()
@click.option(
    "--slots",
    type=click.IntRange(0, 65_536),
    help="CPU tasks at once; the number of CPUs otherwise.",
)
@click.option("--gpus", metavar="N|auto", default="auto", show_default=True, help="GPUs to offer.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"{DEFAULT_PORT}, or a free one if taken; 0 takes any.",
)
@click.option(
    "--dsn",
    envvar="HOLDFAST_DSN",
    metavar="DSN",
    help="Your own PostgreSQL (14 or newer) instead of ours.",
)
@click.option(
    "--data",
    default=DATA_FOLDER,
    show_default=True,
    metavar="DIR",
    help="Where everything is kept.",
)
@click.option(
    "--blobs",
    envvar="HOLDFAST_BLOBS",
    metavar="DIR|s3://BUCKET/PREFIX",
    help="Where checkpoints are kept; a folder in --data otherwise.",
)
@click.option(
    "--queues", metavar="Q,Q", help="Queues the local agent serves; every queue otherwise."
)
@click.option("--name", help="The local host's name; this machine's otherwise.")
def up(
    slots: int | None,
    gpus: str,
    port: int | None,
    dsn: str | None,
    data: str,
    blobs: str | None,
    queues: str | None,
    name: str | None,
) -> int:
    """Start everything here: database, controller, one agent. Ctrl-C stops all of it.

    All it keeps is in one folder, ./holdfast-data: the database, the token (file `token`), the
    address (file `url`, there while it is ready), checkpoints (`blobs/`), the logs of each part
    (`log/`). Commands run in this folder or below find it by themselves; where --data is not called
    holdfast-data, set HOLDFAST_URL and HOLDFAST_TOKEN as it says when it is ready. It listens on
    loopback only.

    \b
    Examples:
      holdfast up
      holdfast up --slots 4 --gpus 0 --port 0
      holdfast up --dsn postgresql://me@db.example/holdfast
    """
    from holdfast.cli.extras import need_server
    from holdfast.cli.up.folder import DataFolder
    from holdfast.cli.up.supervisor import Supervisor, UpOptions, open_listener
    from holdfast.process.groups import step_aside

    need_server()
    agent = agent_options(slots=slots, gpus=gpus, queues=queues, name=name)
    if blobs is not None and "://" in blobs:
        from holdfast.blobs.locate import open_blobs

        open_blobs(blobs, os.environ)  # what it refuses is refused before anything is started
    folder = DataFolder(Path(data).expanduser())
    folder.prepare()
    folder.lock()
    step_aside()
    try:
        folder.unpublish()  # of one that was killed
        folder.end_leftovers(say)
        folder.rotate_logs(at_start=True)
        listener = open_listener("127.0.0.1", port, DEFAULT_PORT, say)
        with listener:
            # Parts run in the data folder, so a folder named from here is made whole here.
            place = (
                blobs
                if blobs is None or "://" in blobs
                else os.path.abspath(os.path.expanduser(blobs))
            )
            options = UpOptions(dsn=dsn, host="127.0.0.1", agent=agent, blobs=place)
            return Supervisor(folder, options, listener, say).run()
    finally:
        folder.unlock()


def agent_options(
    *, slots: int | None, gpus: str, queues: str | None, name: str | None
) -> dict[str, Any]:
    """Fields of an agent's config from flags. Raises ValidationError."""
    options: dict[str, Any] = {
        "cpu_slots": len(os.sched_getaffinity(0)) if slots is None else slots
    }
    if gpus != "auto":
        options["gpus"] = read_gpus(gpus)
    if queues:
        options["queues"] = [
            _read_name("queues", queue.strip()) for queue in queues.split(",") if queue.strip()
        ]
    if name is not None:
        options["name"] = _read_name("name", name)
    return options


def _read_name(flag: str, text: str) -> str:
    import msgspec

    from holdfast.core.spec import Name

    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise ValidationError(
            f"--{flag}: {text[:40]!r} is not a name: letters, digits, `.`, `_`, `/` and `-`, a "
            "letter or digit first, at most 128",
            field=flag,
        ) from None


def read_gpus(text: str) -> int:
    """Read how many GPUs a machine offers. Raises ValidationError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MAX_GPUS):
        raise ValidationError(
            f"--gpus is auto or a number up to {MAX_GPUS}, not {text[:40]!r}", field="gpus"
        )
    return int(text)


def say(sentence: str) -> None:
    """A sentence for the person at the terminal. One who hung up misses it, and nothing else."""
    try:
        click.echo(f"holdfast up: {sentence}")
    except OSError:
        pass
