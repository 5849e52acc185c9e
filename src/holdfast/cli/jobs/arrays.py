"""Arrays on the command line: submitted, and shown."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from holdfast.cli.command_io import CommandIO
from holdfast.cli.find.arrays import say_counts
from holdfast.cli.jobs.jobs import jobs_table
from holdfast.cli.output import age, facts, note, paint, print_text
from holdfast.core.arrays.sweeps import expand_sweep

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord
    from holdfast.core.records import JobRecord
    from holdfast.core.spec import JobSpec

SHOWN = 20
# What needs a look comes first: members that wait would else fill the page before those that failed.
_GROUPS = (("failed", "cancelled"), ("running", "reserved", "draining"), ("queued", "waiting"))


def submit_many(
    client: Client,
    spec: JobSpec,
    array: str | None,
    sweep: dict[str, Any] | None,
    at_once: int | None,
) -> ArrayRecord:
    """Submit a spec once for each index, or for each point of the sweep."""
    if sweep is None:
        if at_once is not None:
            array = f"{array}%{at_once}"
        return client.submit_array(array or "", spec)
    expand_sweep(sweep)  # so that an error is told before anything is sent
    return client.submit_sweep(sweep, spec, at_once=at_once)


def show_array(io: CommandIO, client: Client, array: ArrayRecord, *, indices: bool) -> None:
    """Show one array, and its members: those that are not done well, or all with `indices`."""
    if io.as_json:
        members = list(client.jobs(array=array.id, page_size=500)) if indices else []
        io.show_json({"array": array, "members": members} if indices else array)
        return
    listed = (
        list(client.jobs(array=array.id, page_size=500)) if indices else list_some(client, array)
    )
    spec = array.spec
    command = spec.shell if spec.shell is not None else " ".join(spec.argv)
    lines = [
        ("id", array.id),
        ("name", array.name),
        ("state", f"{paint(array.state.value)}  {array.reason}"),
        ("members", say_counts(array.counts)),
        ("indices", array.indices),
        ("at once", "" if array.at_once is None else str(array.at_once)),
        ("failed", array.failed),
        ("queue", array.queue),
        ("project", array.project),
        ("owner", array.owner),
        ("command", command),
        ("created", f"{age(array.created_at)} ago"),
    ]
    print_text(facts([(name, value) for name, value in lines if value]))
    if listed:
        rows = sorted(listed, key=lambda job: job.array_index or 0) if indices else listed
        print_text("\n" + jobs_table(rows))
    if not indices and array.size > len(listed):
        note(f"every member: holdfast show {array.id} --indices; one: holdfast show {array.id}[N]")


def list_some(client: Client, array: ArrayRecord) -> list[JobRecord]:
    """Return some members: of those that failed, of those at work and of those that wait a third
    each, and more of one kind where there are fewer of another."""
    found = [
        list(itertools.islice(client.jobs(array=array.id, states=states, page_size=SHOWN), SHOWN))
        for states in _GROUPS
        if any(array.counts.get(state) for state in states)
    ]
    shares = [0] * len(found)
    while sum(shares) < min(SHOWN, sum(map(len, found))):
        for n, members in enumerate(found):
            shares[n] += shares[n] < len(members) and sum(shares) < SHOWN
    return [job for n, members in enumerate(found) for job in members[: shares[n]]]
