"""torch's flight records: the records of many ranks are merged, and the ranks that hold the others
up are found.

A record lists the newest collectives of a rank, by process group and sequence number.

- A rank is named only for what records show: a number that it has not entered and others of
  its group have, or a collective that differs from the others' under the same number.
FLIGHT-2  A rank that waits in one group's collective is not named for its absence from another's,
          while there is a rank that waits in none.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.supervisor.gather.spans import (
    Spans,
    count_ranks,
    join_spans,
    list_ranks,
    make_spans,
    name_ranks,
    subtract,
)

KEPT = 64  # collectives of each group, the newest


class GroupFlights(msgspec.Struct):
    """One process group, as some ranks' records show it.

    last: sequence number → the ranks whose newest collective has this number. calls: sequence
    number → collective → the ranks that entered it. waiting: the ranks that are still in their
    newest collective. members: the ranks of the group, where a record lists them.
    """

    last: dict[int, Spans] = {}
    calls: dict[int, dict[str, Spans]] = {}
    waiting: Spans = []
    members: Spans = []


Flights = dict[str, GroupFlights]


def read_flights(rank: int, record: Any) -> Flights:
    """Read one rank's flight record, as torch writes it. Raises LookupError, TypeError or
    ValueError for any other value."""
    found: Flights = {}
    newest: dict[str, Any] = {}
    here = [[rank, rank]]
    for entry in record["entries"]:
        if entry.get("is_p2p"):
            continue
        group = name_group(entry["process_group"])
        number = int(entry["collective_seq_id"])
        calls = found.setdefault(group, GroupFlights()).calls.setdefault(number, {})
        calls[describe_call(entry)] = here
        newest[group] = entry
    for group, entry in newest.items():
        flights = found[group]
        flights.last = {max(flights.calls): here}
        flights.calls = dict(sorted(flights.calls.items())[-KEPT:])
        if not entry.get("retired") and entry.get("state") != "completed":
            flights.waiting = here
        flights.members = _find_members(record.get("pg_config"), entry["process_group"])
    return found


def name_group(words: Iterable[Any]) -> str:
    """Name a process group by its description, and by its name where that adds something."""
    name, description = (str(word) for word in words)
    if description in ("", "undefined"):
        return f"group {name}"
    return description if description == "default_pg" else f"{description} ({name})"


def describe_call(entry: Any) -> str:
    """Describe a collective so that ranks whose calls fit together have equal descriptions.

    Sizes are left out where ranks may rightly differ in them.
    """
    name = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    uneven = ("gather", "scatter", "all_to_all", "alltoall", "broadcast", "barrier")
    if any(word in name for word in uneven):
        return name
    sizes = [list(size) for size in entry.get("input_sizes") or []]
    return f"{name} of {'x'.join(map(str, sizes[0])) or '1'}" if len(sizes) == 1 else name


def _find_members(config: Any, words: Iterable[Any]) -> Spans:
    name = next(iter(words))
    known = (config or {}).get(name) or {}
    ranks = str(known.get("ranks", "")).strip("[]")
    return make_spans(int(word) for word in ranks.split(",") if word.strip())


def merge_flights(one: Flights, other: Flights) -> Flights:
    """Merge the flight records of some ranks with those of other ranks. A flight record is torch's
    list of a rank's last collectives."""
    merged = dict(one)
    for group, flights in other.items():
        known = merged.get(group, GroupFlights())
        calls = {number: dict(found) for number, found in known.calls.items()}
        for number, found in flights.calls.items():
            into = calls.setdefault(number, {})
            for call, spans in found.items():
                into[call] = join_spans(into.get(call, []), spans)
        last = dict(known.last)
        for number, spans in flights.last.items():
            last[number] = join_spans(last.get(number, []), spans)
        merged[group] = GroupFlights(
            last=last,
            calls=calls,
            waiting=join_spans(known.waiting, flights.waiting),
            members=join_spans(known.members, flights.members),
        )
    return merged


class FlightVerdict(msgspec.Struct, frozen=True):
    """One finding about the collectives of a group. ranks: the ranks to look at. sentence: the
    finding in words."""

    ranks: Spans
    sentence: str


def judge_flights(flights: Flights) -> list[FlightVerdict]:
    """Find the reasons why the ranks do not go on together, the most important first."""
    differing = [found for group in flights.items() if (found := find_difference(*group))]
    waiting: Spans = []
    for group_flights in flights.values():
        waiting = join_spans(waiting, group_flights.waiting)
    late = [found for group in flights.items() if (found := find_late(*group, waiting))]
    free = [found for found in late if count_ranks(subtract(found.ranks, waiting))]  # FLIGHT-2
    stuck = [found for group in flights.items() if (found := find_stuck(*group))]
    return differing + (free or late) + (stuck if not late else [])


def find_difference(group: str, flights: GroupFlights) -> FlightVerdict | None:
    """Find the first sequence number under which ranks entered different collectives."""
    for number, calls in sorted(flights.calls.items()):
        if len(calls) < 2:
            continue
        rarest = sorted(calls.items(), key=lambda item: count_ranks(item[1]))
        words = [f"{name_ranks(spans)} entered {call}" for call, spans in rarest]
        return FlightVerdict(
            rarest[0][1], f"ranks disagree about number {number:,} of {group}: {', '.join(words)}"
        )
    return None


def find_late(group: str, flights: GroupFlights, waiting: Spans) -> FlightVerdict | None:
    """Find the ranks furthest behind the newest collective of their group. Ranks that wait in
    another group's collective are left out while others remain (FLIGHT-2)."""
    newest = max(flights.last)
    least = min(flights.last)
    silent = subtract(flights.members, make_spans(_heard(flights)))
    if least == newest:
        if not silent or not flights.waiting:
            return None
        return FlightVerdict(
            silent,
            f"{name_ranks(flights.waiting)} {_wait(flights.waiting)} in "
            f"{_name_call(flights, newest)} of {group}, and {name_ranks(silent)} left no record",
        )
    late = subtract(flights.last[least], waiting) or flights.last[least]
    there = make_spans(
        r for n, spans in flights.last.items() if n > least for r in list_ranks(spans)
    )
    sentence = f"{name_ranks(late)} never entered {_name_call(flights, least + 1)} of {group}"
    sentence += f", in which {name_ranks(there)} {_wait(there)}"
    if silent:
        sentence += f"; {name_ranks(silent)} left no record"
    return FlightVerdict(late, sentence)


def find_stuck(group: str, flights: GroupFlights) -> FlightVerdict | None:
    """Report a collective that all ranks have entered and none has left; None where there is
    none."""
    number = max(flights.last)
    if not flights.waiting or len(flights.last) > 1:
        return None
    return FlightVerdict(
        flights.waiting,
        f"{name_ranks(flights.waiting)} entered {_name_call(flights, number)} of {group} and "
        f"{'has' if count_ranks(flights.waiting) == 1 else 'have'} not left it",
    )


def _heard(flights: GroupFlights) -> Iterable[int]:
    return (rank for spans in flights.last.values() for rank in list_ranks(spans))


def _name_call(flights: GroupFlights, number: int) -> str:
    """Write a collective and its number: "all_reduce 4,112"."""
    calls = flights.calls.get(number, {})
    most = max(calls, key=lambda call: count_ranks(calls[call]), default="the collective")
    return f"{most.partition(' of ')[0]} {number:,}"


def _wait(spans: Spans) -> str:
    return "waits" if count_ranks(spans) == 1 else "wait"
