"""The cost of a query and its limits, decided from its text and variables before anything is read.
Pure.

GQL-1  The cost of a query bounds the values in its answer, for any contents of the store: pages
       multiply by the size they are asked for, aliases and fragments count at every use, and fields
       left out by @skip count too.
GQL-2  Deciding takes time in proportion to the limits, not to the size of the unfolded query.

One unit is about the time to put one plain value into an answer. `WEIGHTS` lists the types whose
values cost more: rows that are read and decoded, and sentences that are worked out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import graphql as gql

from holdfast.errors import HoldfastError

MAX_PAGE = 500
SIZE_ARGUMENTS = ("first", "last")
PAGE_ITEMS = "nodes"
WEIGHTS: Mapping[str, int] = {
    "Job": 5,
    "Attempt": 5,
    "Task": 4,
    "Host": 4,
    "Event": 3,
    "Member": 3,
    "Why": 300,
    "RetryPolicy": 10,
    "RetryState": 10,
    "JSON": 3,
}
"""Type → units for each value of the type; a page costs 20, a value of any other type one."""


def weigh(name: str) -> int:
    """Return the units that a value of a type costs."""
    return WEIGHTS.get(name, 20 if name.endswith("Page") else 1)


class QueryRefused(HoldfastError, code="query_too_costly", status=400):
    """The query exceeds a limit on queries."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one query.

    answer_bytes: the size of the JSON values in the answer (specs, facts, labels), which the cost
    ignores. tokens: the words and signs of the query's text. fields: its fields and spreads, with
    fragments unfolded. depth, schema_depth: the levels of nested fields, for data and for
    introspection. cost, schema_cost: the units of the module's docstring, for data and for
    introspection, which is answered from memory. seconds: the time from the query's
    start to its answer. at_once: the queries that this process works on at once; others wait,
    within their own seconds. calls_at_once: the store calls that one query makes at once.
    """

    body_bytes: int = 128 * 1024
    answer_bytes: int = 16 * 1024 * 1024
    tokens: int = 3000
    fields: int = 600
    depth: int = 12
    schema_depth: int = 16
    cost: int = 15_000
    schema_cost: int = 45_000
    seconds: float = 10.0
    at_once: int = 4
    calls_at_once: int = 2


class SchemaSizes:
    """The lengths of introspection's lists, counted once. Only the nestings in `of` are allowed."""

    def __init__(self, schema: gql.GraphQLSchema) -> None:
        types = list(schema.type_map.values())
        objects = [
            t for t in types if isinstance(t, gql.GraphQLObjectType | gql.GraphQLInterfaceType)
        ]
        abstract = [
            t for t in types if isinstance(t, gql.GraphQLInterfaceType | gql.GraphQLUnionType)
        ]
        args = [sum(len(f.args) for f in t.fields.values()) for t in objects]
        directives = [len(d.args) for d in schema.directives]
        self.of: dict[tuple[str, ...], int] = {
            ("types",): len(types),
            ("directives",): len(directives),
            ("directives", "args"): sum(directives),
        }
        for name, sizes in {
            "fields": [len(t.fields) for t in objects],
            "inputFields": [
                len(t.fields) for t in types if isinstance(t, gql.GraphQLInputObjectType)
            ],
            "enumValues": [len(t.values) for t in types if isinstance(t, gql.GraphQLEnumType)],
            "interfaces": [len(t.interfaces) for t in objects],
            "possibleTypes": [len(schema.get_possible_types(t)) for t in abstract],
        }.items():
            self.of["types", name] = sum(sizes)
            self.of[name,] = max(sizes, default=0)  # the size of the largest type
        self.of["types", "fields", "args"] = sum(args)
        self.of["fields", "args"] = max(args, default=0)


