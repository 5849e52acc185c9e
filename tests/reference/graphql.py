"""The page `docs/reference/graphql-schema.md`, made from the schema and the limits.

python -m tests.reference.graphql > docs/reference/graphql-schema.md
"""

import sys

from holdfast.controller.graphql.limits import MAX_PAGE, WEIGHTS, Limits
from holdfast.controller.graphql.schema import load_schema

_PAGE = """\
# The GraphQL schema

Made from the code (`python -m tests.reference.graphql`). How to use it: [graphql.md](graphql.md).

## Limits of one query

| what | at most |
|---|---|
{limits}

Cost: each value in the answer is one unit, whether it turns out to be there or not; values of these types are more:
{weights}.

## Schema

```graphql
{schema}
```
"""


def render_page() -> str:
    """Return the page."""
    limits = Limits()
    rows = {
        "its body": f"{limits.body_bytes // 1024} KiB",
        "words and signs of its text": str(limits.tokens),
        "fields and fragments, unfolded": str(limits.fields),
        "fields within fields": f"{limits.depth}; {limits.schema_depth} for introspection",
        "items of a page (`first`, `last`)": str(MAX_PAGE),
        "cost": f"{limits.cost} units",
        "JSON values in its answer": f"{limits.answer_bytes // (1024 * 1024)} MiB",
        "time": f"{limits.seconds:g} s",
        "queries worked on at once, on each controller": f"{limits.at_once}; others wait, within "
        "their own time",
    }
    weights = ", ".join(
        f"`{name}` {weight}"
        for name, weight in sorted(WEIGHTS.items(), key=lambda i: (-i[1], i[0]))
    )
    return _PAGE.format(
        limits="\n".join(f"| {what} | {most} |" for what, most in rows.items()),
        weights=weights,
        schema=load_schema().strawberry.as_str().strip(),
    )


if __name__ == "__main__":
    sys.stdout.write(render_page())
