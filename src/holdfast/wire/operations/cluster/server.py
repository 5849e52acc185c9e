"""The operations on server."""

from typing import Any

from holdfast.wire.operations.operation import Operation, Role, reads

GET_FRONT_PAGE = Operation(
    "GET", "/", Role.ANYONE, "A page for people: what this is.", answers={200: None},
    media=("text/html",)
)  # fmt: skip
GET_QUESTION_PAGE = Operation(
    "GET", "/questions/{run}/{node}", Role.ANYONE,
    "A page on which a person answers a node's question, with a token.", answers={200: None},
    media=("text/html",)
)  # fmt: skip
GET_OPENAPI = reads("/v1/openapi.json", "This description.", dict[str, Any])
GET_METRICS = Operation(
    "GET", "/metrics", Role.READ, "Prometheus metrics.", answers={200: None}, media=("text/plain",)
)  # fmt: skip
GET_HEALTH = Operation(
    "GET", "/healthz", Role.ANYONE, "The process answers. Asks nothing else.",
    answers={200: dict[str, str]}
)  # fmt: skip
GET_READINESS = Operation(
    "GET", "/readyz", Role.ANYONE, "The store answers too.", answers={200: dict[str, str]}
)  # fmt: skip
