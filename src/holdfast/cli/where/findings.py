"""Draw findings for a person, and choose the exit code they end with."""

import textwrap
from collections.abc import Sequence

from holdfast.cli.endings import EXIT_FAILED, EXIT_OK, EXIT_UNAUTHORIZED, EXIT_UNREACHABLE
from holdfast.cli.output import columns, style
from holdfast.core.doctor.facts import ControllerFacts
from holdfast.core.doctor.findings import DoctorFinding, Level, find_gravest

_WIDEST = 1 << 20
_RED, _GREEN, _YELLOW = 31, 32, 33
_COLOURS = {Level.OK: _GREEN, Level.WARNING: _YELLOW, Level.PROBLEM: _RED}


def draw_findings(findings: Sequence[DoctorFinding]) -> str:
    """Return a line for each finding, with the finding's mend on a line below, where there is
    one."""
    parts = max((len(finding.part) for finding in findings), default=0)
    indent = " " * (parts + 11)
    width = min(columns(), _WIDEST)
    lines = []
    for finding in findings:
        level = style(finding.level.value.ljust(7), _COLOURS[finding.level])
        first, *rest = _wrap(finding.sentence, width - len(indent)) or [""]
        lines.append(f"{level}  {finding.part.ljust(parts)}  {first}")
        told = _wrap(finding.mend, width - len(indent) - 2)
        lines += [indent + line for line in rest]
        lines += [indent + ("  " if number else "→ ") + line for number, line in enumerate(told)]
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    found = textwrap.wrap(text, max(width, 30), break_long_words=False, break_on_hyphens=False)
    return found


def choose_exit(facts: ControllerFacts, findings: Sequence[DoctorFinding]) -> int:
    """Return the exit code of `status`, which says why the controller does not work; 0 where it
    works."""
    if facts.error_kind == "refused":
        return EXIT_UNAUTHORIZED
    if facts.error_kind in ("unreachable", "no_address"):
        return EXIT_UNREACHABLE
    return EXIT_FAILED if find_gravest(findings) is Level.PROBLEM else EXIT_OK
