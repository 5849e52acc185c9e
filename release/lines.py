"""The lines of the documents that install Holdfast: from a clone until a version is uploaded, then by
name. `python -m release.lines` writes them anew after PUBLISHED of `version.py` has changed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from holdfast.version import DISTRIBUTION, PUBLISHED

ROOT = Path(__file__).parents[1]
_OF_RELEASES = ROOT / "docs" / "reference" / "releasing.md"  # it shows both
PAGES = [
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if page != _OF_RELEASES and page.parent.name != "decisions"
]
_EITHER = re.compile(
    rf"pip install (?:'(?:\.|{DISTRIBUTION})(?P<parts>\[[a-z0-9,]+\])?'|\.(?=[`\s]))"
)
_NOTES = re.compile(r" *# in a clone of th(?:e|is) repository|(?<='`) in a clone\b,?")


def write_lines(text: str, *, published: bool) -> str:
    """Return a page with the lines that hold now."""
    name = DISTRIBUTION if published else "."

    def write(found: re.Match[str]) -> str:
        parts = found["parts"] or ""
        return f"pip install '{name}{parts}'" if parts else f"pip install {name}"

    text = _EITHER.sub(write, text)
    return _NOTES.sub("", text) if published else text


def main() -> int:
    """Write every page, and return the exit status."""
    for page in PAGES:
        page.write_text(write_lines(page.read_text(), published=PUBLISHED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
