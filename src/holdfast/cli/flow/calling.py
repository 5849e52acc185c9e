"""What `tasks call` makes of its words, and its wait for the result."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import read_pairs, read_seconds
from holdfast.cli.output import note
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.calls.values import FunctionSpec
    from holdfast.wire.calls import CallResult

FIRST_SECONDS, RESULT_SECONDS = 2, 20


def wait_for(client: Client, set_id: str, timeout: float | None) -> CallResult | None:
    """Return the result of a set's only call, None after `timeout`; say what holds it up."""
    until = None if timeout is None else time.monotonic() + timeout
    most, said = FIRST_SECONDS, set()
    while True:
        left = most if until is None else until - time.monotonic()
        wait = max(0.0, min(most, left))
        found = client.call_results(set_id, limit=1, wait_seconds=wait).results
        if found:
            return found[0]
        if until is not None and time.monotonic() >= until:
            return None
        most = RESULT_SECONDS
        for line in client.call_view(set_id, 0).why[:1]:
            if line.code not in said:
                said.add(line.code)
                hint = f" ({line.hint})" if line.hint else ""
                note(f"waiting: {line.message}{hint}")


def check_arguments(text: str) -> None:
    """Raise ValidationError for what is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValidationError(f"ARGUMENTS is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValidationError("ARGUMENTS is a JSON object of parameters by name, as '{\"x\": 3}'")


def make_spec(function: str, *, max_retries: int | None, **options: Any) -> FunctionSpec:
    """Return the function as the options declare it. Raises ValidationError."""
    import msgspec

    from holdfast.core.calls.values import FunctionSpec

    time_limit = options.pop("time_limit")
    options["host_labels"] = read_pairs("--host-label", options["host_labels"], "host_labels")
    fields = {name: value for name, value in options.items() if value is not None}
    if time_limit is not None:
        off = time_limit.strip().lower() == "off"
        fields["time_limit_seconds"] = "off" if off else read_seconds("--time-limit", time_limit)
    if max_retries is not None:
        fields["retry"] = {"max_retries": max_retries}
    try:
        return msgspec.convert({"function": function, **fields}, FunctionSpec)
    except msgspec.ValidationError as error:
        if "$.function" in str(error):
            message = f"{function!r} is not MODULE:FUNCTION, as mytasks:double"
            raise ValidationError(message) from None
        raise ValidationError(f"the call cannot be made like this: {error}") from None
