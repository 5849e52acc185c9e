"""Decorators for the methods of the store's ports: each runs in one transaction, or in none."""

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
    """Turn `work` into a port's method that runs in one transaction (`Session.transact`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.transact(lambda tx: work(port, tx, *given, **named))

    return method


def transacts_planned(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a port's method that runs in one transaction, whose statements keep one
    plan for all parameters (`Session.transact_hot`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.transact_hot(lambda tx: work(port, tx, *given, **named))

    return method


def reads_planned(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a port's method that runs without a transaction, whose statements keep one
    plan for all parameters (`Session.single_hot`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.single_hot(lambda tx: work(port, tx, *given, **named))

    return method


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a port's method that runs without a transaction (`Session.single`)."""

    @wraps(work)
    async def method(port: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await port.session.single(lambda tx: work(port, tx, *given, **named))

    return method
