"""A host's report about its ranks, and the merging of two such reports: the two functions that
`report` runs on a tree of hosts."""

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.supervisor.gather.flights import Flights, merge_flights, read_flights
from holdfast.supervisor.gather.spans import Spans, join_spans
from holdfast.supervisor.gather.stacks import STATES, find_place, find_stacks, read_state
from holdfast.supervisor.member.flight_records import ask_for_record, name_files, read_record

_CLOCK_SLACK_SECONDS = 0.02  # of a tick, and of a file's time
RECORD_SECONDS = 10.0  # for ranks to write their records; NCCL's watchdog looks once a second
NO_STACKS = "no stacks: neither py-spy nor gdb could look at it, or it has ended"


class Looks(msgspec.Struct):
    """The observations of some ranks. texts: stacks and process states, each text with the ranks
    that show it. places: the innermost function of the main thread → its ranks. flights: process
    group → its merged flight records. records: the ranks that wrote a flight record."""

    texts: dict[str, Spans] = {}
    places: dict[str, Spans] = {}
    flights: Flights = {}
    records: Spans = []


def look_at_ranks(ranks: list[list[int]]) -> Any:
    """Return the stacks and the flight records of ranks that run on this host. ranks: pairs of
    rank and pid."""
    asked_at = time.time()
    settings = {rank: read_environment(pid) for rank, pid in ranks}
    listening = {rank for rank, environ in settings.items() if ask_for_record(environ, rank)}
    until = time.monotonic() + RECORD_SECONDS
    looks = Looks()
    for rank, pid in ranks:
        here = [[rank, rank]]
        texts, place = describe_rank(pid)
        for text in texts:
            looks.texts[text] = join_spans(looks.texts.get(text, []), here)
        if place:
            looks.places[place] = join_spans(looks.places.get(place, []), here)
    for rank, pid in ranks:
        files, since = name_files(settings[rank], rank), read_start(pid)
        record = read_record(files, asked_at, until if rank in listening else 0.0, since)
        with contextlib.suppress(LookupError, TypeError, ValueError):
            flights = read_flights(rank, record) if record is not None else {}
            looks.flights = merge_flights(looks.flights, flights)
            if record is not None:
                looks.records = join_spans(looks.records, [[rank, rank]])
    return msgspec.to_builtins(looks)


def merge_looks(one: Any, other: Any) -> Any:
    """Merge the reports of two hosts: a text that stands in both reports is kept once, with the
    ranks of both."""
    first, second = (msgspec.convert(looks, Looks) for looks in (one, other))
    merged = Looks(
        flights=merge_flights(first.flights, second.flights),
        records=join_spans(first.records, second.records),
    )
    for looks in (first, second):
        for known, found in ((merged.texts, looks.texts), (merged.places, looks.places)):
            for text, spans in found.items():
                known[text] = join_spans(known.get(text, []), spans)
    return msgspec.to_builtins(merged)


def describe_rank(pid: int) -> tuple[list[str], str | None]:
    """Describe a process in texts that are equal for all processes in the same state, and name the
    place where its main thread is."""
    state = read_state(pid)
    stacks = find_stacks(pid, state)
    texts = [stacks or NO_STACKS]
    if state in STATES:
        texts.append(STATES[state])
    return texts, find_place(stacks) if stacks else None


def read_start(pid: int) -> float:
    """Return when a process began, in Unix time and no later than it did; infinity where the
    process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        ticks = int(stat[stat.rfind(b")") + 2 :].split()[19])
    except (OSError, IndexError, ValueError):
        return math.inf
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK") - _CLOCK_SLACK_SECONDS


def read_environment(pid: int) -> dict[str, str]:
    """Read the environment that a process was started with; empty where the process is gone."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes()
        pairs = (os.fsdecode(word).partition("=") for word in words.split(b"\0") if b"=" in word)
        return {name: value for name, _, value in pairs}
    return {}
