"""Makes the blocking client of the asyncio one: `python -m holdfast.client.generate`.

`async` and `await` go, and names change as in `NAMES`. Needs ruff, which shortens and formats what
comes out; it is among the development dependencies.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asynchronous": "synchronous",
    "asyncio": "time",
}
PROSE = {
    "One event loop uses it, as an `async with` block": "Threads may share it, in a `with` block",
    "The asyncio client. The blocking one is made from it by `holdfast.client.generate`.": (
        "The blocking client. `holdfast.client.generate` makes it of the asyncio one."
    ),
    "asyncio client": "blocking client",
}
LINT = ["check", "--fix-only", "--unsafe-fixes", "--select", "C416,F401,F811,I,UP028"]


def make_synchronous(source: str, path: Path) -> str:
    """Return the blocking form of an asynchronous module, for the file at `path`."""
    lines = source.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        new = _replace(token)
        if new != token.string:
            (first, start), (last, end) = token.start, token.end
            rest = lines[last - 1][end:]
            text = lines[first - 1][:start] + new + (rest if new else rest.lstrip(" "))
            lines[first - 1 : last] = text.splitlines(keepends=True)
    made = "".join(lines)
    for arguments in (LINT, ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "-q", "--stdin-filename", str(path)]
        made = subprocess.run(
            [*command, "-"], input=made, capture_output=True, text=True, check=True
        ).stdout
    note = (
        f"# Made from {HERE.name}/asynchronous/{path.name} by `python -m holdfast.client.generate`."
    )
    return f"{note}\n{made}"


def _replace(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        if token.string in ("async", "await"):
            return ""
        return NAMES.get(token.string, re.sub(r"^Async(?=[A-Z])", "", token.string))
    if token.type == tokenize.STRING:
        text = token.string
        for old, new in PROSE.items():
            text = text.replace(old, new)
        return re.sub(r"\bAsync(?=[A-Z])", "", text)
    return token.string


def make_all() -> dict[Path, str]:
    """Return the text of every module of the blocking client, by its file."""
    made = {}
    for source in sorted((HERE / "asynchronous").glob("*.py")):
        path = HERE / "synchronous" / source.name
        made[path] = make_synchronous(source.read_text(), path)
    return made


if __name__ == "__main__":
    for path, text in make_all().items():
        path.write_text(text)
