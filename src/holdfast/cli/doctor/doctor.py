"""The command `doctor`: the faults of this machine and of its server, each with its mend."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import click

from holdfast.agent.health.parts import ask_parts
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.doctor.bundle import Report, check_target, make_report, write_report
from holdfast.cli.doctor.places import Places, find_places
from holdfast.cli.doctor.probe import ProbeOrder
from holdfast.cli.endings import EXIT_FAILED, EXIT_OK
from holdfast.cli.output import note, print_text
from holdfast.cli.up.up import DEFAULT_PORT
from holdfast.cli.where.asking import find_controller
from holdfast.cli.where.findings import draw_findings
from holdfast.client.contexts.file import find_contexts_file
from holdfast.client.locate import ControllerPlace
from holdfast.core.doctor.controller import judge_controller
from holdfast.core.doctor.findings import DoctorFinding, Level, find_gravest, problem
from holdfast.core.doctor.machine import judge_machine
from holdfast.core.words import count_of, short_bytes
from holdfast.errors import HoldfastError

SECONDS = 25.0


def make_order(places: Places, *, host: bool, dsn: str | None) -> ProbeOrder:
    """Return the order that says which parts of this machine are looked at."""
    folders = {os.path.abspath(os.environ.get("TMPDIR") or "/tmp"): "temporary files"}
    files: dict[str, str] = {}
    contexts = find_contexts_file(os.environ)
    if contexts is not None:
        files[str(contexts)] = "tokens of contexts"
    if os.environ.get("HOLDFAST_TOKEN_FILE"):
        files[os.path.abspath(os.environ["HOLDFAST_TOKEN_FILE"])] = "HOLDFAST_TOKEN_FILE"
    if places.data is not None:
        folders[str(places.data)] = "the data of `up`"
        files |= {
            str(places.data): "the data of `up`",
            str(places.data / "token"): "the admin token",
        }
    if places.state is not None:
        folders[str(places.state)] = "the agent's state"
        files |= {
            str(places.state): "the agent's state",
            str(places.state / "host.json"): "the host's key",
        }
    return ProbeOrder(
        folders=folders,
        files=files,
        host=host,
        data=str(places.data) if places.data else "",
        state=str(places.state) if places.state else "",
        port=DEFAULT_PORT,
        dsn=dsn,
    )


def examine_machine(order: ProbeOrder) -> list[DoctorFinding]:
    """Look at this machine, for at most `SECONDS`, and return the findings."""
    logging.getLogger("holdfast.agent.health").setLevel(logging.ERROR)  # the findings say it
    fragments = asyncio.run(ask_parts("holdfast.cli.doctor.probe", order, SECONDS))
    return judge_machine(list(order.parts), fragments, SECONDS)


def examine_controller(io: CommandIO) -> tuple[list[DoctorFinding], ControllerPlace | None]:
    """Look at the server that commands go to, and return the findings."""
    try:
        facts, place = find_controller(io.url, io.read_token(), io.context)
    except HoldfastError as error:  # a file of contexts that cannot be used, and the like
        return [problem("controller", error.message, "Mend what is named, then look again")], None
    return list(judge_controller(facts, datetime.now(UTC), needed=False)), place


@click.command()
@click.option("--host", is_flag=True, help="Look at what tasks need, though no agent is here yet.")
@click.option("--data", metavar="DIR", help="The data folder of an `up`. [default: the nearest]")
@click.option("--state", metavar="DIR", help="An agent's folder. [default: that of `agent`]")
@click.option(
    "--dsn",
    envvar="HOLDFAST_DSN",
    metavar="DSN",
    help="A database to look at. [default: HOLDFAST_DSN]",
)
@click.option(
    "--bundle", metavar="FILE", help="Write what a report of a fault needs to this .tar.gz."
)
@click.option("--all", "every", is_flag=True, help="Show what is right, too.")
@talks
def doctor(
    io: CommandIO,
    host: bool,
    data: str | None,
    state: str | None,
    dsn: str | None,
    bundle: str | None,
    every: bool,
) -> int:
    """Say what is wrong on this machine and with its server, each with its mend.

    On a laptop: the server, the token, clocks, versions, disks, private files. Where an agent or an
    `up` has its folder, or with --host, also what tasks need: control groups, GPUs and their
    driver, containers, /dev/shm, limits; with a database (--dsn, or that of an `up`) its settings,
    too. It changes nothing, and ends within half a minute where a disk or a driver hangs. Exit 1
    if there is a problem; warnings alone are 0.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --host --all
      holdfast doctor --json
      holdfast doctor --bundle report.tar.gz
    """
    target = None if bundle is None else check_target(Path(bundle))
    places = find_places(data, state)
    host = host or places.data is not None or places.state is not None
    order = make_order(places, host=host, dsn=dsn)
    about_server, place = examine_controller(io)
    findings = [*about_server, *examine_machine(order)]
    gravest = find_gravest(findings)
    if target is not None:
        report = make_report(findings, places, place, dsn)
        length = write_report(report, target)
        _show_report(io, report, target, length)
        return EXIT_OK
    value = {"gravest": gravest, "host": host, "findings": findings}
    if io.as_json:
        io.show_json(value)
    else:
        print_text(_draw(findings, every=every))
    return EXIT_FAILED if gravest is Level.PROBLEM else EXIT_OK


def _show_report(io: CommandIO, report: Report, path: Path, length: int) -> None:
    value = {
        "file": str(path),
        "size": length,
        "contents": {name: len(data) for name, data in report.files.items()},
        "absent": report.absent,
    }
    io.show(value, report.write_contents())
    if not io.as_json:
        note(f"wrote {path} ({short_bytes(length)}); look through it before you send it")


def _draw(findings: list[DoctorFinding], *, every: bool) -> str:
    order = [Level.PROBLEM, Level.WARNING, Level.OK]
    shown = [one for one in findings if every or one.level is not Level.OK]
    shown.sort(key=lambda one: order.index(one.level))
    count = {level: sum(one.level is level for one in findings) for level in Level}
    said = (
        f"{count_of(count[Level.PROBLEM], 'problem')}, {count_of(count[Level.WARNING], 'warning')}, "
        f"{count[Level.OK]} ok" + ("" if every else "; --all shows what is right")
    )
    return "\n".join([draw_findings(shown), "", said] if shown else [said])
