"""Operators' own rules of classification: what they see in a task's end, and what they conclude from it."""

from __future__ import annotations

import msgspec

from holdfast.core.causes import Cause


class OperatorRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. All of its conditions must hold.

    pattern: a regular expression, looked for in the log's tail and in the runtime's and the start's errors.
    exit_codes, signals: any of these. cause: the cause it concludes; None leaves the one the shipped rules find.
    never_retry: the job ends. avoid_host: its next attempt keeps away from this host where another fits.
    message: the sentence to show; empty: made from the rule.
    """

    name: str
    pattern: str | None = None
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    cause: Cause | None = None
    never_retry: bool = False
    avoid_host: bool = False
    message: str = ""


def parse_rules(text: str) -> tuple[OperatorRule, ...]:
    """Read rules as operators write them (TOML). Raises ValidationError naming the line."""
    if not text.strip():
        return ()
    raise NotImplementedError
