"""Decorators for the methods of the store's parts: each runs in one transaction, or in none."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.store.postgres.connection.session import Session, Tx

T = TypeVar("T")


class OnSession:
    """A part of the store, whose methods run on one session."""

    def __init__(self, session: Session) -> None:
        self.session = session


S = TypeVar("S", bound=OnSession)
P = ParamSpec("P")
Work = Callable[Concatenate[S, Tx, P], Awaitable[T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def transacts(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a part's method that runs in one transaction (`Session.transact`)."""

    @wraps(work)
    async def method(part: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await part.session.transact(lambda tx: work(part, tx, *given, **named))

    return method


def transacts_planned(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a part's method that runs in one transaction, whose statements keep one
    plan for all parameters (`Session.transact_hot`)."""

    @wraps(work)
    async def method(part: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await part.session.transact_hot(lambda tx: work(part, tx, *given, **named))

    return method


def reads_planned(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a part's method that runs without a transaction, whose statements keep one
    plan for all parameters (`Session.single_hot`)."""

    @wraps(work)
    async def method(part: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await part.session.single_hot(lambda tx: work(part, tx, *given, **named))

    return method


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Turn `work` into a part's method that runs without a transaction (`Session.single`)."""

    @wraps(work)
    async def method(part: S, /, *given: P.args, **named: P.kwargs) -> T:
        return await part.session.single(lambda tx: work(part, tx, *given, **named))

    return method
