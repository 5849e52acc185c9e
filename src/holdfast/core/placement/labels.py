"""Whether a host carries the labels that a job asks for. Pure."""

from collections.abc import Mapping

NOT = "!"
"""Begins a value that a host must not have: `rack=!b12` avoids the hosts with `rack=b12`."""


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
