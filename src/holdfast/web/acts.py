"""The acts that pages offer, written for the pages' script (`wire.operations.acts`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.wire.operations.acts import ACTS, ActField


def write_act(
    name: str,
    what: str,
    *,
    params: Mapping[str, str],
    sentence: str = "",
    fields: Sequence[ActField] | None = None,
    body: Mapping[str, Any] | None = None,
    undo_body: Mapping[str, Any] | None = None,
    query: str = "",
) -> str:
    """Return an act as the JSON that the pages' script carries out. what: the thing, for the title.
    sentence: the consequence, where the thing itself makes it more exact. undo_body: of the call that
    takes the act back, which is its own one where the table names no other; None: none does."""
    act = ACTS[name]
    given = act.fields if fields is None else tuple(fields)
    value: dict[str, Any] = {
        "method": act.method,
        "path": _fill(name, params) + query,
        "title": f"{act.button} {what}".strip(),
        "ask": sentence or act.ask,
    }
    if act.reason:
        value["reason"] = True
    if given:
        value["fields"] = given
    if body or act.body:
        value["body"] = {**act.body, **(body or {})}
    if act.shows:
        value["shows"] = act.shows
    if undo_body is not None:
        undo = act.undo or name
        path = _fill(undo, params) + query
        value["undo"] = {"method": ACTS[undo].method, "path": path, "body": undo_body}
    return msgspec.json.encode(value).decode()


def make_way_back(name: str, was: Any, now: datetime) -> dict[str, Any] | None:
    """Return the body of the call that takes an act back, so that all is as it was; None where no call
    does that. was: the thing before the act, of whose pause, drain or quarantine the reason returns."""
    undo = ACTS.get(ACTS[name].undo)
    if undo is None:
        return None
    if not undo.stops:  # to release a host that drained before its quarantine would give it work
        return None if getattr(was, "state", "") == "draining" else {}
    back = {"reason": getattr(was, "paused_reason", "") or getattr(was, "reason", "")}
    deadline = getattr(was, "drain_deadline", None)
    if deadline is not None:
        back["deadline_seconds"] = max(1.0, (deadline - now).total_seconds())
    return {**back, "hard": True} if getattr(was, "hard", False) else back


def list_takes(names: Iterable[str], was: Any, now: datetime) -> dict[str, Any]:
    """Return the acts that may be done to a row in its state when many rows are chosen: the word of
    each act, and the body of the call that takes the act back."""
    return {ACTS[name].button: make_way_back(name, was, now) for name in names}


def write_takes(names: Iterable[str], was: Any, now: datetime) -> str:
    """Return as JSON the acts that may be done to a row in its state when many rows are chosen
    (`list_takes`)."""
    return msgspec.json.encode(list_takes(names, was, now)).decode()


def write_bulk(name: str, noun: str, key: str, **more: Any) -> str:
    """Return an act on many rows as JSON. key: the name in its path that a row's value fills. more:
    `many`, a path that takes ids; `find`, where all that match may be meant, and `states`, of which a
    row that was found and does not say what it takes has one."""
    act = ACTS[name]
    path = _fill(name, {}).replace("{" + key + "}", "{}")
    value: dict[str, Any] = {
        "verb": act.button,
        "noun": noun,
        "ask": act.ask,
        "reason": act.reason,
        "fields": act.fields,
        "each": f"{act.method} {path}",
        **more,
    }
    if act.undo:
        undo = _fill(act.undo, {}).replace("{" + key + "}", "{}")
        value["undo"] = f"{ACTS[act.undo].method} {undo}"
    return msgspec.json.encode(value).decode()


def _fill(name: str, params: Mapping[str, str]) -> str:
    """Return the path of an act. `action` is the last word of the act's own name."""
    path = ACTS[name].path
    for key, value in {**params, "action": name.rpartition(".")[2]}.items():
        path = path.replace("{" + key + "}", quote(value, safe=""))
    return path
