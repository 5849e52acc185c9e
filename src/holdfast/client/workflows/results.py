"""The results of nodes that the node's own row does not hold: those of a call set, or in the blob
store."""

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.calls.floats import decode_value
from holdfast.core.calls.texts import lengthen

if TYPE_CHECKING:
    from holdfast.client import Client


def read_set_results(client: "Client", set_id: str) -> list[Any]:
    """Return the results of a set's calls, in order; null for calls that did not succeed."""
    values: list[Any] = []
    while True:
        page = client.call_results(set_id, first=len(values))
        for result in page.results:
            succeeded = result.state == 1
            values.append(_decode(client, result.value or "null") if succeeded else None)
        if page.ended or not page.results:
            return values


def read_value(client: "Client", value: Any) -> Any:
    """Return a node's result; a large one is fetched from the blob store."""
    return _decode(client, msgspec.json.encode(value).decode())


def _decode(client: "Client", text: str) -> Any:
    return decode_value(lengthen(text, client.value))
