"""The results of a call set, for nodes whose results are not in their own row."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import Client


def read_set_results(client: "Client", set_id: str) -> list[Any]:
    """Return the results of a set's calls, in order."""
    raise NotImplementedError
