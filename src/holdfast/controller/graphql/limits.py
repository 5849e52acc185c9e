"""What a query may ask for, decided from its text and variables before anything is read. Pure.

GQL-1  The cost of a query bounds the values in its answer, whatever the store holds: pages multiply
       by the size they are asked for, aliases and fragments count wherever they stand, and what
       @skip leaves out counts too.
GQL-2  Deciding takes time in proportion to the limits, not to what a query would unfold to.

One unit is about the time it takes to put one plain value into an answer. `WEIGHTS` says what costs
more: rows that must be read and decoded, and sentences that must be worked out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLEnumType,
    GraphQLField,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLNamedType,
    GraphQLObjectType,
    GraphQLSchema,
    GraphQLUnionType,
    InlineFragmentNode,
    IntValueNode,
    OperationDefinitionNode,
    SchemaMetaFieldDef,
    SelectionSetNode,
    TypeMetaFieldDef,
    VariableNode,
    get_named_type,
    is_introspection_type,
)

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
    "JobPage": 20,
    "HostPage": 20,
    "EventPage": 20,
    "QueuePage": 20,
    "ProjectPage": 20,
    "JSON": 3,
}
"""Type → units for each value of it; one where nothing is said."""


class QueryRefused(HoldfastError):
    """The query asks for more than one query may."""

    code = "query_too_costly"
    status = 400


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may be and take.

    answer_bytes: JSON values in the answer (specs, facts, labels), whose size no cost foresees.
    tokens: words and signs of its text. fields: fields and spreads, unfolded. depth, schema_depth:
    fields within fields, for data and for introspection. cost: see above. seconds: from its start
    to its answer. at_once: how many are worked on at the same time in this process; others wait,
    within their own seconds. calls_at_once: of one query, to the store.
    """

    body_bytes: int = 128 * 1024
    answer_bytes: int = 16 * 1024 * 1024
    tokens: int = 3000
    fields: int = 600
    depth: int = 12
    schema_depth: int = 16
    cost: int = 15_000
    seconds: float = 10.0
    at_once: int = 4
    calls_at_once: int = 2


class SchemaSizes:
    """How long the lists of introspection are, counted once. They may stand within each other only
    as written here."""

    def __init__(self, schema: GraphQLSchema) -> None:
        types = list(schema.type_map.values())
        fields = [
            len(t.fields) for t in types if isinstance(t, GraphQLObjectType | GraphQLInterfaceType)
        ]
        inputs = [len(t.fields) for t in types if isinstance(t, GraphQLInputObjectType)]
        args = [
            [len(f.args) for f in t.fields.values()]
            for t in types
            if isinstance(t, GraphQLObjectType | GraphQLInterfaceType)
        ]
        enums = [len(t.values) for t in types if isinstance(t, GraphQLEnumType)]
        interfaces = [
            len(t.interfaces)
            for t in types
            if isinstance(t, GraphQLObjectType | GraphQLInterfaceType)
        ]
        possible = [
            len(schema.get_possible_types(t))
            for t in types
            if isinstance(t, GraphQLInterfaceType | GraphQLUnionType)
        ]
        directives = [len(d.args) for d in schema.directives]
        self.of: dict[tuple[str, ...], int] = {
            ("types",): len(types),
            ("directives",): len(directives),
            ("directives", "args"): sum(directives),
        }
        for name, sizes in {
            "fields": fields,
            "inputFields": inputs,
            "enumValues": enums,
            "interfaces": interfaces,
            "possibleTypes": possible,
        }.items():
            self.of["types", name] = sum(sizes)
            self.of[name,] = max(sizes, default=0)  # of one type, whichever it is
        self.of["types", "fields", "args"] = sum(sum(counts) for counts in args)
        self.of["fields", "args"] = max((sum(counts) for counts in args), default=0)


