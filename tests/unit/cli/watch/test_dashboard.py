"""`dashboard`: a link that signs a browser in, and the browsers that are."""

from __future__ import annotations

import json
import webbrowser

import pytest

from tests.unit.cli.stub import Answer, Stub

LINK = "http://holdfast.localhost:7433/sign-in#secret"
MADE = {"url": LINK, "urls": [LINK], "expires_at": "2026-03-01T12:10:00Z"}


@pytest.fixture
def opened(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The links that a browser was started with."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    stub.on("POST /v1/sign-ins/links", Answer(MADE, 201))
    return found


@pytest.mark.parametrize(
    ("words", "display", "opens"),
    [
        ((), ":0", True),
        ((), None, False),
        (("--no-open",), ":0", False),
        (("--json",), ":0", False),
    ],
)
def test_a_link_is_printed_and_opened_where_there_is_a_display(
    stub: Stub, opened: list[str], words: tuple[str, ...], display: str | None, opens: bool
) -> None:
    done = stub.run("dashboard", *words, env={"DISPLAY": display, "WAYLAND_DISPLAY": None})
    assert done.exit_code == 0, done.stderr
    assert opened == ([LINK] if opens else [])
    if "--json" in words:
        assert json.loads(done.stdout)["url"] == LINK
    else:
        assert done.stdout == f"{LINK}\n"


def test_browsers_are_listed_and_signed_out(stub: Stub, opened: list[str]) -> None:
    one = {
        "id": "06ch2v8wq1m4kz7d9x3t", "token_id": "t", "role": "admin", "user": "ann", "browser": "a phone",
        "created_at": "2026-03-01T12:00:00Z", "expires_at": "2026-03-02T00:00:00Z",
    }  # fmt: skip
    stub.on("GET /v1/sign-ins", Answer({"items": [one], "next": None}))
    stub.on(f"DELETE /v1/sign-ins/{one['id']}", Answer(None, 204))
    listed = stub.run("dashboard", "--list")
    assert "a phone" in listed.stdout
    assert one["id"] in listed.stdout
    ended = stub.run("dashboard", "--end", one["id"])
    assert (ended.exit_code, opened) == (0, []), ended.stderr
    assert "signed out within 5 s" in ended.stderr
    assert stub.run("dashboard", "--list", "--end", one["id"]).exit_code == 2
