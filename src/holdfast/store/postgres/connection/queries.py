"""Named queries: every statement the store sends is in `sql/<subject>.sql` under `-- name: …`, with
its reasons. Lists of columns are expanded (`columns`).

A name is unique over all files. A malformed file fails at import, not at the first use.
"""

import re
from importlib import resources

from holdfast.store.postgres.connection.columns import expand_columns

_NAME = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


def parse_queries(text: str, origin: str) -> dict[str, bytes]:
    """Split `text` at its `-- name:` lines. Raises ValueError for text before the first, an empty
    or a repeated one."""
    parts = _NAME.split(text)
    if any(line.strip() and not line.startswith("--") for line in parts[0].splitlines()):
        raise ValueError(f"{origin}: SQL before the first `-- name:` line")
    found: dict[str, bytes] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        statement = "\n".join(
            line.strip()
            for line in body.splitlines()
            if line.strip() and not line.lstrip().startswith("--")
        )
        if not statement:
            raise ValueError(f"{origin}: query {name} is empty")
        if name in found:
            raise ValueError(f"{origin}: query {name} is there twice")
        found[name] = expand_columns(statement.rstrip().rstrip(";")).encode()
    return found


def load_queries() -> dict[str, bytes]:
    """Return every named query of the package. Raises ValueError as `parse_queries` does, or for a
    name in two files."""
    found: dict[str, bytes] = {}
    folder = resources.files("holdfast.store.postgres") / "sql"
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".sql"):
            continue
        for name, statement in parse_queries(entry.read_text(encoding="utf-8"), entry.name).items():
            if name in found:
                raise ValueError(f"{entry.name}: query {name} is there twice")
            found[name] = statement
    return found


QUERIES = load_queries()
