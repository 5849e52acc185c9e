"""The operation of GraphQL."""

from typing import Any

import msgspec

from holdfast.wire.operations.operation import Operation, Role


class GraphqlAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an answer. data: null or missing where no field could be answered. errors: each
    with `extensions.code`."""

    data: dict[str, Any] | None = None
    errors: list[dict[str, Any]] | None = None


class GraphqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query and its variables, as in GraphQL over HTTP. `extensions` may be present."""

    query: str
    variables: dict[str, Any] | None = None
    operationName: str | None = None
    extensions: dict[str, Any] | None = None


ANSWER_QUERY = Operation(
    "POST", "/graphql", Role.READ, "A query of GraphQL over everything above that is read.",
    body=GraphqlRequest, answers={200: GraphqlAnswer}
)  # fmt: skip
