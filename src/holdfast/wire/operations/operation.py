"""An operation as a value."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Literal

import msgspec

Owned = Literal["job", "array", "set", "run", "schedule"]


class Role(IntEnum):
    """The role that an operation needs. `ANYONE`: no token is needed. `JOIN`, `HOST` and `REPLICA`
    (another server of the cluster) stand apart from the users' ladder read < submit < admin."""

    ANYONE = 0
    READ = 1
    SUBMIT = 2
    ADMIN = 3
    HOST = 10
    JOIN = 11
    REPLICA = 12


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of the queries. An unknown parameter is refused, because a misspelt filter must not
    list everything."""


class PageOf:
    """The answer `{"items": [item, …], "next": cursor|null}`."""

    def __init__(self, item: Any) -> None:
        self.item = item


class Operation(msgspec.Struct, frozen=True):
    """One method of one path.

    summary: one sentence. query: the struct whose fields are the query's parameters. body: the type
    of the JSON body. optional_body: True where an absent body means the struct with its defaults.
    raw: True where the body is bytes of `media_in`, not JSON. answers: status → the type of the
    answer, or None for no JSON body. media: the media types of a successful answer. owned: the kind
    of the record that the path names and the call changes; only the record's owner may make the call
    (OWNER-1). socket: True where the call opens a WebSocket. repeatable: True where calling it twice
    leaves the same state as calling it once, so that a client repeats it after a lost answer.
    """

    method: str
    path: str
    role: Role
    summary: str
    query: type[msgspec.Struct] | None = None
    body: Any = None
    raw: bool = False
    optional_body: bool = False
    owned: Owned | None = None
    answers: Mapping[int, Any] = {}
    media: tuple[str, ...] = ("application/json",)
    media_in: tuple[str, ...] = ("application/msgpack",)
    socket: bool = False
    headers: Mapping[str, str] = {}
    repeatable: bool = True

    @property
    def answer(self) -> Any:
        """Return the type of a successful answer; None where it has no body."""
        return next((kind for status, kind in self.answers.items() if status < 300), None)


def reads(path: str, summary: str, answer: Any, query: Any = None) -> Operation:
    """Return the operation that reads what a path names; every role may."""
    return Operation("GET", path, Role.READ, summary, query=query, answers={200: answer})
