"""One report of where every rank of a running group is, for a policy script.

    log.error("%s", gather_debug(ctx, group, "debug-report.txt").sentence)

A node on each host takes the stacks of its ranks and their children, says which are stopped or
stuck in the kernel, asks them for their flight records, and reads those. Nodes merge their reports
up a tree, so that the script reads one message and no host more than a few. Nothing is ended.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.supervisor.gather.flights import GroupFlights, judge_flights
from holdfast.supervisor.gather.ranks import Looks, look_at_ranks, merge_looks
from holdfast.supervisor.gather.spans import (
    Spans,
    count_ranks,
    join_spans,
    make_spans,
    name_ranks,
    subtract,
)
from holdfast.supervisor.rosters.groups import ProcessGroup
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.script.context import Context
from holdfast.supervisor.tree.mapreduce import WIDTH

COLLECT_SECONDS = 60.0  # for a host's own ranks


class DebugReport(NamedTuple):
    """The report. sentence: what to look at first. text: the whole report, the sentence first."""

    sentence: str
    text: str

    def __str__(self) -> str:
        return self.text


def gather_debug(
    ctx: Context,
    group: ProcessGroup,
    file: str | os.PathLike[str] | None = None,
    *,
    timeout: float = COLLECT_SECONDS,
    width: int = WIDTH,
) -> DebugReport:
    """Report on a running group, and write the text to `file`. The report names ranks that do not
    answer in time."""
    pids = find_pids(group)
    hosts = [host for host in pids if host.attached]
    inputs = [[[rank, pid] for rank, pid in pids[host]] for host in hosts]
    found = ctx.mapreduce(hosts, look_at_ranks, merge_looks, inputs, timeout=timeout, width=width)
    looks = msgspec.convert(found.value, Looks) if found.value is not None else Looks()
    missing = {str(host): reason for host, reason in found.missing.items()}
    report = render_report(looks, group.world_size, missing, find_ended(group))
    if file is not None:
        Path(file).write_text(report.text)
    return report


def find_pids(group: ProcessGroup) -> dict[Host, list[tuple[int, int]]]:
    """Return rank and pid of every running process, by host."""
    found: dict[Host, list[tuple[int, int]]] = {}
    for process in group:
        pid = process.pid()
        if pid.done() and pid.exception() is None and not process.returncode().done():
            found.setdefault(process.host, []).append((process.rank, pid.result()))
    return found


def find_ended(group: ProcessGroup) -> dict[int, Spans]:
    """Return the ranks that have ended, by returncode."""
    found: dict[int, Spans] = {}
    for process in group:
        code = process.returncode()
        if code.done() and code.exception() is None:
            found[code.result()] = join_spans(
                found.get(code.result(), []), make_spans([process.rank])
            )
    return found


def render_report(
    looks: Looks, world_size: int, missing: Mapping[str, str], ended: Mapping[int, Spans]
) -> DebugReport:
    """Write the report: the sentence, then the stacks, first the stacks that the fewest ranks show,
    because most ranks often wait for a rank that is elsewhere."""
    seen: Spans = []
    for spans in (*looks.texts.values(), *ended.values()):
        seen = join_spans(seen, spans)
    silent = subtract(make_spans(range(world_size)), seen)
    sentence = find_sentence(looks, silent)
    parts = [sentence]
    parts += [
        f"{name_ranks(spans)}:\n{text}"
        for text, spans in sorted(looks.texts.items(), key=lambda item: count_ranks(item[1]))
    ]
    if looks.flights:
        records = "\n".join(
            f"  {line}"
            for group, flights in looks.flights.items()
            for line in describe_flights(group, flights)
        )
        parts.append(f"flight records of {name_ranks(looks.records)}:\n{records}")
    parts += [f"{name_ranks(spans)}: ended with {code}" for code, spans in sorted(ended.items())]
    if silent:
        reasons = "".join(f"\n  {host}: {reason}" for host, reason in sorted(missing.items()))
        parts.append(
            f"{name_ranks(silent)}: nothing was heard of there; hosts are lost, or do not answer"
            f"{reasons}"
        )
    return DebugReport(sentence, "\n\n".join(parts) + "\n")


def find_sentence(looks: Looks, silent: Spans) -> str:
    """Return one sentence that says which rank or collective to look at first: by the flight
    records, else by the stacks."""
    verdicts = judge_flights(looks.flights)
    if verdicts:
        first = verdicts[0]
        places = [
            f"{name_ranks(spans)} {'is' if count_ranks(spans) == 1 else 'are'} in {place}"
            for place, spans in sorted(looks.places.items(), key=lambda item: count_ranks(item[1]))
            if count_ranks(subtract(spans, first.ranks)) < count_ranks(spans)
        ]
        return "; ".join([first.sentence, *places[:1]])
    if not looks.places:
        return (
            "no rank's stacks could be read" if not silent else f"{name_ranks(silent)} are silent"
        )
    (place, spans), *others = sorted(looks.places.items(), key=lambda item: count_ranks(item[1]))
    verb = "is" if count_ranks(spans) == 1 else "are"
    if not others:
        return f"{name_ranks(spans)} {verb} in {place}"
    most, most_spans = others[-1]
    most_verb = "is" if count_ranks(most_spans) == 1 else "are"
    return f"{name_ranks(spans)} {verb} in {place}; {name_ranks(most_spans)} {most_verb} in {most}"


def describe_flights(group: str, flights: GroupFlights) -> list[str]:
    """Describe a group's flight record: the last sequence number of every rank, and the fault
    found."""
    last = ", ".join(
        f"{number:,} of {name_ranks(spans)}" for number, spans in sorted(flights.last.items())
    )
    return [f"{group}: last {last}", *(v.sentence for v in judge_flights({group: flights}))]
