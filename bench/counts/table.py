"""The table of costs in the documents: written, read, compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.counts.counts import COLUMNS, Counts
from bench.system import ROOT

PAGE = ROOT / "docs" / "reference" / "costs.md"
BEGIN, END = "<!-- counts: make costs writes this part -->\n", "<!-- end of the counts -->\n"
_NAMED = re.compile(r"- \*\*(.+?)\*\*: (.*)")


def render(found: Mapping[str, Counts]) -> str:
    """Return the part of the page that is counted."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for name, counts in found.items():
        cells = (_show(counts.columns.get(key)) for key in COLUMNS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "## Which statements", ""]
    for name, counts in found.items():
        if not counts.names:
            continue
        told = sorted(counts.names.items(), key=lambda pair: (-pair[1], pair[0]))
        lines.append(f"- **{name}**: " + ", ".join(f"`{k}` {_show(v)}" for k, v in told))
    return "\n".join([*lines, ""])


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def read_page(page: Path = PAGE) -> dict[str, Counts]:
    """Return the counts of the page by the name of their act."""
    part = page.read_text().partition(BEGIN)[2].partition(END)[0]
    columns: dict[str, dict[str, float]] = {}
    names: dict[str, dict[str, float]] = {}
    for line in part.splitlines():
        if (named := _NAMED.match(line)) is not None:
            pairs = re.findall(r"`([^`]+)` ([0-9.]+)", named[2])
            names[named[1]] = {name: float(count) for name, count in pairs}
        elif line.startswith("| ") and not line.startswith("| |"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            pairs = [(k, c) for k, c in zip(COLUMNS, cells, strict=True) if c != "–"]
            columns[name] = {key: float(cell) for key, cell in pairs}
    return {name: Counts(cells, names.get(name, {})) for name, cells in columns.items()}


def write_page(found: Mapping[str, Counts], names: Iterable[str], page: Path = PAGE) -> None:
    """Put counts into the page, in place of those of the same acts; of the others, those of `names`
    stay."""
    known = {**read_page(page), **found}
    text = render({name: known[name] for name in names if name in known})
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2])
