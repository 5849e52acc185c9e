"""Check a workflow at its submission, and make its graph. Pure."""

from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast.core.ids import ID_PATTERN
from holdfast.core.workflows.references import name_parents
from holdfast.core.workflows.values import MAX_EDGES, NodeSpec, WorkflowSpec
from holdfast.errors import ValidationError

MAX_NODE_BYTES = 256 * 1024


class Graph(msgspec.Struct, frozen=True):
    """The parents of each node, by the nodes' numbers (their places in the list)."""

    parents: Sequence[Sequence[int]]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Return every pair (parent, child) of the graph's nodes."""
        return [(parent, child) for child, above in enumerate(self.parents) for parent in above]


def check_workflow(spec: WorkflowSpec) -> Graph:
    """Return the graph of a workflow.

    Raises:
        ValidationError: names the node and what to do: two nodes of one name, a node without work,
            an unknown parent, a cycle, or too many edges.
    """
    numbers: dict[str, int] = {}
    if ID_PATTERN.fullmatch(spec.name):
        raise ValidationError("a name like a run's id could not be told from one", field="name")
    for number, node in enumerate(spec.nodes):
        if numbers.setdefault(node.name, number) != number:
            where = f"nodes[{number}].name"
            raise ValidationError(f"two nodes are called {node.name}", field=where)
        _check_node(node, number)
    parents = []
    count = 0
    for number, node in enumerate(spec.nodes):
        try:
            names = name_parents(node)
            above = [_find(numbers, node, name) for name in names]
        except ValidationError as error:
            raise ValidationError(
                f"node {node.name}: {error.message}", field=f"nodes[{number}]"
            ) from None
        count += len(above)
        parents.append(above)
    if count > MAX_EDGES:
        raise ValidationError(
            f"the workflow has {count} edges; the limit is {MAX_EDGES}: put a node between two "
            "large groups instead of joining each with each",
            field="nodes",
        )
    graph = Graph(parents)
    cycle = find_cycle(graph)
    if cycle:
        names = [spec.nodes[number].name for number in cycle]
        shown = names if len(names) <= 12 else [*names[:11], "…"]
        raise ValidationError(
            f"the nodes wait for one another in a circle: {' → '.join([*shown, names[0]])}",
            code="cycle",
            field="nodes",
        )
    return graph


def _check_node(node: NodeSpec, number: int) -> None:
    where = f"nodes[{number}]"
    if sum(work is not None for work in (node.call, node.job, node.ask)) != 1:
        raise ValidationError(
            f"node {node.name} needs exactly one of `call`, `job` and `ask`", field=where
        )
    size = len(msgspec.json.encode(node))
    if size > MAX_NODE_BYTES:
        raise ValidationError(
            f"node {node.name} is {size} bytes; the limit is {MAX_NODE_BYTES}: keep large values in "
            "files or in the result of a node",
            field=where,
        )
    call = node.call
    if call is not None and (call.over is msgspec.UNSET) is not (not call.item):
        raise ValidationError(
            f"node {node.name}: `over` (a list) and `item` (the parameter that takes each item) go "
            "together",
            field=f"{where}.call.item",
        )
    ask = node.ask
    if ask is not None and ask.choices and ask.default not in (None, *ask.choices):
        raise ValidationError(
            f"node {node.name}: the default {ask.default!r} is none of its choices",
            field=f"{where}.ask.default",
        )
    if node.job is not None and node.job.spec.idempotency_key is not None:
        raise ValidationError(
            f"node {node.name}: a node's job takes no idempotency_key, because its run has an id",
            field=f"{where}.job.spec.idempotency_key",
        )


def _find(numbers: dict[str, int], node: NodeSpec, name: str) -> int:
    found = numbers.get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, numbers, 1) if len(numbers) < 2000 else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValidationError(f"there is no node {name!r}{hint}", code="unknown_node")
    if found == numbers[node.name]:
        raise ValidationError("it waits for itself", code="cycle")
    return found


def find_cycle(graph: Graph) -> list[int]:
    """Return the nodes of one cycle in order, or none (Kahn 1962)."""
    waiting = [len(above) for above in graph.parents]
    children: list[list[int]] = [[] for _ in graph.parents]
    for parent, child in graph.edges:
        children[parent].append(child)
    ready = deque(number for number, count in enumerate(waiting) if not count)
    left = len(waiting)
    while ready:
        left -= 1
        for child in children[ready.popleft()]:
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    if not left:
        return []
    # Every node that is left has a parent that is left: going up must come back to a node.
    number = next(n for n, count in enumerate(waiting) if count)
    seen: dict[int, int] = {}
    way: list[int] = []
    while number not in seen:
        seen[number] = len(way)
        way.append(number)
        number = next(parent for parent in graph.parents[number] if waiting[parent])
    cycle = way[seen[number] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]