@dataclass
class _Walk:
    """One walk over one operation."""

    schema: gql.GraphQLSchema
    sizes: SchemaSizes
    limits: Limits
    fragments: Mapping[str, gql.FragmentDefinitionNode]
    defaults: Mapping[str, Any]
    variables: Mapping[str, Any]
    seen: int = 0
    cost: int = 0
    schema_cost: int = 0
    deepest: int = 0
    open_fragments: list[str] = field(default_factory=list)

    def look(
        self,
        selections: gql.SelectionSetNode,
        parent: gql.GraphQLNamedType | None,
        times: int,
        depth: int,
        page: int = 1,
        lists: tuple[str, ...] = (),
    ) -> None:
        """Add the cost of `selections` on `parent`, `times` times. page: the size asked of the
        enclosing page. lists: the names of the introspection lists around the selections."""
        for node in self._unfold(selections, depth):
            name = node.name.value
            found = self._find_field(parent, name)
            inner, limit = None, self.limits.depth
            inner_times, inner_page, inner_lists = times, 1, tuple[str, ...]()
            if found is None:  # validation will refuse the field
                self._count(times)
            else:
                inner = gql.get_named_type(found.type)
                if gql.is_introspection_type(inner) or (
                    parent and gql.is_introspection_type(parent)
                ):
                    limit = self.limits.schema_depth
                    inner_times, inner_lists = self._measure_schema(found, name, times, lists)
                    self.schema_cost += inner_times
                    self._refuse(self.schema_cost, self.limits.schema_cost)
                else:
                    own, inner_lists = self._find_size(node, found), lists
                    inner_page = own or 1
                    if _is_list(found) and isinstance(inner, gql.GraphQLObjectType):
                        inner_times *= page if name == PAGE_ITEMS else own or MAX_PAGE
                    self._count(inner_times * weigh(inner.name))
            if node.selection_set is None:
                continue
            if depth + 1 > limit:
                raise QueryRefused(
                    f"the query is more than {limit} fields deep; ask for the inner part by itself",
                    code="query_too_deep",
                )
            self.look(node.selection_set, inner, inner_times, depth + 1, inner_page, inner_lists)

    def _unfold(self, selections: gql.SelectionSetNode, depth: int) -> Iterator[gql.FieldNode]:
        """Yield the fields of a selection set and of its fragments."""
        self.deepest = max(self.deepest, depth)
        for node in selections.selections:
            self._see()
            if isinstance(node, gql.FieldNode):
                yield node
            elif isinstance(node, gql.InlineFragmentNode):
                yield from self._unfold(node.selection_set, depth)
            elif isinstance(node, gql.FragmentSpreadNode):
                name = node.name.value
                fragment = self.fragments.get(name)
                # Validation will refuse a circle.
                if fragment is not None and name not in self.open_fragments:
                    self.open_fragments.append(name)
                    yield from self._unfold(fragment.selection_set, depth)
                    self.open_fragments.remove(name)

    def _see(self) -> None:
        self.seen += 1
        if self.seen > self.limits.fields:
            raise QueryRefused(
                f"the query has more than {self.limits.fields} fields and fragments when it is "
                "unfolded; split it",
                code="query_too_wide",
            )

    def _count(self, units: int) -> None:
        self.cost += units
        self._refuse(self.cost, self.limits.cost)

    def _refuse(self, cost: int, limit: int) -> None:
        if cost > limit:
            raise QueryRefused(
                f"the query may cost {limit} units and costs more: pages multiply by "
                "`first` and `last`, also within each other. Ask for smaller pages, or for fewer "
                "fields"
            )

    def _find_field(
        self, parent: gql.GraphQLNamedType | None, name: str
    ) -> gql.GraphQLField | None:
        meta = {"__schema": gql.SchemaMetaFieldDef, "__type": gql.TypeMetaFieldDef}
        if parent is self.schema.query_type and name in meta:
            return meta[name]
        fields: Mapping[str, gql.GraphQLField] = getattr(parent, "fields", {})
        return fields.get(name)

    def _find_size(self, node: gql.FieldNode, found: gql.GraphQLField) -> int | None:
        """Return the page size that a field is asked for, None where the field is no page. Raises
        QueryRefused for a size out of bounds."""
        name = next((n for n in SIZE_ARGUMENTS if n in found.args), None)
        if name is None:
            return None
        value: Any = found.args[name].default_value
        default = getattr(found.args[name], "default", None)
        if default is not None:
            value = default.value
        for argument in node.arguments or ():
            if argument.name.value == name:
                value = self._read(argument.value, value)
        if not isinstance(value, int) or isinstance(value, bool):
            return MAX_PAGE  # validation will refuse the field
        if not 1 <= value <= MAX_PAGE:
            raise QueryRefused(
                f"{node.name.value}({name}: {value}): a page has 1 to {MAX_PAGE} items",
                code="page_out_of_bounds",
            )
        return value

    def _read(self, node: Any, default: Any) -> Any:
        if isinstance(node, gql.VariableNode):
            name = node.name.value
            return self.variables.get(name, self.defaults.get(name, default))
        return _read_number(node)

    def _measure_schema(
        self, found: gql.GraphQLField, name: str, times: int, lists: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...]]:
        """Return how many values a list of introspection has in all, and the lists around them."""
        if not _is_list(found) or not isinstance(
            gql.get_named_type(found.type), gql.GraphQLObjectType
        ):
            return times, lists
        inner = (*lists, name)
        if inner not in self.sizes.of:
            raise QueryRefused(
                f"introspection goes round in circles: {name} within "
                f"{' within '.join(reversed(lists)) or 'nothing'}",
                code="query_too_deep",
            )
        around = self.sizes.of.get(lists, 1)
        return -(-times * self.sizes.of[inner] // max(around, 1)), inner


def _is_list(found: gql.GraphQLField) -> bool:
    return "[" in str(found.type)


def _read_number(node: Any) -> int | None:
    """Return a literal number, or one above every limit where its text is very long; None for any
    other literal."""
    if not isinstance(node, gql.IntValueNode):
        return None
    return int(node.value) if len(node.value) < 12 else MAX_PAGE + 1


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of a query."""

    cost: int
    fields: int
    depth: int


def measure_query(
    schema: gql.GraphQLSchema,
    sizes: SchemaSizes,
    document: gql.DocumentNode,
    operation: gql.OperationDefinitionNode,
    variables: Mapping[str, Any],
    limits: Limits,
) -> Measure:
    """Return the size of `operation`. Raises QueryRefused over a limit. The document's other
    operations are measured too, because validation reads them."""
    fragments = {
        d.name.value: d for d in document.definitions if isinstance(d, gql.FragmentDefinitionNode)
    }
    walk = _Walk(schema, sizes, limits, fragments, _read_defaults(operation), variables)
    for other in document.definitions:
        if isinstance(other, gql.OperationDefinitionNode) and other is not operation:
            walk.look(other.selection_set, schema.query_type, 1, 1)
            walk.cost = walk.schema_cost = walk.deepest = 0
    walk.look(operation.selection_set, schema.query_type, 1, 1)
    return Measure(cost=walk.cost + walk.schema_cost, fields=walk.seen, depth=walk.deepest)


def _read_defaults(operation: gql.OperationDefinitionNode) -> dict[str, Any]:
    return {
        variable.variable.name.value: _read_number(variable.default_value)
        for variable in operation.variable_definitions or ()
        if variable.default_value is not None
    }