@dataclass
class _Walk:
    """One look at one operation."""

    schema: GraphQLSchema
    sizes: SchemaSizes
    limits: Limits
    fragments: Mapping[str, FragmentDefinitionNode]
    defaults: Mapping[str, Any]
    variables: Mapping[str, Any]
    seen: int = 0
    cost: int = 0
    deepest: int = 0
    open_fragments: list[str] = field(default_factory=list)

    def look(
        self,
        selections: SelectionSetNode,
        parent: GraphQLNamedType | None,
        times: int,
        depth: int,
        page: int = 1,
        lists: tuple[str, ...] = (),
    ) -> None:
        """Count what `selections` on `parent` come to when that is there `times` times.

        page: the size the enclosing page was asked for. lists: introspection's lists around it.
        """
        for node in self._unfold(selections, depth):
            name = node.name.value
            found = self._find_field(parent, name)
            if found is None:  # nothing is known of it; validation will say so
                self._count(times)
                if node.selection_set is not None:
                    self._dive(node.selection_set, None, times, depth)
                continue
            inner = get_named_type(found.type)
            about_schema = is_introspection_type(inner) or (
                parent is not None and is_introspection_type(parent)
            )
            size, inner_page, inner_lists = 1, 1, lists
            if about_schema:
                size, inner_lists, times_inner = self._measure_schema(found, name, times, lists)
            else:
                own = self._find_size(node, found)
                listed = _is_list(found) and isinstance(inner, GraphQLObjectType)
                size = (page if name == PAGE_ITEMS else own or MAX_PAGE) if listed else 1
                inner_page = own or 1
                times_inner = times * size
            self._count(times_inner * WEIGHTS.get(inner.name, 1))
            if node.selection_set is not None:
                self._dive(
                    node.selection_set,
                    inner,
                    times_inner,
                    depth,
                    inner_page,
                    inner_lists,
                    about_schema,
                )

    def _dive(
        self,
        selections: SelectionSetNode,
        inner: GraphQLNamedType | None,
        times: int,
        depth: int,
        page: int = 1,
        lists: tuple[str, ...] = (),
        about_schema: bool = False,
    ) -> None:
        limit = self.limits.schema_depth if about_schema else self.limits.depth
        if depth + 1 > limit:
            raise QueryRefused(
                f"the query is more than {limit} fields deep; ask for the inner part by itself",
                code="query_too_deep",
            )
        self.look(selections, inner, times, depth + 1, page, lists)

    def _unfold(self, selections: SelectionSetNode, depth: int) -> Iterator[FieldNode]:
        """The fields of a selection set, those of its fragments among them."""
        self.deepest = max(self.deepest, depth)
        for node in selections.selections:
            self._see()
            if isinstance(node, FieldNode):
                yield node
            elif isinstance(node, InlineFragmentNode):
                yield from self._unfold(node.selection_set, depth)
            elif isinstance(node, FragmentSpreadNode):
                name = node.name.value
                fragment = self.fragments.get(name)
                if (
                    fragment is not None and name not in self.open_fragments
                ):  # a circle; validation will say so
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
        if self.cost > self.limits.cost:
            raise QueryRefused(
                f"the query may cost {self.limits.cost} units and costs more: pages multiply by "
                "`first` and `last`, also "
                "within each other. Ask for smaller pages, or for fewer fields"
            )

    def _find_field(self, parent: GraphQLNamedType | None, name: str) -> GraphQLField | None:
        if parent is self.schema.query_type and name == "__schema":
            return SchemaMetaFieldDef
        if parent is self.schema.query_type and name == "__type":
            return TypeMetaFieldDef
        fields: Mapping[str, GraphQLField] = getattr(parent, "fields", {})
        return fields.get(name)

    def _find_size(self, node: FieldNode, found: GraphQLField) -> int | None:
        """The size a field is asked for, None where it takes none. Raises QueryRefused for one out
        of bounds."""
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
            return MAX_PAGE  # validation will refuse it
        if not 1 <= value <= MAX_PAGE:
            raise QueryRefused(
                f"{node.name.value}({name}: {value}): a page has 1 to {MAX_PAGE} items",
                code="page_out_of_bounds",
            )
        return value

    def _read(self, node: Any, default: Any) -> Any:
        if isinstance(node, IntValueNode):
            return int(node.value) if len(node.value) < 12 else MAX_PAGE + 1
        if isinstance(node, VariableNode):
            name = node.name.value
            if name in self.variables:
                return self.variables[name]
            return self.defaults.get(name, default)
        return None

    def _measure_schema(
        self, found: GraphQLField, name: str, times: int, lists: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...], int]:
        """A list of introspection is as long as it is; the product of those around it is known
        too."""
        if not _is_list(found) or not isinstance(get_named_type(found.type), GraphQLObjectType):
            return 1, lists, times
        inner = (*lists, name)
        if inner not in self.sizes.of:
            raise QueryRefused(
                f"introspection goes round in circles: {name} within "
                f"{' within '.join(reversed(lists)) or 'nothing'}",
                code="query_too_deep",
            )
        around = self.sizes.of.get(lists, 1)
        total = -(-times * self.sizes.of[inner] // max(around, 1))
        return self.sizes.of[inner], inner, total


def _is_list(found: GraphQLField) -> bool:
    return "[" in str(found.type)


@dataclass(frozen=True, slots=True)
class Measure:
    """What a query comes to."""

    cost: int
    fields: int
    depth: int


def measure_query(
    schema: GraphQLSchema,
    sizes: SchemaSizes,
    document: DocumentNode,
    operation: OperationDefinitionNode,
    variables: Mapping[str, Any],
    limits: Limits,
) -> Measure:
    """What `operation` comes to. The document's other operations keep the same limits: validation
    reads them too.

    Raises:
        QueryRefused: it is over one of the limits; says which.
    """
    fragments = {
        d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)
    }
    walk = _Walk(schema, sizes, limits, fragments, _read_defaults(operation), variables)
    for other in document.definitions:
        if isinstance(other, OperationDefinitionNode) and other is not operation:
            walk.look(other.selection_set, schema.query_type, 1, 1)
            walk.cost = walk.deepest = 0
    walk.look(operation.selection_set, schema.query_type, 1, 1)
    return Measure(cost=walk.cost, fields=walk.seen, depth=walk.deepest)


def _read_defaults(operation: OperationDefinitionNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable in operation.variable_definitions or ():
        value = variable.default_value
        if isinstance(value, IntValueNode):
            found[variable.variable.name.value] = (
                int(value.value) if len(value.value) < 12 else MAX_PAGE + 1
            )
        elif value is not None:
            found[variable.variable.name.value] = None
    return found
