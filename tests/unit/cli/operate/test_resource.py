"""The commands that all kinds of things have in common."""

from __future__ import annotations

import click
import pytest

from holdfast.cli.main import cli
from tests.unit.cli.stub import Answer, Stub

# The kind, its address, and the words that it has no use for.
KINDS: dict[str, tuple[str, set[str]]] = {
    "queues": ("queues", set()),
    "pools": ("pools", set()),
    "webhooks": ("webhooks", set()),
    "projects": ("projects", set()),
    "schedules": ("schedules", set()),
    "token": ("tokens", {"set", "delete"}),  # a token is not changed, and is revoked
    "rules": ("rules", set()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed_shown_set_and_deleted_by_the_same_words(kind: str) -> None:
    context = click.Context(cli)
    group = cli.get_command(context, kind)
    assert isinstance(group, click.Group)
    words = {"list", "show", "set", "delete"}
    assert {w for w in words if group.get_command(context, w) is None} == KINDS[kind][1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_by_itself_is_its_list(stub: Stub, kind: str) -> None:
    empty = (
        {"rules": [], "text": "", "revision": 0, "updated_at": None}
        if kind == "rules"
        else {"items": [], "next": None}
    )
    stub.on(f"GET /v1/{KINDS[kind][0]}", Answer(empty))
    alone, listed = stub.run(kind), stub.run(kind, "list")
    assert (alone.exit_code, listed.exit_code) == (0, 0), alone.stderr + listed.stderr
    assert alone.stdout == listed.stdout != ""


def test_a_token_that_is_not_there_is_not_shown(stub: Stub) -> None:
    stub.on("GET /v1/tokens", Answer({"items": [], "next": None}))
    done = stub.run("token", "show", "06ch2v8wq1m4kz7d9x3t")
    assert (done.exit_code, "there is no token" in done.stderr) == (3, True)
