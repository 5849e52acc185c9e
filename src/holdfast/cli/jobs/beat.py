"""`beat`: one datagram from inside a job, without HTTP and without waiting."""

import os
import socket

import click

from holdfast.cli.options import COUNT, describe_options
from holdfast.wire.beat import Beat, encode_beat


@click.command()
@click.argument("step", type=COUNT, required=False)
@click.argument("total", type=COUNT, required=False)
@describe_options
def beat(
    step: int | None, total: int | None, section: str | None, timeout: float | None, leave: bool
) -> None:
    """From inside a job: say that the work moved forward. Outside a job, do nothing.

    \b
    Examples:
      for i in $(seq 100); do ./work.sh "$i"; holdfast beat "$i" 100; done
      holdfast beat --section upload --timeout 600

    section: The work is in this named section now.
    timeout (SECONDS): With --section: its time limit.
    leave: With --section: the section ends here.
    """
    if section is None and (timeout is not None or leave):
        raise click.UsageError("--timeout and --leave belong to --section")
    path, task = os.environ.get("HOLDFAST_BEAT_SOCKET"), os.environ.get("HOLDFAST_TASK")
    if not path or not task:
        return
    data = encode_beat(
        Beat(task=task, step=step, total=total, section=section, timeout=timeout, leave=leave)
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(data, path)
        except OSError:
            pass  # a full socket drops the beat, because a job must never fail by it
