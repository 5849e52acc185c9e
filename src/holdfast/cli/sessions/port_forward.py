"""`port-forward`: a port of a running task, on this machine."""

from __future__ import annotations

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import COUNT, JOB
from holdfast.cli.output import note, print_text
from holdfast.errors import ValidationError


def read_ports(text: str) -> tuple[int, int]:
    """Read `PORT[:LOCAL]`; a local port of 0 is any free one. Raises ValidationError."""
    there, colon, here = text.partition(":")
    if not there.isdigit() or (colon and not here.isdigit()):
        raise ValidationError(f"{text!r} is not PORT or PORT:LOCAL, as 6006:16006", field="port")
    remote, local = int(there), int(here or there)
    if not 0 < remote < 65_536 or local > 65_535:
        raise ValidationError(f"{text!r}: a port is a number from 1 to 65535", field="port")
    return remote, local


@click.command()
@JOB
@click.argument("ports", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
@click.option("--rank", type=COUNT, default=0, help="The task of a gang.")
@click.option("--address", default="127.0.0.1", help="Listen here, instead of on loopback alone.")
@talks
def port_forward(
    io: CommandIO, job_id: str, ports: tuple[str, ...], rank: int, address: str
) -> None:
    """Reach ports of a running task on this machine, until Ctrl-C or the job's end.

    A connection goes to a port on which a process of that task listens, looked up each time; to
    no other service of its host. It stays open over a lost line and over the job's next attempts.

    \b
    Examples:
      holdfast port-forward @last 6006
      holdfast port-forward JOB 8888:18888 6006
      holdfast port-forward JOB 6006:0 --rank 3
    """
    wanted = [read_ports(text) for text in ports]
    with io.client() as client:
        found = find_job(client, job_id)
        client.job(found)  # so that a job that is not there is told now
        forwards = []
        for remote, local in wanted:
            try:
                one = client.forward_port(
                    found,
                    remote,
                    local_port=local,
                    address=address,
                    rank=rank,
                    on_refused=note,
                    on_notice=note,
                )
            except OSError as error:
                raise ValidationError(
                    f"port {local} of {address} cannot be listened on here: {error.strerror}; name "
                    f"another, as {remote}:0",
                    field="port",
                ) from error
            forwards.append(one)
            shown = f"[{address}]" if ":" in address else address
            print_text(f"http://{shown}:{one.port} → port {remote} of job {found}")
        io.waiting.close()
        try:
            while not any(one.wait(0.5) for one in forwards):
                pass
        finally:
            for one in forwards:
                one.close()
        for one in forwards:
            if one.error is not None:
                raise one.error
            if one.over:
                note(one.over)
