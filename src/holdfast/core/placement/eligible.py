"""Whether a host, a size of hosts, or a pool may run a job at all: it serves the job's queue, carries
the labels that the job asks for, and has its container runtime. Pure.

The rule is written here. For the queue alone it stands in SQL too (`read_takes`, `begin_admission`), so
that a statement reads no job in vain; `tests/store/postgres/test_eligible.py` holds these to it.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

NOT = "!"
"""Begins a value that a host must not have: `rack=!b12` avoids the hosts with `rack=b12`."""


class EligiblePlace(Protocol):
    """A host, a size of hosts, or a pool. queues: those that it serves, empty for all."""

    @property
    def queues(self) -> Collection[str]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


def serves(queues: Collection[str], queue: str) -> bool:
    """Return whether a place with these queues serves the queue; one without any serves all."""
    return not queues or queue in queues


def is_eligible(
    place: EligiblePlace,
    queue: str,
    wanted: Mapping[str, str],
    *,
    lacking: Collection[str] = (),
    runtime: str = "",
) -> bool:
    """Return whether a job of the queue, with these labels and this container runtime, may run on the
    place. lacking: the runtimes that the place does not have."""
    return serves(place.queues, queue) and carries(place.labels, wanted) and runtime not in lacking


def carries(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether `labels` has each wanted value, and none that is to be avoided. A label that a
    host does not have at all avoids every value."""
    return not list_unmet(labels, wanted)


def list_unmet(labels: Mapping[str, str], wanted: Mapping[str, str]) -> set[str]:
    """Return the names of the labels that a host lacks, or has and should not."""
    return {
        name
        for name, value in wanted.items()
        if (labels.get(name) == value[1:] if value.startswith(NOT) else labels.get(name) != value)
    }
