"""The files of `sql/`, one a table: on top the statements that make it, below `-- name: …` each query
that mostly reads or writes it, with its reasons. Lists of columns are expanded (`columns`), and a text
below `-- part: …` stands in each query that names it as `{part:…}`, because one statement for several
questions saves the server and the driver what each statement costs by itself.

A query's name is unique over all files. A malformed file fails at import, not at the first use.
"""

import re
from functools import cache
from graphlib import TopologicalSorter
from importlib import resources

from holdfast.store.postgres.connection.columns import expand_columns

_NAME = re.compile(r"^-- (name|part): (\w+)[ \t]*$", re.MULTILINE)
_PART = re.compile(r"\{part:\w+\}")
_AFTER = re.compile(r"^-- after: ([\w, ]+)$", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)--(?: .*)?$", re.MULTILINE)
_MAKES = re.compile(r"(?:create|insert into|alter table|do) ?")


def read_files() -> dict[str, str]:
    """Return the text of each file by its name without the ending, sorted."""
    folder = resources.files("holdfast.store.postgres") / "sql"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return {e.name[:-4]: e.read_text(encoding="utf-8") for e in sorted(found, key=lambda e: e.name)}


def parse_queries(text: str, origin: str) -> dict[str, bytes]:
    """Return the queries of a file by name, and its parts by what they replace (`{part:…}`). Raises
    ValueError for an empty query or a repeated name."""
    cut = _NAME.split(text)
    found: dict[str, bytes] = {}
    for kind, word, body in zip(cut[1::3], cut[2::3], cut[3::3], strict=True):
        name = word if kind == "name" else f"{{part:{word}}}"
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
    """Return every named query of the package. Raises ValueError as `parse_queries` does, for a
    name in two files, or for a part that is missing."""
    found: dict[str, bytes] = {}
    for origin, text in read_files().items():
        for name, statement in parse_queries(text, origin).items():
            if name in found:
                raise ValueError(f"{origin}: query {name} is there twice")
            found[name] = statement
    return {name: _fill_in(name, found) for name in found if not _PART.fullmatch(name)}


def _fill_in(name: str, found: dict[str, bytes]) -> bytes:
    """Return a query with its parts, whose own parts are filled in too."""

    def fill(match: re.Match[str]) -> str:
        if match[0] not in found:
            raise ValueError(f"query {name}: there is no part {match[0]}")
        return _fill_in(match[0], found).decode()

    return _PART.sub(fill, found[name].decode()).encode()


def order_schema(files: dict[str, str]) -> str:
    """Return the statements on top of all files as one script, without comments. A file comes after
    the files that its `-- after:` line names.

    Raises ValueError where such a line names no file, where the lines form a circle, or where a top
    does not begin with a statement that makes something, because that is a query without a name.
    """
    tops = {origin: _NAME.split(text, maxsplit=1)[0] for origin, text in files.items()}
    order: TopologicalSorter[str] = TopologicalSorter()
    for origin, top in tops.items():
        after = [name for line in _AFTER.findall(top) for name in re.findall(r"\w+", line)]
        if missing := set(after) - tops.keys():
            raise ValueError(f"{origin}: it comes after {', '.join(missing)}, which is no file")
        order.add(origin, *after)
    made = []
    for origin in order.static_order():
        lines = (line.rstrip() for line in _COMMENT.sub("", tops[origin]).splitlines())
        statements = "\n".join(line for line in lines if line)
        if statements and not _MAKES.match(statements):
            raise ValueError(f"{origin}: SQL that makes nothing stands before the first `-- name:`")
        made.append(statements)
    return "\n".join(text for text in made if text)


@cache
def load_schema() -> str:
    """Return the script that makes all tables in an empty database. Raises ValueError as
    `order_schema` does."""
    return order_schema(read_files())


QUERIES = load_queries()
