"""Draw findings for a person, and choose the exit code they end with."""

from collections.abc import Sequence

from holdfast.cli.endings import EXIT_FAILED, EXIT_OK, EXIT_UNAUTHORIZED, EXIT_UNREACHABLE
from holdfast.cli.output import style
from holdfast.core.doctor.facts import ControllerFacts
from holdfast.core.doctor.findings import DoctorFinding, Level, find_gravest

_RED, _GREEN, _YELLOW = 31, 32, 33
_COLOURS = {Level.OK: _GREEN, Level.WARNING: _YELLOW, Level.PROBLEM: _RED}


def draw_findings(findings: Sequence[DoctorFinding]) -> str:
    """Return a line for each finding, and the mend of each that has one below it."""
    parts = max((len(finding.part) for finding in findings), default=0)
    lines = []
    for finding in findings:
        level = style(finding.level.value.ljust(7), _COLOURS[finding.level])
        lines.append(f"{level}  {finding.part.ljust(parts)}  {finding.sentence}")
        if finding.mend:
            lines.append(f"{' ' * (parts + 9)}  → {finding.mend}")
    return "\n".join(lines)


def choose_exit(facts: ControllerFacts, findings: Sequence[DoctorFinding]) -> int:
    """Return the exit code of `status`: why the controller does not work, or 0."""
    if facts.error_kind == "refused":
        return EXIT_UNAUTHORIZED
    if facts.error_kind in ("unreachable", "no_address"):
        return EXIT_UNREACHABLE
    return EXIT_FAILED if find_gravest(findings) is Level.PROBLEM else EXIT_OK
