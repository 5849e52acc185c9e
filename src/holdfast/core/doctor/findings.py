"""One finding of the doctor, and the level of the gravest among several."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How grave a finding is, from best to worst."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_ORDER = list(Level)


class DoctorFinding(msgspec.Struct, frozen=True):
    """One thing that was looked at. part: what it is about, as "disk". mend: what to do, empty
    where nothing is to be done."""

    part: str
    level: Level
    sentence: str
    mend: str = ""


def find_gravest(findings: Sequence[DoctorFinding]) -> Level:
    """Return the level of the gravest finding; `ok` without any."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)


def ok(part: str, sentence: str) -> DoctorFinding:
    """Return a finding that needs no mend."""
    return DoctorFinding(part, Level.OK, sentence)


def warning(part: str, sentence: str, mend: str) -> DoctorFinding:
    """Return a finding with which Holdfast works, but not as well as it can."""
    return DoctorFinding(part, Level.WARNING, sentence, mend)


def problem(part: str, sentence: str, mend: str) -> DoctorFinding:
    """Return a finding with which something does not work."""
    return DoctorFinding(part, Level.PROBLEM, sentence, mend)
