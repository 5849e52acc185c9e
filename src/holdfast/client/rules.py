"""What both clients do with operators' rules of classification."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from holdfast.client.calls import Call, _encode, _reader
from holdfast.wire.api import RulesFinding, RulesRequest, RulesTrial, RulesView

T = TypeVar("T")
_VIEW = _reader(RulesView)


def get_rules() -> Call[RulesView]:
    """The rules in force."""
    return Call("GET", "/v1/rules", _VIEW)


def put_rules(text: str) -> Call[RulesView]:
    """Replace all of them."""
    return Call("PUT", "/v1/rules", _VIEW, body=_encode(RulesRequest(text=text)))


def try_rules(trial: RulesTrial) -> Call[RulesFinding]:
    """What an end would be taken for. Changes nothing."""
    return Call("POST", "/v1/rules/try", _reader(RulesFinding), body=_encode(trial))


class _Sends(Protocol):
    def call(self, call: Call[T]) -> T: ...


class _AsyncSends(Protocol):
    async def call(self, call: Call[T]) -> T: ...


class RulesMethods:
    """The blocking client's part."""

    def rules(self: _Sends) -> RulesView:
        """The operators' rules of classification: their text, and how it is read."""
        return self.call(get_rules())

    def set_rules(self: _Sends, text: str) -> RulesView:
        """Replace all rules by those of `text` (TOML; empty: none). A bad one is refused with its
        line. Takes an admin token."""
        return self.call(put_rules(text))

    def try_rules(self: _Sends, **end: Any) -> RulesFinding:
        """What an end would be taken for. `end` has the fields of `wire.api.RulesTrial`: exit_code,
        signal, log, text, …"""
        return self.call(try_rules(RulesTrial(**end)))


class AsyncRulesMethods:
    """The asynchronous client's part."""

    async def rules(self: _AsyncSends) -> RulesView:
        """The operators' rules of classification: their text, and how it is read."""
        return await self.call(get_rules())

    async def set_rules(self: _AsyncSends, text: str) -> RulesView:
        """Replace all rules by those of `text` (TOML; empty: none). A bad one is refused with its
        line. Takes an admin token."""
        return await self.call(put_rules(text))

    async def try_rules(self: _AsyncSends, **end: Any) -> RulesFinding:
        """What an end would be taken for. `end` has the fields of `wire.api.RulesTrial`: exit_code,
        signal, log, text, …"""
        return await self.call(try_rules(RulesTrial(**end)))
