"""The results of a call set, for nodes whose results are not in their own row."""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.client import Client


def read_set_results(client: "Client", set_id: str) -> list[Any]:
    """Return the results of a set's calls, in order; null for those that did not succeed."""
    values: list[Any] = []
    while True:
        page = client.call_results(set_id, first=len(values))
        for result in page.results:
            succeeded = result.state == 1
            values.append(msgspec.json.decode(result.value or "null") if succeeded else None)
        if page.ended or not page.results:
            return values
