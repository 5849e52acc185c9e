"""The schema, built once in a process, and the reading of queries for it."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import strawberry
from graphql import (
    DocumentNode,
    GraphQLError,
    GraphQLSchema,
    GraphQLSyntaxError,
    OperationDefinitionNode,
    OperationType,
    get_operation_ast,
    parse,
)
from strawberry.extensions import SchemaExtension
from strawberry.types import ExecutionContext

from holdfast.controller.graphql.limits import Limits, QueryRefused, SchemaSizes, measure_query
from holdfast.controller.graphql.reads import Reads
from holdfast.controller.graphql.roots import QueryRoot
from holdfast.controller.graphql.scalars import make_config
from holdfast.errors import HoldfastError

_TOO_DEEP = "the query is nested too deeply to be read"


class BadQuery(HoldfastError, code="graphql_syntax", status=400):
    """The text is not a query of this schema."""


@dataclass(slots=True)
class GraphqlContext:
    """The context that resolvers find under `info.context`."""

    reads: Reads
    document: DocumentNode


class _Parsed(SchemaExtension):
    """Returns the document that was parsed to be measured, so that strawberry does not parse it
    again."""

    def on_operation(self) -> Iterator[None]:
        context: ExecutionContext = self.execution_context
        context.graphql_document = context.context.document
        yield


class Schema(strawberry.Schema):
    """strawberry's schema without its logging: the service answers errors and logs bugs, once."""

    def process_errors(
        self, errors: list[GraphQLError], execution_context: ExecutionContext | None = None
    ) -> None:
        """Log nothing: the library would log each error with its traceback, and the response reports
        the errors already."""

    @property
    def core(self) -> GraphQLSchema:
        """Return the schema in the form of the library `graphql`."""
        return self._schema


class Prepared:
    """The schema, with the sizes that are computed once, before any query."""

    def __init__(self) -> None:
        self.strawberry = Schema(query=QueryRoot, config=make_config(), extensions=[_Parsed])
        self.core = self.strawberry.core
        self.sizes = SchemaSizes(self.core)

    def read_query(
        self, text: str, variables: Mapping[str, Any], operation_name: str | None, limits: Limits
    ) -> tuple[DocumentNode, OperationDefinitionNode]:
        """Parse and measure a query.

        Raises:
            GraphQLSyntaxError: its text cannot be parsed.
            BadQuery: its text is no query, or names an operation that does not exist.
            QueryRefused: the query is over a limit.
        """
        try:
            document = parse(text, max_tokens=limits.tokens)
        except GraphQLSyntaxError as error:
            if "tokens" in error.message:
                raise QueryRefused(
                    f"the query has more than {limits.tokens} words and signs; split it",
                    code="query_too_long",
                ) from None
            if "nested too deeply" in error.message:
                raise QueryRefused(_TOO_DEEP, code="query_too_deep") from None
            raise error
        except RecursionError:
            raise QueryRefused(_TOO_DEEP, code="query_too_deep") from None
        operation = get_operation_ast(document, operation_name)
        if operation is None:
            raise BadQuery(_say_operation(document, operation_name), code="unknown_operation")
        if operation.operation is not OperationType.QUERY:
            raise BadQuery(
                f"this is for reading: there are no {operation.operation.value}s. Jobs are "
                "submitted, cancelled and retried by REST (`POST /v1/jobs`), and events are "
                "followed there (`GET /v1/events`)",
                code="query_only",
            )
        try:
            measure_query(self.core, self.sizes, document, operation, variables, limits)
        except RecursionError:
            raise QueryRefused(_TOO_DEEP, code="query_too_deep") from None
        return document, operation


def _say_operation(document: DocumentNode, name: str | None) -> str:
    names = [
        d.name.value
        for d in document.definitions
        if isinstance(d, OperationDefinitionNode) and d.name
    ]
    if name is not None:
        known = ", ".join(names)[:256] or "none with a name"
        return f"there is no operation {name[:64]!r} in the query; there are {known}"
    return "the query has several operations or none; say which one with operationName"


@functools.cache
def load_schema() -> Prepared:
    """Return the schema. The first call takes half a second, mostly imports, so it must not run on
    the event loop."""
    return Prepared()
