"""References to parents' results inside JSON values: found, checked and replaced. Pure.

A JSON object whose only keys are `$node` and perhaps `path` is a reference. An object of the user's
own that has a key `$node` is written `{"$value": …}`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.calls.large import follow_path
from holdfast.core.workflows.values import NodeSpec, Reference
from holdfast.errors import ValidationError

NODE, VALUE = "$node", "$value"
MAX_DEPTH = 64
SKIPPED = object()
"""The result of a skipped node. A reference to it, or to any part of it, becomes null."""


def read_reference(value: Mapping[str, Any]) -> Reference:
    """Read an object with a key `$node` as a reference. Raises ValidationError."""
    try:
        return msgspec.convert(value, Reference)
    except msgspec.ValidationError as error:
        raise ValidationError(
            f"an object with the key $node is a reference to a node's result, and this one is not: "
            f'{error}; write an object of your own as {{"$value": …}}'
        ) from None


def walk_references(value: Any, depth: int = 0) -> Iterator[Reference]:
    """Yield every reference in a JSON value. Raises ValidationError for a malformed one."""
    if depth > MAX_DEPTH:
        raise ValidationError(f"arguments are nested over {MAX_DEPTH} deep")
    if isinstance(value, dict):
        if NODE in value:
            yield read_reference(value)
        elif value.keys() != {VALUE}:
            for part in value.values():
                yield from walk_references(part, depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from walk_references(part, depth + 1)


def list_inputs(node: NodeSpec) -> list[Any]:
    """Return the JSON values of a node that may hold references."""
    found: list[Any] = []
    if node.call is not None:
        found.append(node.call.args)
        if node.call.over is not msgspec.UNSET:
            found.append(node.call.over)
    if node.job is not None:
        found.append(node.job.inputs)
    if node.skip_if is not None:
        found.append(node.skip_if.value)
    return found


def name_parents(node: NodeSpec) -> list[str]:
    """Return the names of the nodes that must be over before `node`, each once."""
    names = dict.fromkeys(node.after)
    for value in list_inputs(node):
        names.update((reference.node, None) for reference in walk_references(value))
    return list(names)


def resolve_value(value: Any, find: Callable[[str], Any]) -> Any:
    """Replace each reference in `value` with the result that `find(node)` returns, or the part of
    it at the reference's path. Raises ValidationError where a path leads nowhere."""
    if isinstance(value, dict):
        if NODE in value:
            reference = read_reference(value)
            found = find(reference.node)
            if found is SKIPPED:
                return None
            return follow_path(found, reference.node, reference.path)
        if value.keys() == {VALUE}:
            return value[VALUE]
        return {key: resolve_value(part, find) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve_value(part, find) for part in value]
    return value
