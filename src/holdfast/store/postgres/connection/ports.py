"""How a port of the store runs on a session: each method of it in one transaction, or in none."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.store.postgres.connection.session import Session, Tx

T = TypeVar("T")


class OnSession:
    """A port of the store, whose methods run on one session."""

    def __init__(self, session: Session) -> None:
        self.session = session


S = TypeVar("S", bound=OnSession)
P = ParamSpec("P")
Work = Callable[Concatenate[S, Tx, P], Awaitable[T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def transacts(work: Work[S, P, T]) -> Method[S, P, T]:
    """Make a port's method of `work`, which runs in one transaction (`Session.transact`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.transact(lambda tx: work(port, tx, *given, **named))

    return method


def transacts_by_index(work: Work[S, P, T]) -> Method[S, P, T]:
    """Make a port's method of `work`, which runs in one transaction of statements whose plans go by
    indexes alone."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.transact(
            lambda tx: work(port, tx, *given, **named), by_index=True
        )

    return method


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Make a port's method of `work`, which runs without a transaction (`Session.single`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.single(lambda tx: work(port, tx, *given, **named))

    return method
